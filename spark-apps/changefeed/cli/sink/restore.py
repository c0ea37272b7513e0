"""`changefeed restore`: restores a sink's tables as of a ts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from changefeed.cli.arguments import AsJson, Tables
from changefeed.cli.output import write_error, write_json, write_text
from changefeed.model.tso import ts_of

if TYPE_CHECKING:
    from changefeed.restore.report import RestoreReport
    from changefeed.restore.restore import RestoreTarget
    from changefeed.restore.schema.table import RestoredTable
    from changefeed.restore.source import RestoreSource

INCOMPLETE = 3


def restore(
    uri: str,
    /,
    *,
    to_ts: str,
    into: str,
    table: Tables = None,
    base: Path | None = None,
    as_json: AsJson = False,
) -> int:
    """Rebuild tables as of a ts from a storage sink's files alone: whole transactions, with all DDLs applied.

    A table can be rebuilt if the changefeed started before the table was created, if the table has been truncated
    since, or from a base. Other tables are reported with the reason, and the exit code is 3; exclude them with
    --table '!shop.other'.

    Parameters
    ----------
    uri
        The sink, as in spec.sink.storage.uri. Credentials come from the environment.
    to_ts
        A ts, or a time with a time zone (2026-01-31T12:00:00Z), at or below the sink's checkpoint.
    into
        A folder to create, for <schema>/<table>.parquet and <table>.sql; or mysql://USER@HOST:PORT, with the password
        in MYSQL_PWD, where the tables must not exist yet.
    base
        A folder with <schema>/<table>.parquet for tables older than the changefeed, as of its start or any later ts up
        to TS.
    """
    from rich.console import Console

    from changefeed.cli.arguments import selects
    from changefeed.cli.sink.verdict import open_progress
    from changefeed.restore.restore import restore as rebuild

    moment, chosen = ts_of(to_ts, "--to-ts"), selects(table)
    with open_progress(Console(file=sys.stderr), silent=as_json) as progress:
        progress.stage("the sink's files")
        source = open_source(uri)
        report = rebuild(source, moment, chosen, lambda tables: _target(into, moment, tables), progress, base)
    if as_json:
        write_json(report.to_json())
    else:
        for each in report.tables:
            write_text(f"{each.table}: {each.rows:,} rows{''.join(f'; {note}' for note in each.notes)}")
        write_left(report, "can't be rebuilt")
        if report.tables:
            write_text(f"As of {report.to_ts}, in {into}.")
    return INCOMPLETE if report.left else 0


def _target(into: str, to_ts: int, tables: Sequence[RestoredTable]) -> RestoreTarget:
    if "://" not in into:
        from changefeed.restore.folder import Folder

        return Folder(Path(into))
    from changefeed.restore.database import Database, Restoring, server_of

    return Restoring(Database(server_of(into, "--into")), to_ts, tables)


def open_source(uri: str) -> RestoreSource:
    from changefeed.objectstore.open import open_store
    from changefeed.restore.source import RestoreSource

    source = RestoreSource(open_store(uri, "URI"))
    if unknown := source.known.unknown:
        write_error("Assumed", f"{unknown} The files are read by TiCDC's default format.", "", as_json=False)
    return source


def write_left(report: RestoreReport, what: str) -> None:
    for each in report.left:
        write_error("Left out", f"{each.table} {what}: {each.why}.", "", as_json=False)
