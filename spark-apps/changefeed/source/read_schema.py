"""The columns of a query: the table's, as Spark types, plus three with metadata about each change. Pure.

A Spark query's schema is fixed when it starts, but the table's definition can change. Rows of any definition are mapped
to the query's columns: a column that the table doesn't have at that point is NULL, and a renamed one is matched by its
id. Anything that would take a guess is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from changefeed.errors import NeedsHuman
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.sink.typed import type_of

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"
#: Named as in Delta's change data feed.
METADATA = pa.schema(
    [
        pa.field(CHANGE_TYPE, pa.string()),
        pa.field(COMMIT_VERSION, pa.int64()),
        pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", "UTC")),
    ]
)
_OWN_SCHEMA = 'List the columns to read in .schema("...").'


def schema_of(table: TableInfo) -> pa.Schema:
    """Raises NeedsHuman if a column of the table has a reserved name."""
    taken = [column.name for column in table.output_columns if column.name.lower() in METADATA.names]
    if taken:
        raise NeedsHuman(
            f"table {table.full_name} has a column {taken[0]}, a name that the source reserves.", _OWN_SCHEMA
        )
    return pa.schema([*(pa.field(column.name, type_of(column)) for column in table.output_columns), *METADATA])


@dataclass(frozen=True)
class ReadSchema:
    """What the query reads. `columns`: its schema in Arrow, which every batch must match exactly.

    `as_of_ts`: the ts of the definition it was made from. `ids`: that definition's column ids, by lower-case name.
    `is_whole`: it has all columns of that definition; otherwise the user chose them.
    """

    columns: pa.Schema
    as_of_ts: int
    is_whole: bool
    ids: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, columns: pa.Schema, table: TableInfo | None, as_of_ts: int, *, is_whole: bool) -> ReadSchema:
        """`table`: its definition at `as_of_ts`; None if it did not exist."""
        there = table.output_columns if table is not None else ()
        return cls(columns, as_of_ts, is_whole, {column.name.lower(): column.id for column in there})

    def shown(self, table: TableInfo) -> tuple[ColumnInfo | None, ...]:
        """The table's column for each non-metadata field, None where it has none. Raises NeedsHuman."""
        by_id = {column.id: column for column in table.output_columns}
        by_name = {column.name.lower(): column for column in table.output_columns}
        found = []
        for wanted in self._data():
            name = wanted.name.lower()
            column = by_id.get(self.ids.get(name, -1)) or by_name.get(name)
            if column is not None and not _fits(type_of(column), wanted.type):
                raise NeedsHuman(
                    f"table {table.full_name}: column {column.name} holds {type_of(column)}, which can't be read as "
                    f"{wanted.type}.",
                    'Start from a ts at which it has that type, or use .schema("...") to leave it out.',
                )
            found.append(column)
        return tuple(found)

    def differences(self, table: TableInfo) -> list[str]:
        """How this definition differs from the query's columns, in words; empty if it does not."""
        there = {column.name.lower(): column for column in table.output_columns}
        wanted = {each.name.lower(): each for each in self._data()}
        gone = [f"it has no column {each.name}" for name, each in wanted.items() if name not in there]
        new = [f"column {each.name} is new" for name, each in there.items() if name not in wanted and self.is_whole]
        other = [
            f"column {each.name} holds {type_of(there[name])}, not {each.type}"
            for name, each in wanted.items()
            if name in there and not _fits(type_of(there[name]), each.type)
        ]
        return gone + new + other

    def _data(self) -> list[pa.Field]:
        return [each for each in self.columns if each.name not in METADATA.names]


def check_metadata(columns: pa.Schema) -> None:
    """Raises NeedsHuman if the user's schema gives a metadata column the wrong type."""
    for each in columns:
        if each.name in METADATA.names and each.type != METADATA.field(each.name).type:
            raise NeedsHuman(
                f".schema(...) declares {each.name} as {each.type}; it is {METADATA.field(each.name).type}.",
                "Correct its type in .schema(...).",
            )


def _fits(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether `wanted` can hold every value of `stored`."""
    if stored == wanted:
        return True
    if pa.types.is_decimal(stored) and pa.types.is_decimal(wanted):
        whole, fraction = stored.precision - stored.scale, stored.scale
        return bool(wanted.precision - wanted.scale >= whole and wanted.scale >= fraction)
    return (stored, wanted) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))
