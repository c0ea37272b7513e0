"""Restored tables as files: `<schema>/<table>.parquet`, with the CREATE TABLE statement in `<table>.sql`."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb

from changefeed.errors import InvalidSpec
from changefeed.restore import parquet
from changefeed.restore.report import Restored
from changefeed.restore.rows import RowChanges
from changefeed.restore.schema.definition import definition, is_as_said
from changefeed.restore.schema.table import RestoredTable
from changefeed.schema.sql.text import quoted


class Folder:
    """All of it appears at once: it is written beside the folder, and what a killed run has left there goes first."""

    def __init__(self, path: Path) -> None:
        """Raises InvalidSpec when something is there."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise InvalidSpec(
                "--into", f"{path} already exists and is not empty", "Give a folder that does not exist yet."
            )
        self._path = path
        self._beside = path.with_name(f".{path.name}.restoring")
        shutil.rmtree(self._beside, ignore_errors=True)
        self._beside.mkdir(parents=True)

    def write(self, table: RestoredTable, db: duckdb.DuckDBPyConnection, changes: RowChanges) -> Restored:
        path = parquet_of(self._beside, table.now.name)
        path.parent.mkdir(exist_ok=True)
        rows, notes = parquet.write(db, changes, table.now, path)
        path.with_name(path.name.removesuffix(".parquet") + ".sql").write_text(script(table))
        return Restored(table.name, rows, tuple(notes))

    def discard(self) -> None:
        shutil.rmtree(self._beside)

    def publish(self) -> None:
        if self._path.exists():
            self._path.rmdir()  # an empty one
        self._beside.rename(self._path)


def parquet_of(folder: Path, name: tuple[str, str]) -> Path:
    """The file of a table, always two levels below `folder`: what a file's name can't hold is percent-encoded."""
    schema, table = map(_as_file_name, name)
    return folder / schema / f"{table}.parquet"


def _as_file_name(name: str) -> str:
    encoded = name.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    return encoded.replace(".", "%2E") if encoded in (".", "..") else encoded


def script(table: RestoredTable) -> str:
    """For a client of a MySQL-compatible server."""
    schema = quoted(table.now.name[0])
    said = (
        ""
        if is_as_said(table)
        else "-- Made of its columns and primary key alone, without other indexes and constraints.\n"
    )
    statements = [f"CREATE DATABASE IF NOT EXISTS {schema}", f"USE {schema}", *definition(table)]
    return said + "".join(f"{statement};\n" for statement in statements)
