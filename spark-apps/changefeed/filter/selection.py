"""What of a table's changes a changefeed writes: which rows, which columns (docs/event-filters.md, Columns)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from changefeed.errors import InvalidSpec
from changefeed.filter.rows import RowFilter
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.spec.filter.filters import ColumnSelector, Filter
from changefeed.spec.filter.table_filter import ColumnFilter, TableFilter
from changefeed.spec.sink.choice import kind_and_options


@dataclass(frozen=True)
class Selection:
    rows: RowFilter
    columns: tuple[ColumnInfo, ...]

    @classmethod
    def of(cls, config: Mapping[str, Any], table: TableInfo) -> Selection:
        """`config`: the effective resource, of this version or one before.

        Raises InvalidSpec for a condition or a selector that the table does not allow.
        """
        spec = config["spec"]
        filter_ = Filter.model_validate(spec["filter"])
        given = kind_and_options(config)[1].get("columnSelectors", ())
        selectors = [ColumnSelector.model_validate(selector) for selector in given]
        return cls(
            RowFilter.of(filter_, table, spec["timeZone"]),
            written_columns(selectors, table, filter_.case_sensitive),
        )


def written_columns(
    selectors: Iterable[ColumnSelector], table: TableInfo, case_sensitive: bool
) -> tuple[ColumnInfo, ...]:
    """The output columns that the first selector for the table leaves, in their order; without one, all of them.

    Raises InvalidSpec when neither the primary key nor another unique key is left: no reader could tell rows apart.
    """
    for number, selector in enumerate(selectors):
        if TableFilter(selector.matcher, case_sensitive).matches(*table.qualified):
            columns = ColumnFilter(selector.columns)
            left = tuple(column for column in table.output_columns if columns.matches(column.name))
            if not left or not _has_a_key(table, left):
                raise InvalidSpec(
                    f"spec.sink.storage.columnSelectors[{number}].columns",
                    f"{list(selector.columns)} leave no key of table {table.full_name}",
                    f"Select the columns of one: {' or '.join(map(', '.join, _keys(table)))}.",
                )
            return left
    return table.output_columns


def _has_a_key(table: TableInfo, left: Sequence[ColumnInfo]) -> bool:
    names = {column.name for column in left}
    keys = _keys(table)
    return not keys or any(names.issuperset(key) for key in keys)


def _keys(table: TableInfo) -> list[list[str]]:
    """The columns of each: the primary key, then the other unique ones."""
    primary = [column.name for column in table.columns if column.is_pk]
    others = [[name for name, _ in index.columns] for index in table.indexes if index.is_unique]
    return [key for key in (primary, *(other for other in others if other != primary)) if key]
