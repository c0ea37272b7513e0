"""`changefeed validate`: checks a resource, and on request what its upstream says of the tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from changefeed.cli.arguments import AsJson, File
from changefeed.cli.config_file import read
from changefeed.cli.output import write_json, write_text, write_warning

if TYPE_CHECKING:
    from changefeed.spec.model import Changefeed


def validate(
    *,
    file: File,
    secrets_dir: Annotated[
        Path | None,
        Parameter(
            name="--secrets-dir",
            help="Folder of Secrets: DIR/<secretRef.name>/<key>. With it, the upstream is asked too whether the "
            "changefeed's tables can be read.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a Changefeed and report all problems at once, each with its field, value and what is allowed."""
    from changefeed.spec.parse import effective

    changefeed = read(file)
    asked = {} if secrets_dir is None else {"warnings": _asked(changefeed, secrets_dir)}
    if as_json:
        write_json({"ok": True, "name": changefeed.name, "effective": effective(changefeed), **asked})
        return
    for warning in asked.get("warnings", ()):
        write_warning(warning)
    rules = ", ".join(changefeed.spec.filter.rules)
    write_text(f"{file}: changefeed {changefeed.name} is valid: {rules} to {changefeed.spec.sink.uri}")


def _asked(changefeed: Changefeed, secrets_dir: Path) -> list[str]:
    """What may keep the upstream's rows from being read, and rules that match nothing. Raises what does so now, and
    InvalidSpec, Refused for columns that can't be written as spec.columns asks for.
    """
    import asyncio

    from changefeed.filter.coverage import Coverage
    from changefeed.routing.routes import Routes
    from changefeed.spec.parse import effective
    from changefeed.upstream import choice
    from changefeed.upstream.written_rows import MaskKeys

    routes = Routes.of(effective(changefeed))
    MaskKeys(secrets_dir).check(routes.columns.secrets)

    async def ask() -> list[str]:
        upstream = await choice.access_of(changefeed, secrets_dir).connect()
        try:
            warnings = await upstream.check(changefeed.spec.filter.table_filter().matches)
            now = await upstream.now()
            tables = (await upstream.schema(now)).tables_at(now)
            for table in tables:
                routes.routed(table)
            found = Coverage(changefeed, tables).found
            return [*warnings, *(said for _, said in found.findings)]
        finally:
            await upstream.close()

    return asyncio.run(ask())
