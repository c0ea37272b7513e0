"""What of a table's changes a changefeed writes: which rows, which columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from changefeed.filter.rows import RowFilter
from changefeed.filter.selectors import written_columns
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.spec.filter.filters import ColumnSelector, Filter
from changefeed.spec.sink.choice import sink_of


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
        given = sink_of(config)[1].get("columnSelectors", ())
        selectors = [ColumnSelector.model_validate(selector) for selector in given]
        return cls(
            RowFilter.of(filter_, table, spec["timeZone"]),
            written_columns(selectors, table, filter_.case_sensitive),
        )
