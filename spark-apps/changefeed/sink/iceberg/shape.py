"""How a table is represented in Iceberg. Pure.

A field's id is its column's id plus a constant: TiDB never reuses an id, and keeps it when a column is renamed, moved
or widened. So a task knows the ids from the plan alone, and files from before a DDL are still read correctly.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
)

from changefeed.errors import NeedsHuman
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.sink.table_format import keyed
from changefeed.sink.typed import COMMIT_TS, OP, schema_of

_ID = b"PARQUET:field_id"
OP_ID, COMMIT_TS_ID = 1, 2
_OURS = {OP: OP_ID, COMMIT_TS: COMMIT_TS_ID}
_WIDER: dict[type, type] = {IntegerType: LongType, FloatType: DoubleType}


def field_id(column: ColumnInfo) -> int:
    return len(_OURS) + column.id


def file_schema(table: TableInfo, columns: Sequence[ColumnInfo], *, upsert: bool) -> pa.Schema:
    """Return a data file's schema: the fields of `sink.typed`, with ids; where rows are upserted, without our two."""
    ids = _OURS | {column.name: field_id(column) for column in columns}
    keys = {column.name for column in identifier_columns(table)} if upsert else set()
    fields = [field for field in schema_of(table, columns) if not (upsert and field.name in _OURS)]
    return pa.schema(
        [field.with_metadata({_ID: str(ids[field.name])}).with_nullable(field.name not in keys) for field in fields]
    )


def table_schema(table: TableInfo, *, upsert: bool, schema_id: int = 0) -> Schema:
    """Raises NeedsHuman for a table that can't be one."""
    found = pyarrow_to_schema(file_schema(table, table.output_columns, upsert=upsert))
    keys = [field_id(column) for column in identifier_columns(table)] if upsert else []
    return Schema(*found.fields, schema_id=schema_id, identifier_field_ids=keys)


def identifier_columns(table: TableInfo) -> tuple[ColumnInfo, ...]:
    """The columns of the primary key. Raises NeedsHuman when there is none by which rows could be told apart."""
    return keyed.identifier_columns(table, "iceberg")


def check_evolution(table: TableInfo, before: Schema, after: Schema) -> None:
    """Raises NeedsHuman when files of `before` can't be read as `after`."""
    there = {field.field_id: field for field in before.fields}
    for field in after.fields:
        known = there.get(field.field_id)
        if known is not None and not _widens(known.field_type, field.field_type):
            raise NeedsHuman(
                f"{table.full_name}: column {field.name} was {known.field_type} and is {field.field_type} now, which "
                "no Iceberg table can become.",
                "Create a new changefeed with a namespacePrefix of its own, or exclude the table by spec.filter.rules.",
            )


def with_foreign(table: Table, ours: Schema, wanted: Schema) -> Schema:
    """`wanted`, with the columns behind it that others have added to the table. `ours`: all that are not theirs.

    Raises NeedsHuman when a new column of ours can't be told from one of theirs, or from one that they have dropped.
    """
    ids = {field.field_id for schema in (ours, wanted) for field in schema.fields}
    foreign = [field for field in table.schema().fields if field.field_id not in ids]
    names = {field.name.lower(): field.name for field in foreign}
    taken = {field.field_id: field.name for schema in table.metadata.schemas for field in schema.fields}
    there = {field.field_id for field in ours.fields}
    for field in wanted.fields:
        theirs = names.get(field.name.lower()) or taken.get(field.field_id)
        if field.field_id not in there and theirs is not None:
            raise NeedsHuman(
                f"Table {'.'.join(table.name())} can't have the new column {field.name}: somebody has added the column "
                f"{theirs}, with the same name or the same field id ({field.field_id}).",
                "Create a new changefeed with a namespacePrefix of its own, and keep columns of your own in tables of "
                "your own.",
            )
    return Schema(*wanted.fields, *foreign, identifier_field_ids=wanted.identifier_field_ids)


def lost_values(before: Schema, after: Schema) -> list[NestedField]:
    """Fields whose column was converted: it has another id, and rows of before have no value in it."""
    ids, names = {field.field_id for field in before.fields}, {field.name.lower() for field in before.fields}
    return [field for field in after.fields if field.field_id not in ids and field.name.lower() in names]


def _widens(before: IcebergType, after: IcebergType) -> bool:
    if before == after or _WIDER.get(type(before)) is type(after):
        return True
    if isinstance(before, DecimalType) and isinstance(after, DecimalType):
        return before.scale == after.scale and before.precision <= after.precision
    return False
