"""Writes a table's rows as one Parquet file that any tool can read.

Types are those of the storage sink's Parquet (docs/sink-files.md). A column with a value that its type can't represent
(a zero date) becomes text, and text that is not UTF-8 becomes bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from changefeed.reading.schema.columns import TableColumn
from changefeed.reading.scratch import KINDS
from changefeed.restore.rows import RowChanges, batches
from changefeed.restore.schema.table import ColumnHistory, TableVersion
from changefeed.restore.source import NotRestorable

_SMALL = ("TINYINT", "SMALLINT", "MEDIUMINT", "INT", "YEAR")
_MOST_DIGITS = 38


def write(
    db: duckdb.DuckDBPyConnection, changes: RowChanges, segment: TableVersion, path: Path
) -> tuple[int, list[str]]:
    """How many rows, in the order of the key; and which columns are not of their type, for a person."""
    wanted = [_typed(column, stored) for column, stored in zip(segment.columns, segment.stored, strict=True)]
    chosen, notes = _chosen(db, changes.table, segment, wanted)
    select = ", ".join(
        f"{value} AS {identifier(column.name)}" for value, column in zip(chosen, segment.columns, strict=True)
    )
    db.execute(
        f"COPY (SELECT {select} FROM {changes.table} ORDER BY {changes.key}) TO {literal(str(path))} "
        "(FORMAT parquet, COMPRESSION zstd)"
    )
    return changes.count(), notes


def _chosen(
    db: duckdb.DuckDBPyConnection, table: str, segment: TableVersion, wanted: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return for each column the first of its type, text and bytes that all of its values have."""
    chosen, notes = [], []
    for column, stored, value in zip(segment.columns, segment.stored, wanted, strict=True):
        if stored.type != pa.string():
            chosen.append(value)
            continue
        text = f"decode({stored.name})"
        ((odd, broken),) = db.execute(
            f"SELECT count(*) FILTER (TRY({value}) IS NULL), count(*) FILTER (TRY({text}) IS NULL) FROM {table} "
            f"WHERE {stored.name} IS NOT NULL"
        ).fetchall()
        chosen.append(stored.name if broken else text if odd else value)
        if broken:
            notes.append(f"{column.name} is bytes: {broken} of its values are not UTF-8")
        elif odd:
            notes.append(f"{column.name} is text: {odd} of its values are not {column.type}")
    return chosen, notes


def _typed(column: TableColumn, stored: ColumnHistory) -> str:
    """Its value by its type, of what a file has."""
    name, base, digits = stored.name, column.base, int(column.precision or 0)
    if base in ("ENUM", "SET") and stored.type == pa.uint64():
        return _names(name, base, column.elems)
    if base in _SMALL and not (base == "INT" and column.is_unsigned):
        return f"{name}::INTEGER"
    if (base == "BIGINT" and column.is_unsigned) or (base == "BIT" and digits > 63):
        return f"{name}::DECIMAL(20, 0)"
    if pa.types.is_integer(stored.type):
        return f"{name}::BIGINT"
    if stored.type != pa.string():
        return name
    text = f"decode({name})"
    match base:
        case "DECIMAL" if digits <= _MOST_DIGITS:
            return f"{text}::DECIMAL({digits}, {column.scale or 0})"
        case "DATE":
            return f"{text}::DATE"
        case "DATETIME":
            return f"{text}::TIMESTAMP"
        case "TIMESTAMP":
            return f"({text} || '+00:00')::TIMESTAMPTZ"
        case _:
            return text


def _names(number: str, base: str, elems: Sequence[str]) -> str:
    """Return the SQL for the names behind an ENUM's or a SET's number; 0 of an ENUM is the value of none."""
    listed = f"([{', '.join(map(literal, elems))}]::VARCHAR[])"
    if base == "ENUM":
        return f"CASE WHEN {number} = 0 THEN '' ELSE {listed}[{number}::BIGINT] END"
    chosen = f"[e for e, i in {listed} if ({number} >> (i - 1)) & 1 = 1]"
    return f"CASE WHEN {number} IS NULL THEN NULL ELSE array_to_string({chosen}, ',') END"


def read(db: duckdb.DuckDBPyConnection, path: Path, segment: TableVersion) -> Iterator[pa.Table]:
    """The rows of a file that `write` has made, or of any with the table's columns: c0..cn, as a sink's are read.

    Raises NotRestorable for one that has not the columns.
    """
    source = f"read_parquet({literal(str(path))})"
    try:
        described = db.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()
    except duckdb.Error as error:
        raise NotRestorable(
            f"{path} is not a Parquet file: {error}.", "Give the folder of an earlier restore."
        ) from None
    has = {str(name).lower(): (str(name), str(kind)) for name, kind, *_ in described}
    if missing := [column.name for column in segment.columns if column.name.lower() not in has]:
        raise NotRestorable(
            f"{path} has no column {', '.join(missing)}.", "Give the table as it was when the changefeed started."
        )
    values = [
        f"{_stored(column, stored, *has[column.name.lower()])} AS c{number}"
        for number, (column, stored) in enumerate(zip(segment.columns, segment.stored, strict=True))
    ]
    for batch in batches(db, f"SELECT {', '.join(values)} FROM {source}"):
        yield pa.Table.from_batches([batch])


def _stored(column: TableColumn, stored: ColumnHistory, name: str, kind: str) -> str:
    """What a sink's file has for a value of a Parquet file; `kind`: DuckDB's, of the file's column."""
    value = identifier(name)
    if stored.type == pa.uint64() and column.base in ("ENUM", "SET") and kind == "VARCHAR":
        return _number(value, column.base, column.elems)
    if stored.type == pa.binary() or kind == "BLOB":
        return value
    if stored.type != pa.string():
        return f"{value}::{KINDS[stored.type]}"
    if kind.startswith("TIMESTAMP"):
        digits = int(column.scale or 0)
        text = f"strftime(make_timestamp(epoch_us({value})), '%Y-%m-%d %H:%M:%S.%f')"
        value = f"{text}[:{len('YYYY-MM-DD HH:MM:SS') + (digits + 1 if digits else 0)}]"
    elif column.base == "DECIMAL" and kind != "VARCHAR":
        value = f"{value}::DECIMAL({column.precision}, {column.scale or 0})"
    return f"encode({value}::VARCHAR)"


def _number(text: str, base: str, elems: Sequence[str]) -> str:
    listed = f"[{', '.join(map(literal, elems))}]::VARCHAR[]"
    if base == "ENUM":
        return f"CASE WHEN {text} = '' THEN 0 ELSE list_position({listed}, {text}) END::UBIGINT"
    bits = [
        f"list_contains(string_split({text}, ','), {literal(elem)})::UBIGINT << {n}" for n, elem in enumerate(elems)
    ]
    return " | ".join(f"({bit})" for bit in bits)


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
