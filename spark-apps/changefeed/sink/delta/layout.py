"""Where tables and files stand below the root folder. Tasks need nothing else: importing delta-rs costs memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from changefeed.schema.table_info import TableInfo
from changefeed.sink.contract import Outputs

ROOT = "spec.sink.delta.uri"

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
#: Of a table, files that its log never names: readers and VACUUM leave out folders whose names begin like this.
_STAGED = "_changefeed"


def folder_of(table: TableInfo) -> str:
    """Return the folder of a table, below the root: readers have no catalog, and go by its names.

    Any character beyond ASCII letters, digits, _ and - is ~ with two hex digits for each of its bytes in UTF-8, since
    stores, URLs and readers differ in what they make of it.
    """
    return "/".join(_UNSAFE.sub(_in_hex, name) for name in table.qualified)


def _in_hex(found: re.Match[str]) -> str:
    return "".join(f"~{byte:02X}" for byte in found[0].encode())


@dataclass(frozen=True)
class DeltaFiles(Outputs):
    """Names of an entry's file: an output has its `path`, and its number in a `directory`, `index`.

    `log`: names the changefeed's log, so that no other one's files have these names. `is_staged`: the file is not the
    table's, but says what is to be merged into it.
    """

    log: str
    is_staged: bool = False

    def next(self, series: str, pd_ms: int, last: Mapping[str, Any]) -> dict[str, Any]:
        index = last["index"] + 1 if last.get("directory") == series else 1
        return {"path": f"{series}/{index:010}.parquet", "directory": series, "index": index}

    def series(self, table: TableInfo, dispatcher: int, table_version: int) -> str:
        folder = f"{folder_of(table)}/{_STAGED}" if self.is_staged else folder_of(table)
        return f"{folder}/{self.log}/{table_version}/{dispatcher}"
