"""Which row changes are dropped: by transaction, by kind, by value, and by what an update touches.

The rules are TiCDC's (docs/event-filters.md). They meet the rows after updates of unique keys were split: the
halves of such an update count as a delete and an insert. Any rule that fits drops the row; of an update, both sides.
A pure function of rows, definition and configuration (rule 10).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.errors import InvalidSpec, NeedsHuman
from changefeed.filter.columns import frame, value_of
from changefeed.filter.values import BadExpression, Operand
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.schema.time_zones import UTC
from changefeed.schema.values import first_broken, is_broken
from changefeed.spec.filter.filters import EventFilter, Filter
from changefeed.spec.filter.table_filter import TableFilter
from changefeed.upstream.decoders import decoder_of

Mask = npt.NDArray[np.bool_]

VERSION = 2

_KINDS = {OP_DELETE: "delete", OP_UPDATE: "update", OP_INSERT: "insert"}


@dataclass(frozen=True)
class Test:
    """A condition on one side of the changes of one kind."""

    op: int
    side: str  # of RAW_SCHEMA
    fits: pl.Expr
    columns: tuple[ColumnInfo, ...]  # which it needs


@dataclass(frozen=True)
class RowFilter:
    """What of one table's changes is dropped, by the upstream's columns. `table`: as it is written."""

    table: TableInfo
    time_zone: str
    start_ts: tuple[int, ...] = ()  # of transactions
    ops: frozenset[int] = frozenset()  # all changes of these kinds
    tests: tuple[Test, ...] = ()
    touches_only: tuple[frozenset[str], ...] = ()  # updates that change nothing but these columns

    @classmethod
    def of(cls, spec: Filter, table: TableInfo, time_zone: str) -> RowFilter:
        """Raises InvalidSpec, naming field and table, for a condition that the table's columns don't allow."""
        rules = [
            (f"spec.filter.eventFilters[{number}]", rule)
            for number, rule in enumerate(spec.event_filters)
            if TableFilter(rule.matcher, spec.case_sensitive).matches(*table.upstream_name)
        ]
        by = table.decoded_by
        return cls(
            table,
            time_zone,
            start_ts=spec.ignore_txn_start_ts,
            ops=frozenset().union(*(_ops(rule) for _, rule in rules)),
            tests=tuple(test for path, rule in rules for test in _tests(path, rule, by)),
            touches_only=tuple(
                columns for _, rule in rules if (columns := _ignored_columns(rule, by, spec.case_sensitive))
            ),
        )

    @property
    def keeps_all(self) -> bool:
        return not (self.start_ts or self.ops or self.tests or self.touches_only)

    def kept(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Sorted RAW_SCHEMA rows without those that are dropped.

        Raises NeedsHuman for rows that can't be decoded, or on which a condition can't be judged.
        """
        op = rows.column("op").to_numpy()
        dropped = np.isin(op, list(self.ops))
        if self.start_ts:
            dropped |= np.isin(rows.column("start_ts").to_numpy(), np.array(self.start_ts, np.uint64))
        for test in self.tests:
            numbers = np.flatnonzero((op == test.op) & ~dropped)
            if len(numbers):
                dropped[numbers] = self._fits(_at(rows, numbers), test)
        for columns in self.touches_only:
            numbers = np.flatnonzero((op == OP_UPDATE) & ~dropped)
            if len(numbers):
                dropped[numbers] = ~self._changes_others(_at(rows, numbers), columns)
        return rows.filter(pa.array(~dropped)) if dropped.any() else rows

    def _fits(self, rows: pa.RecordBatch, test: Test) -> Mask:
        values = pc.fill_null(rows.column(test.side), b"")
        by = self.table.decoded_by
        arrays = decoder_of(by).rows(by, rows.column("key"), values, self.time_zone, test.columns, are_whole=True)
        for column, array in zip(test.columns, arrays, strict=True):
            if is_broken(column, array):
                raise self._not_judged(column, rows.column("key")[first_broken(array)].as_py())
        found = frame(test.columns, arrays, rows.num_rows).select(test.fits).to_series()
        mask: Mask = found.to_numpy()
        return np.broadcast_to(mask, rows.num_rows)  # a constant is one value

    def _not_judged(self, column: ColumnInfo, key: bytes) -> NeedsHuman:
        return NeedsHuman(
            f"table {self.table.full_name}, {self.table.said_key(key)}: column {column.name} holds bytes that are not "
            "valid UTF-8, so a condition of spec.filter.eventFilters that reads it can't be judged.",
            "Take the column out of the conditions, or exclude the table by a filter rule; then start again by a "
            "rewind (spec.restart), as what was planned keeps its conditions.",
        )

    def _changes_others(self, rows: pa.RecordBatch, ignored: frozenset[str]) -> Mask:
        """Which updates change more than these columns. Values are compared byte by byte, whatever their collation."""
        by = self.table.decoded_by
        wanted = [column for column in by.output_columns if column.name not in ignored]
        keys = rows.column("key")
        # In UTC: two points in time can look the same on another clock.
        new = decoder_of(by).rows(by, keys, rows.column("value"), UTC, wanted, are_whole=True)
        values = pc.fill_null(rows.column("old_value"), b"")
        old = decoder_of(by).rows(by, keys, values, UTC, wanted, are_whole=True)
        changed = np.zeros(rows.num_rows, np.bool_)
        for after, before in zip(new, old, strict=True):
            changed |= _differ(_comparable(after), _comparable(before))
        return changed


def fingerprint(spec: Filter) -> str:
    """What the choice of rows depends on beyond the config: nothing, or this code and the parser (rule 10)."""
    if not any(sql for rule in spec.event_filters for _, _, _, sql in _conditions(rule)):
        return ""
    return f"filter-{VERSION} sqlglot-{version('sqlglot')}"


def _at(rows: pa.RecordBatch, numbers: npt.NDArray[np.intp]) -> pa.RecordBatch:
    return rows if len(numbers) == rows.num_rows else rows.take(pa.array(numbers))


def _ops(rule: EventFilter) -> frozenset[int]:
    wanted = set(rule.ignore_event)
    return frozenset(op for op, name in _KINDS.items() if wanted & {name, "all dml"})


def _conditions(rule: EventFilter) -> Iterator[tuple[str, int, str, str | None]]:
    """Field, kind of change, side of the row, SQL."""
    yield "ignoreInsertValueExpr", OP_INSERT, "value", rule.ignore_insert_value_expr
    yield "ignoreUpdateOldValueExpr", OP_UPDATE, "old_value", rule.ignore_update_old_value_expr
    yield "ignoreUpdateNewValueExpr", OP_UPDATE, "value", rule.ignore_update_new_value_expr
    yield "ignoreDeleteValueExpr", OP_DELETE, "old_value", rule.ignore_delete_value_expr


def _tests(path: str, rule: EventFilter, table: TableInfo) -> Iterator[Test]:
    for name, op, side, sql in _conditions(rule):
        if sql:
            try:
                fits, columns = _compiled(sql, table)
            except BadExpression as error:
                raise InvalidSpec(
                    f"{path}.{name}",
                    f"for table {table.full_name}: {error}",
                    "Fix the condition or the matcher; docs/event-filters.md describes what a condition may contain.",
                ) from None
            yield Test(op, side, fits, columns)


def _compiled(sql: str, table: TableInfo) -> tuple[pl.Expr, tuple[ColumnInfo, ...]]:
    # The parser costs 0.2 s of CPU and 30 MiB in each process: a changefeed without conditions never imports it.
    from changefeed.filter.expression import column_names, condition

    by_name = {column.name.lower(): column for column in table.columns}
    names = column_names(sql)
    values: dict[str, Operand] = {name: value_of(by_name[name]) for name in names & by_name.keys()}
    return condition(sql, values), tuple(by_name[name] for name in sorted(values))


def _ignored_columns(rule: EventFilter, table: TableInfo, case_sensitive: bool) -> frozenset[str]:
    """Those of the rule that the table has and that are in none of its keys, which must never be ignored."""
    wanted = {_fold(name, case_sensitive) for name in rule.ignore_update_only_columns}
    keys = {name for index in table.indexes if index.is_unique or index.is_primary for name, _ in index.columns}
    keys |= {column.name for column in table.columns if column.is_pk}
    there = {column.name for column in table.output_columns if _fold(column.name, case_sensitive) in wanted}
    return frozenset(there - keys)


def _fold(name: str, case_sensitive: bool) -> str:
    return name if case_sensitive else name.casefold()


def _comparable(values: pa.Array) -> pa.Array:
    return pc.struct_field(values, "number") if pa.types.is_struct(values.type) else values


def _differ(left: pa.Array, right: pa.Array) -> Mask:
    """NULL equals NULL."""
    differ = pc.coalesce(pc.not_equal(left, right), pc.xor(left.is_null(), right.is_null()))
    mask: Mask = differ.to_numpy(zero_copy_only=False)
    return mask
