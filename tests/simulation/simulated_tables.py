"""Definitions of the simulated tables: each version differs from every other."""

from __future__ import annotations

from functools import cache

from changefeed.log.records import PlanEntry
from changefeed.schema.table_info import TableInfo, parse_table_info
from changefeed.sink.storage.schema_file import SchemaFile


@cache
def definition(table: int, version: int) -> TableInfo:
    """Return the definition of the table after the DDL at `version`."""
    column = {"id": 1, "name": f"c{version}", "offset": 0, "type": {"Tp": 3}, "state": 5}
    return parse_table_info({"id": table, "name": f"t{table}", "cols": [column], "state": 5}, "s")


def schema_file_of(table: int, version: int) -> str:
    """The path of the file that tells readers of it."""
    return SchemaFile.of(definition(table, version), version).path


def path_of(entry: PlanEntry) -> str:
    return str(entry.output["path"])
