"""Derives a DDL's new columns from the previous ones, and what no file says about older rows. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from changefeed.reading.schema.columns import TableColumn, default_of
from changefeed.reading.schema.schema_file import ConsumerSchemaFile
from changefeed.reading.schema.statement import ParsedStatement
from changefeed.restore.schema.table import ColumnHistory, TableVersion
from changefeed.schema.ddl.actions import Action

New = Callable[[pa.DataType, Any], ColumnHistory]


def followed(
    before: TableVersion, file: ConsumerSchemaFile, statement: ParsedStatement | None, choice: str, new: New
) -> tuple[list[ColumnHistory], list[str]]:
    """Where the values of the file's columns are stored, and why rows up to its version are not known in them."""
    gaps: list[str] = []
    same = [column.shape for column in before.defined] == [column.shape for column in file.columns]
    if statement is None and not same:
        gaps.append(f"the statement at {file.version} can't be read: {file.query!r}")
    elif statement is not None and (odd := statement.unmade(before.defined, file.columns)):
        gaps.append(f"{file.query!r} does not determine how its columns changed ({odd})")
    if statement is not None and file.type == Action.MULTI_SCHEMA_CHANGE and statement.added:
        # What is added is there for writers a little before the DDL ends, and rows of that time have it in no file.
        gaps.append(f"rows may have got values in {', '.join(statement.added)} before {file.query!r} ended")
    statement = statement or ParsedStatement("")
    old_names = {name: old for old, name in statement.changed.items()}
    stored = []
    for column in file.written:
        name = column.name.lower()
        old = before.of(old_names.get(name, name))
        is_new = old is None or (name in statement.added and name in statement.dropped)
        if old is not None and not is_new and column.keeps_values(old[0]):
            stored.append(old[1])
        elif old is not None and not is_new:
            stored.append(new(column.arrow_type(choice), None))
            gaps.append(f"{column.name} was converted at {file.version}, and no file says how")
        else:
            stored.append(_added(column, choice, new, gaps, file.version))
    return stored, gaps


def _added(column: TableColumn, choice: str, new: New, gaps: list[str], version: int) -> ColumnHistory:
    is_zero = column.default is None and not column.nullable
    default, is_said = (zero_of(column, choice), True) if is_zero else default_of(column, choice)
    is_said = is_said and (default is not None or column.nullable)
    if not is_said:
        gaps.append(f"no file says what rows from before {version} have in {column.name}")
    return new(column.arrow_type(choice), default)


def zero_of(column: TableColumn, choice: str) -> Any:
    """What old rows have in a new column that forbids NULL and has no default; None: nobody knows."""
    kind, digits = column.arrow_type(choice), int(column.scale or 0)
    fraction = f".{'0' * digits}" if digits else ""
    if column.base == "ENUM":
        return 1 if pa.types.is_integer(kind) else column.elems[0]
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return 0
    if pa.types.is_binary(kind):
        return b"\0" * (int(column.precision or 0) if column.base == "BINARY" else 0)
    zeros = {
        "DECIMAL": f"0{fraction}",
        "DATE": "0000-00-00",
        "DATETIME": f"0000-00-00 00:00:00{fraction}",
        "TIMESTAMP": f"0000-00-00 00:00:00{fraction}",
        "TIME": f"00:00:00{fraction}",
        "JSON": None,
        "VECTOR": None,
    }
    return zeros.get(column.base, "")
