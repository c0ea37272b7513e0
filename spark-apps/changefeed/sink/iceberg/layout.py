"""File locations below the warehouse. Tasks need nothing else: importing a catalog's modules takes seconds."""

from __future__ import annotations

import re
from dataclasses import dataclass

from changefeed.schema.table_info import TableInfo

WAREHOUSE = "spec.sink.iceberg.warehouse"

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_DATA, _DELETES = ".parquet", "-deletes.parquet"


def folder_of(table: TableInfo) -> str:
    """Of a table's files, below the warehouse; no other table ever has the same one. Readers go by the catalog."""
    schema, name = (_UNSAFE.sub("_", part) for part in (table.schema_name, table.name))
    return f"{schema}/{name}-{table.id}"


@dataclass(frozen=True)
class FileNames:
    """Implements Names. `log`: names the changefeed's log, so that no other one's files have these names."""

    log: str

    def date(self, pd_ms: int) -> str:
        return ""

    def directory(self, place: str, date: str) -> str:
        return place

    def data_file(self, directory: str, index: int) -> str:
        return f"{directory}/{index:010}{_DATA}"

    def place(self, table: TableInfo, dispatcher: int, table_version: int) -> str:
        return f"{folder_of(table)}/data/{self.log}/{table_version}/{dispatcher}"


def deletes_file(data_file: str) -> str:
    """Where the equality deletes of an entry stand, beside its rows."""
    return data_file.removesuffix(_DATA) + _DELETES
