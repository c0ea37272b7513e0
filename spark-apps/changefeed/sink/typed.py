"""Records as Arrow columns of the types that readers of Parquet and of Iceberg know.

A pure function of records. What has no such type stops the changefeed; it never becomes another value or a NULL.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.errors import NeedsHuman
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.schema.values import first_refused
from changefeed.sink.records import Records

OP, COMMIT_TS, OLD = "_op", "_commit_ts", "_old"

_OURS = {OP, COMMIT_TS, OLD}
_LETTERS = {OP_DELETE: "D", OP_UPDATE: "U", OP_INSERT: "I"}
_MOST_DIGITS = 38
_SMALL = {SqlType.TINYINT, SqlType.SMALLINT, SqlType.MEDIUMINT, SqlType.YEAR}
_U64 = pa.decimal128(20, 0)
_FIXED = {
    SqlType.FLOAT: pa.float32(),
    SqlType.DOUBLE: pa.float64(),
    SqlType.DATE: pa.date32(),
    SqlType.NEW_DATE: pa.date32(),
    SqlType.DATETIME: pa.timestamp("us"),
    SqlType.TIMESTAMP: pa.timestamp("us", "UTC"),
}
_SHOWN = 64  # characters or bytes of a value, in an error
_NEXT = "Leave the column out by spec.sink's columnSelectors, or write a text format (csv or canal-json)."


def schema_of(table: TableInfo, columns: Sequence[ColumnInfo], *, with_old: bool = False) -> pa.Schema:
    """The schema of `typed`, for those `columns` of the table. Raises NeedsHuman for one whose name is ours."""
    # Readers tell names apart as MySQL does: not by case.
    ours = next((column for column in columns if column.name.lower() in _OURS), None)
    if ours is not None:
        raise NeedsHuman(
            f"table {table.full_name} has a column {ours.name}, a name reserved for a column of the changefeed's own.",
            _NEXT,
        )
    fields = [pa.field(column.name, type_of(column)) for column in columns]
    old = [pa.field(OLD, pa.struct(fields))] if with_old and fields else []
    return pa.schema([pa.field(OP, pa.string()), pa.field(COMMIT_TS, pa.int64()), *fields, *old])


def type_of(column: ColumnInfo) -> pa.DataType:
    """TIME is text, as it goes beyond a day; so are decimals of more than 38 digits."""
    if column.type in _SMALL:
        return pa.int32()
    if column.type == SqlType.INT:
        return pa.int64() if column.is_unsigned else pa.int32()
    if column.type == SqlType.BIGINT:
        return _U64 if column.is_unsigned else pa.int64()
    if column.type == SqlType.BIT:
        return _U64 if column.flen > 63 else pa.int64()
    if column.type == SqlType.DECIMAL and 0 < column.flen <= _MOST_DIGITS:
        return pa.decimal128(column.flen, max(column.decimal, 0))
    return _FIXED.get(column.type, pa.binary() if column.is_binary else pa.string())


def typed(records: Records, *, with_old: bool = False) -> pa.RecordBatch:
    """The records, of which TIMESTAMP was mounted in UTC; all columns may be null.

    `_op` is I, U or D. `with_old`: `_old` is the row before an update, null for the other ops; `old_columns` are there.
    Raises NeedsHuman for a value that its column's type does not have: a date with a part that is 0 or that no calendar
    has, text that is not UTF-8.
    """
    columns = records.shown
    schema = schema_of(records.table, columns, with_old=with_old)
    letters = pa.array([_LETTERS[op] for op in range(len(_LETTERS))])
    arrays = [letters.take(pa.array(records.op)), records.commit_ts.cast(pa.int64())]
    arrays += cells(records, records.columns)
    if OLD in schema.names:
        assert records.old_columns is not None, "the mounter was asked for them"
        others = pa.array(records.op != OP_UPDATE)
        old = cells(records, records.old_columns)
        arrays.append(pa.StructArray.from_arrays(old, fields=list(schema.field(OLD).type), mask=others))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def cells(records: Records, arrays: Sequence[pa.Array]) -> list[pa.Array]:
    """The records' columns, or their old ones, as `type_of` says. Raises what `typed` does."""
    return [_cast(records, column, values) for column, values in zip(records.shown, arrays, strict=True)]


def _cast(records: Records, column: ColumnInfo, values: pa.Array) -> pa.Array:
    wanted = type_of(column)
    if pa.types.is_struct(values.type):  # ENUM and SET
        values = values.field("text")
    if not pa.types.is_timestamp(wanted) and not pa.types.is_date(wanted):
        return _as(records, column, values, wanted)
    without_year = pc.fill_null(pc.starts_with(values, "0000"), False)  # Arrow has a year 0
    if pc.any(without_year).as_py():
        raise _untypable(records, column, values, int(np.flatnonzero(without_year)[0]))
    naive = pa.timestamp(wanted.unit) if pa.types.is_timestamp(wanted) else wanted
    return _as(records, column, values, naive).cast(wanted)


def _as(records: Records, column: ColumnInfo, values: pa.Array, wanted: pa.DataType) -> pa.Array:
    try:
        return values.cast(wanted)
    except pa.ArrowInvalid as error:
        raise _untypable(records, column, values, first_refused(values, wanted)) from error


def _untypable(records: Records, column: ColumnInfo, values: pa.Array, row: int) -> NeedsHuman:
    value = values[row].as_py()
    shown = value[:_SHOWN] if isinstance(value, (str, bytes)) else value
    return NeedsHuman(
        f"table {records.table.full_name}, column {column.name}: the value {shown!r} of commit ts "
        f"{records.commit_ts[row]} can't be written as {type_of(column)}.",
        _NEXT,
    )
