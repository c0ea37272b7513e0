"""The columns of a stream: those that a table has, as Spark's rows, and three that say what became of each row. Pure.

The schema of a Spark query is fixed when it starts; a table's definition changes. So rows of any definition are shown
in the query's columns: one that the table had not yet, or no more, is NULL, and one that was renamed is known by its
id. What could only be shown by a guess is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from changefeed.errors import NeedsHuman
from changefeed.pipeline.codec.typed import type_of
from changefeed.schema.table_info import ColumnInfo, TableInfo

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"
#: As Delta's change data feed has them.
METADATA = pa.schema(
    [
        pa.field(CHANGE_TYPE, pa.string()),
        pa.field(COMMIT_VERSION, pa.int64()),
        pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", "UTC")),
    ]
)
_OWN_SCHEMA = 'Read the columns that you want with .schema("...") instead.'


def schema_of(table: TableInfo) -> pa.Schema:
    """Raises NeedsHuman for a table with a column of our names."""
    taken = [column.name for column in table.output_columns if column.name.lower() in METADATA.names]
    if taken:
        raise NeedsHuman(f"table {table.full_name} has a column {taken[0]}, which is the source's own.", _OWN_SCHEMA)
    return pa.schema([*(pa.field(column.name, type_of(column)) for column in table.output_columns), *METADATA])


@dataclass(frozen=True)
class ReadSchema:
    """What the query reads. `columns`: Arrow's form of its schema, which each batch must have exactly.

    `as_of_ts`: when it was made, from a definition in which columns had these `ids`, by lower-case name. `is_whole`:
    all columns that the table had then; else the user's own choice.
    """

    columns: pa.Schema
    as_of_ts: int
    is_whole: bool
    ids: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, columns: pa.Schema, table: TableInfo | None, as_of_ts: int, *, is_whole: bool) -> ReadSchema:
        """`table`: as it was at `as_of_ts`, if it was there."""
        there = table.output_columns if table is not None else ()
        return cls(columns, as_of_ts, is_whole, {column.name.lower(): column.id for column in there})

    def shown(self, table: TableInfo) -> tuple[ColumnInfo | None, ...]:
        """The table's column for each field that is not metadata; None: it has none. Raises NeedsHuman."""
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
                    'Read it from a ts on from which it has that type, or leave it out with .schema("...").',
                )
            found.append(column)
        return tuple(found)

    def differences(self, table: TableInfo) -> list[str]:
        """What of a definition these columns don't show as it is, in words; none: they show it all."""
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
    """Raises NeedsHuman when a column of the user's schema has one of our names, but another type."""
    for each in columns:
        if each.name in METADATA.names and each.type != METADATA.field(each.name).type:
            raise NeedsHuman(
                f".schema(...) has {each.name} as {each.type}; it is {METADATA.field(each.name).type}.", "Mend it."
            )


def _fits(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of one type is one of the other."""
    if stored == wanted:
        return True
    if pa.types.is_decimal(stored) and pa.types.is_decimal(wanted):
        whole, fraction = stored.precision - stored.scale, stored.scale
        return bool(wanted.precision - wanted.scale >= whole and wanted.scale >= fraction)
    return (stored, wanted) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))
