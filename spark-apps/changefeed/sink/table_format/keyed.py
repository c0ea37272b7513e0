"""What an entry leaves of the rows of a table that mirrors the upstream's, by primary key. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changefeed.errors import NeedsHuman
from changefeed.model.position import OP_DELETE, OP_UPDATE
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.sink.records import Records
from changefeed.sink.typed import typed

_INEXACT = frozenset({SqlType.FLOAT, SqlType.DOUBLE})
_AT = "_at"


def identifier_columns(table: TableInfo, kind: str) -> tuple[ColumnInfo, ...]:
    """The columns of the primary key, by which rows of an upserted table are told apart. `kind`: of the sink.

    Raises NeedsHuman when there is none that could be.
    """
    by_name = {column.name: column for column in table.columns}
    if table.handle_column is not None:
        return (table.handle_column,)
    primary = next((index for index in table.indexes if index.is_primary), None)
    if primary is None:
        raise _refused(table, kind, "has no primary key")
    columns = tuple(by_name[name] for name, _ in primary.columns)
    if any(column.type in _INEXACT or column.is_generated_virtual for column in columns):
        raise _refused(table, kind, f"has a primary key by which {kind.title()} can't delete")
    raw = table.raw.get("index_info") or ()
    if table.partition_ids and any(each.get("is_primary") and each.get("is_global") for each in raw):
        raise _refused(table, kind, "has a primary key over all partitions, whose rows change their partition")
    return columns


def _refused(table: TableInfo, kind: str, why: str) -> NeedsHuman:
    return NeedsHuman(
        f"Table {table.full_name} {why}: it can't be written with spec.sink.{kind}.mode upsert.",
        "Exclude it by spec.filter.rules, give it a primary key, or create a changefeed with mode: append.",
    )


@dataclass(frozen=True)
class KeyedChanges:
    """Rows of an entry in their order, and what was there before its updates; not empty.

    `rows`: of `schema`, a delete's as it was before. `before`: the keys that updates have found, one for each.
    """

    op: npt.NDArray[np.uint8]
    rows: pa.Table
    before: pa.Table
    names: tuple[str, ...]  # of the key's columns

    @property
    def last(self) -> npt.NDArray[np.int64]:
        """By key, the number of the last event: of a row n, 2n is the end of its old key, and 2n + 1 the row itself.

        An update takes its old key away, then puts its new one: two events, in this order.
        """
        updates = np.flatnonzero(self.op == OP_UPDATE)
        events = pa.concat_tables([self.before.select(self.names), self.rows.select(self.names)])
        at = np.concatenate([2 * updates, 2 * np.arange(len(self.op)) + 1])
        numbers: npt.NDArray[np.int64] = grouped(events.append_column(_AT, pa.array(at)), self.names, "max").to_numpy()
        return np.sort(numbers)


def changes_of(chunks: Sequence[Records], schema: pa.Schema, names: Sequence[str]) -> KeyedChanges | None:
    """None: there are no rows. The mounter was asked for old rows."""
    chunks = [records for records in chunks if len(records.op)]
    if not chunks:
        return None
    return KeyedChanges(
        np.concatenate([records.op for records in chunks]),
        pa.concat_tables([_shown(records, records.columns, schema) for records in chunks]),
        pa.concat_tables([_before(records, schema, names) for records in chunks]),
        tuple(names),
    )


def first_of_each(keys: pa.Table, names: Sequence[str]) -> pa.Table:
    """Each key once, in the order in which they come first."""
    numbers = grouped(keys.append_column(_AT, pa.array(np.arange(keys.num_rows))), names, "min").to_numpy()
    return keys.take(pa.array(np.sort(numbers)))


def grouped(table: pa.Table, names: Sequence[str], function: str) -> pa.ChunkedArray:
    """By key, the least or the greatest `_at`."""
    found = table.combine_chunks().group_by(list(names), use_threads=False).aggregate([(_AT, function)])
    return found.column(f"{_AT}_{function}")


def key_schema(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in names])


def kept(op: npt.NDArray[np.uint8], last: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The rows that are left: those whose last event is a row that was not deleted."""
    rows: npt.NDArray[np.int64] = last[last % 2 == 1] // 2
    left: npt.NDArray[np.int64] = rows[op[rows] != OP_DELETE]
    return left


def _shown(records: Records, columns: list[pa.Array], schema: pa.Schema) -> pa.Table:
    shown = replace(records, columns=columns, old_columns=None)
    return pa.Table.from_batches([typed(shown)]).select(schema.names).cast(schema)


def _before(records: Records, schema: pa.Schema, names: Sequence[str]) -> pa.Table:
    """The keys that updates have found."""
    updates = records.op == OP_UPDATE
    if not updates.any():
        return key_schema(schema, names).empty_table()
    assert records.old_columns is not None, "the mounter was asked for them"
    mask = pa.array(updates)
    old = Records(
        records.table,
        records.op[updates],
        records.is_update[updates],
        records.commit_ts.filter(mask),
        [values.filter(mask) for values in records.old_columns],
        None,
        records.written,
    )
    return _shown(old, old.columns, schema).select(names)
