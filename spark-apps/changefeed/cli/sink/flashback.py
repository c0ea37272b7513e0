"""`changefeed flashback`: sets rows back to what they were at a ts."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from changefeed.cli.arguments import AsJson, Tables, selects
from changefeed.cli.output import write_json, write_text
from changefeed.cli.sink.restore import INCOMPLETE, open_source, write_left
from changefeed.errors import InvalidSpec
from changefeed.model.tso import ts_of

if TYPE_CHECKING:
    from changefeed.restore.report import RestoreReport


def flashback(
    uri: str,
    /,
    *,
    to_ts: str,
    apply: str | None = None,
    table: Tables = None,
    pd: Annotated[list[str] | None, Parameter(negative="")] = None,
    as_json: AsJson = False,
) -> int:
    """Revert rows from the sink's checkpoint to what they were at a ts, from the sink's files alone.

    Without --apply it only reports how many rows of which tables would be inserted, updated and deleted. Nothing else
    may write to these tables meanwhile. It is safe to run again after a failure. A table whose definition has changed
    since, or whose earlier rows are in no file, is reported with the reason; then nothing is applied and the exit code
    is 3, until you exclude it with --table '!shop.other'.

    Parameters
    ----------
    uri
        The sink, as in spec.sink.storage.uri. Credentials come from the environment.
    to_ts
        A ts, or a time with a time zone (2026-01-31T12:00:00Z), at or below the sink's checkpoint.
    apply
        mysql://USER@HOST:PORT, with the password in MYSQL_PWD: the upstream, or a copy of it that has not moved past
        the checkpoint.
    pd
        Address of the upstream's PD. A ts below its GC safepoint is refused.
    """
    from rich.console import Console

    from changefeed.cli.sink.verdict import open_progress
    from changefeed.restore.database import Database, server_of
    from changefeed.restore.flashback import flashback as set_back

    moment, chosen = ts_of(to_ts, "--to-ts"), selects(table)
    database = None if apply is None else Database(server_of(apply, "--apply"))
    if pd:
        asyncio.run(_check_history(pd, moment))
    with open_progress(Console(file=sys.stderr), silent=as_json) as progress:
        progress.stage("the sink's files")
        report, is_applied = set_back(open_source(uri), moment, chosen, database, progress)
    if as_json:
        write_json(report.to_json() | {"applied": is_applied})
    else:
        _write(report, is_applied)
    return INCOMPLETE if report.left else 0


async def _check_history(addresses: list[str], ts: int) -> None:
    from changefeed.restore.source import moment
    from changefeed.upstream.tikv.access import TikvAccess

    upstream = await TikvAccess(tuple(addresses)).connect()
    try:
        safepoint = await upstream.pd.gc_safepoint()
    finally:
        await upstream.close()
    if ts < safepoint:
        raise InvalidSpec(
            "--to-ts",
            f"{moment(ts)} is below the upstream's GC safepoint {moment(safepoint)}",
            "The upstream can no longer confirm the rows as of then: give a later ts, or leave out --pd.",
        )


def _write(report: RestoreReport, is_applied: bool) -> None:
    for note in report.notes:
        write_text(f"Note: {note}.")
    for each in report.tables:
        counts = f"{each.inserted:,} rows to insert, {each.updated:,} to update, {each.deleted:,} to delete"
        write_text(f"{each.table}: {counts}")
    write_left(report, "can't be set back")
    if is_applied:
        write_text(f"Done: these rows are as they were at {report.to_ts}.")
    else:
        write_text(f"Nothing was changed. From checkpoint {report.checkpoint_ts} back to {report.to_ts}.")
