"""File locations below the warehouse. Tasks need nothing else: importing a catalog's modules takes seconds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from changefeed.schema.table_info import TableInfo
from changefeed.sink.contract import Outputs

WAREHOUSE = "spec.sink.iceberg.warehouse"

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_DATA, _DELETES = ".parquet", "-deletes.parquet"


def folder_of(table: TableInfo) -> str:
    """Return the folder of a table's files, below the warehouse; no other table ever has the same one.

    Readers go by the catalog.
    """
    schema, name = (_UNSAFE.sub("_", part) for part in (table.schema_name, table.name))
    return f"{schema}/{name}-{table.id}"


@dataclass(frozen=True)
class FileNames(Outputs):
    """Names of an entry's files: an output has the `path` of its rows, and its number in a `directory`, `index`.

    `log`: names the changefeed's log, so that no other one's files have these names.
    """

    log: str

    def next(self, series: str, pd_ms: int, last: Mapping[str, Any]) -> dict[str, Any]:
        index = last["index"] + 1 if last.get("directory") == series else 1
        return {"path": f"{series}/{index:010}{_DATA}", "directory": series, "index": index}

    def series(self, table: TableInfo, dispatcher: int, table_version: int) -> str:
        return f"{folder_of(table)}/data/{self.log}/{table_version}/{dispatcher}"


def deletes_file(data_file: str) -> str:
    """Where the equality deletes of an entry stand, beside its rows."""
    return data_file.removesuffix(_DATA) + _DELETES
