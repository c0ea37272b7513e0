"""How a table is represented in Delta Lake, and what of its rows can follow a DDL. Pure.

Columns are known by their names alone: delta-rs can't write tables with column mapping, and not every reader has it. So
a DDL that does more than add a column writes the table again, as Delta's own documentation advises.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from changefeed.errors import NeedsHuman
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.sink.table_format import keyed
from changefeed.sink.typed import COMMIT_TS, OP, schema_of

_REFUSED = re.compile(r"[ ,;{}()\n\t=]")
_DIGITS = {pa.int32(): 10, pa.int64(): 19}
_WIDER = {pa.int32(): pa.int64(), pa.float32(): pa.float64()}


def table_schema(table: TableInfo, *, upsert: bool) -> pa.Schema:
    """The fields of `sink.typed`; where rows are upserted, without our two.

    Raises NeedsHuman for a table that can't be one.
    """
    if upsert:
        identifier_columns(table)
    return _fields(table, table.output_columns, upsert=upsert)


def file_schema(table: TableInfo, columns: Sequence[ColumnInfo], *, upsert: bool) -> pa.Schema:
    """Return the schema of an entry's file: the table's, and where rows are upserted, `_op` behind it."""
    fields = _fields(table, columns, upsert=upsert)
    return fields.append(pa.field(OP, pa.string())) if upsert else fields


def _fields(table: TableInfo, columns: Sequence[ColumnInfo], *, upsert: bool) -> pa.Schema:
    refused = next((column for column in columns if _REFUSED.search(column.name)), None)
    if refused is not None:
        raise NeedsHuman(
            f"Table {table.full_name} has a column {refused.name!r}: Delta Lake has no such names without column "
            "mapping, which delta-rs can't write.",
            "Rename the column, or exclude the table by spec.filter.rules.",
        )
    ours = {OP, COMMIT_TS} if upsert else set()
    return pa.schema([field for field in schema_of(table, columns) if field.name not in ours])


def identifier_columns(table: TableInfo) -> tuple[ColumnInfo, ...]:
    """The columns of the primary key. Raises NeedsHuman when there is none by which rows could be told apart."""
    return keyed.identifier_columns(table, "delta")


@dataclass(frozen=True)
class Evolution:
    """How a table follows a DDL: each field of `wanted` has the values of a column of before, by name, or NULL."""

    wanted: pa.Schema
    sources: Mapping[str, str]  # field of `wanted` -> column of before
    added: tuple[pa.Field, ...]  # if nothing else is to be done

    @property
    def is_rewritten(self) -> bool:
        """Whether all rows have to be written again."""
        return not self.added and any(self.sources.get(field.name) != field.name for field in self.wanted)


def evolution(was: TableInfo, table: TableInfo, found: pa.Schema, *, upsert: bool) -> Evolution | None:
    """None: `found`, the table's schema, has all that `table` needs, and no more of ours.

    Columns that others have added stay behind ours. Raises NeedsHuman when rows can't follow.
    """
    ours, wanted = (table_schema(each, upsert=upsert) for each in (was, table))
    names = {column.id: column.name for column in was.output_columns}
    sources = {name: name for name in (OP, COMMIT_TS) if name in wanted.names and name in found.names}
    for column in table.output_columns:
        if (source := names.get(column.id)) is not None and source in found.names:
            sources[column.name] = source
    known = {name.lower() for schema in (ours, wanted) for name in schema.names}
    foreign = [field for field in found if field.name.lower() not in known]
    theirs = {field.name.lower(): field.name for field in found if field.name not in ours.names}
    for field in wanted:
        if field.name not in sources and (name := theirs.get(field.name.lower())) is not None:
            raise NeedsHuman(
                f"{table.full_name} can't have the new column {field.name}: somebody has added the column {name}.",
                "Drop that column, or create a new changefeed with a folder of its own.",
            )
        if (source := sources.get(field.name)) is not None:
            _check_type(table, field, found.field(source).type)
    wanted = pa.schema([*wanted, *foreign])
    sources |= {field.name: field.name for field in foreign}
    new = tuple(field for field in wanted if field.name not in sources)
    same = all(
        source == name and found.field(source).type == wanted.field(name).type for name, source in sources.items()
    )
    stays = same and set(found.names) == set(sources)
    if stays and not new:
        return None
    return Evolution(wanted, sources, new if stays else ())


def _check_type(table: TableInfo, field: pa.Field, before: pa.DataType) -> None:
    if not _widens(before, field.type):
        raise NeedsHuman(
            f"{table.full_name}: column {field.name} was {before} and is {field.type} now, which its values can't all "
            "become.",
            "Create a new changefeed with a folder of its own, or exclude the table by spec.filter.rules.",
        )


def _widens(before: pa.DataType, after: pa.DataType) -> bool:
    if before == after or _WIDER.get(before) == after:
        return True
    if pa.types.is_decimal(after):
        if pa.types.is_decimal(before):
            scale, whole = before.scale, before.precision - before.scale
        elif pa.types.is_integer(before):
            scale, whole = 0, _DIGITS[before]
        else:
            return False
        return bool(scale <= after.scale and whole <= after.precision - after.scale)
    return False


def given_values(was: TableInfo, table: TableInfo) -> list[str]:
    """Columns of `table` that give rows of before a value, which no change tells: converted ones, and new ones with a
    default.
    """
    ids, names = {column.id for column in was.output_columns}, {column.name.lower() for column in was.output_columns}
    new = [column for column in table.output_columns if column.id not in ids]
    return [column.name for column in new if column.name.lower() in names or _has_default(column)]


def _has_default(column: ColumnInfo) -> bool:
    return not column.nullable or column.origin_default is not None or column.origin_default_bit is not None
