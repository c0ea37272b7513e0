"""`changefeed import`: prints the Changefeed that a TiCDC changefeed's configuration makes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from changefeed.cli.arguments import AsJson
from changefeed.cli.output import write_json
from changefeed.errors import InvalidSpec


def import_ticdc(
    *,
    sink_uri: Annotated[str, Parameter(help="TiCDC's --sink-uri.")],
    config: Annotated[Path | None, Parameter(help="TiCDC's --config, TOML.")] = None,
    pd: Annotated[list[str] | None, Parameter(name="--pd", negative="", help="Address of the upstream's PD.")] = None,
    start_ts: Annotated[str | None, Parameter(help="TiCDC's --start-ts.")] = None,
    target_ts: Annotated[str | None, Parameter(help="TiCDC's --target-ts.")] = None,
    name: Annotated[str, Parameter(help="Name of the Changefeed.")] = "imported",
    namespace: Annotated[str | None, Parameter(name=["--namespace", "-n"], help="Its namespace.")] = None,
    as_json: AsJson = False,
) -> None:
    """Convert a TiCDC changefeed's sink URI and configuration into a Changefeed."""
    from changefeed.ticdc.config import TicdcSource, convert, to_yaml

    converted = convert(TicdcSource(sink_uri, _toml(config), tuple(pd or ()), start_ts, target_ts, name, namespace))
    if as_json:
        write_json({"changefeed": converted.resource, "notes": list(converted.notes)})
        return
    sys.stdout.write(to_yaml(converted))
    for note in converted.notes:
        sys.stderr.write(f"note: {note}\n")


def _toml(path: Path | None) -> dict[str, Any]:
    import tomllib

    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise InvalidSpec("--config", f"can't read {path}: {e.strerror}") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise InvalidSpec("--config", f"{path} is not TOML: {e}") from e
