"""`Columns`: from a table's columns upstream to those that are written (`spec.columns`).

Pure. A table is shaped where it is routed (`routing.routes`), so all that is written of it, and every reader of what is
written, knows the written columns alone.

1. *Of the entries for a column* the first that renames it gives its name, and the first of the others its content.
2. *Keys* tell rows apart: their columns may be renamed and hashed. So may those that partitions go by not even be that.
3. *What follows from a masked column is masked, too*: a generated column that is computed from one is refused unless an
   entry is for it. Indexes of expressions over one, and checks, are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from changefeed.errors import InvalidSpec
from changefeed.routing.shaping import WrittenAs, names_in, refers_to, reshaped
from changefeed.schema import table_info as ti
from changefeed.schema.masks import Mask
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo, TableInfo, name_of
from changefeed.spec.filter.columns import ColumnAction
from changefeed.spec.filter.table_filter import ColumnFilter, TableFilter

_BITS = {SqlType.TINYINT: 8, SqlType.SMALLINT: 16, SqlType.MEDIUMINT: 24, SqlType.INT: 32, SqlType.BIGINT: 64}
_REALS = frozenset({SqlType.FLOAT, SqlType.DOUBLE})
_TEXTS = ti.STRINGS | ti.BLOBS
_WHOLE = re.compile(r"-?\d+")


@dataclass(frozen=True)
class _ColumnEntry:
    path: str
    tables: TableFilter = field(compare=False)
    columns: ColumnFilter = field(compare=False)
    action: ColumnAction


@dataclass(frozen=True)
class Columns:
    given: tuple[ColumnAction, ...] = ()
    case_sensitive: bool = False

    @classmethod
    def of(cls, given: Iterable[Mapping[str, Any]], case_sensitive: bool) -> Self:
        """`given`: spec.columns of the effective resource."""
        return cls(tuple(map(ColumnAction.model_validate, given)), case_sensitive)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Names of those that have keys of hashes."""
        return tuple(sorted({each.hash.secret_ref.name for each in self.given if each.hash is not None}))

    def may_shape(self, schema: str, table: str) -> bool:
        """Whether some entry is for the table, by its name upstream."""
        return any(entry.tables.matches(schema, table) for entry in self._entries)

    def shaped(self, table: TableInfo) -> TableInfo:
        """The table, as the upstream has it, with the columns that are written.

        Raises InvalidSpec for a column that can't be written as an entry says.
        """
        if not self.given or table.is_view or table.is_sequence:
            return table
        columns = table.columns if self.may_shape(*table.qualified) else ()
        said = {column.name: self._becomes(table, column) for column in columns if not column.hidden}
        changed = {name: becomes for name, becomes in said.items() if becomes is not None}
        if not changed and not refers_to(table, self._treats):
            return table
        _check_keys(table, changed)
        _check_generated(table, changed)
        shaped = reshaped(table, changed, self._treats)
        _check_names(table, shaped, changed)
        return shaped

    @cached_property
    def _entries(self) -> tuple[_ColumnEntry, ...]:
        return tuple(
            _ColumnEntry(
                f"spec.columns[{number}]",
                TableFilter(action.match, self.case_sensitive),
                ColumnFilter(action.columns),
                action,
            )
            for number, action in enumerate(self.given)
        )

    def _of(self, schema: str, table: str, column: str) -> Iterator[_ColumnEntry]:
        return (each for each in self._entries if each.tables.matches(schema, table) and each.columns.matches(column))

    def _treats(self, schema: str, table: str, column: str) -> bool:
        return next(self._of(schema, table, column), None) is not None

    def _becomes(self, table: TableInfo, column: ColumnInfo) -> WrittenAs | None:
        """None: the column is written as it is."""
        entries = list(self._of(*table.qualified, column.name))
        if not entries:
            return None
        renames = next((each for each in entries if each.action.rename is not None), None)
        other = next((each for each in entries if each.action.rename is None), None)
        name = column.name
        if renames is not None and renames.action.rename is not None:
            name = renames.action.rename.replace("{column}", column.name)
        first = other or renames
        assert first is not None, "there are entries"
        if other is not None and other.action.drop:
            return WrittenAs(None, None, other.path)
        mask = None if other is None else _mask(other.action)
        if mask is not None and (why := _unfit(column, mask)):
            raise InvalidSpec(
                f"{first.path}.columns",
                f"column {column.name} of {table.full_name} can't be {mask}: {why}",
                "Give it an entry of its own before this one, or exclude it by a rule with !.",
            )
        return WrittenAs(name, mask, first.path)


def _mask(action: ColumnAction) -> Mask:
    if action.hash is not None:
        return Mask("hash", secret=action.hash.secret_ref.name)
    if action.truncate is not None:
        return Mask("truncate", length=action.truncate)
    return Mask("null") if action.set_null else Mask("constant", value=action.constant or "")


def _unfit(column: ColumnInfo, mask: Mask) -> str:
    """Why values of the column can't be masked so; "": they can."""
    type_name = ti.column_type_name(column)
    if column.is_generated_virtual:
        return "it is virtual, and no row has a value of it; drop it"
    if mask.kind == "hash" and column.type in _REALS:
        return f"{type_name} has no exact text"
    if mask.kind == "truncate" and column.type not in _TEXTS:
        return f"{type_name} is neither text nor binary"
    if mask.kind == "constant":
        return _unfit_constant(column, mask.value, type_name)
    return ""


def _unfit_constant(column: ColumnInfo, value: str, type_name: str) -> str:
    if column.type in _BITS:
        bits = _BITS[column.type]
        low, high = (0, (1 << bits) - 1) if column.is_unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
        fits = _WHOLE.fullmatch(value) is not None and low <= int(value) <= high
        return "" if fits else f"{type_name} has whole numbers from {low} to {high}"
    if column.type not in _TEXTS:
        return f"{type_name} is neither text nor integer"
    longest = column.flen
    length = len(value.encode()) if column.is_binary or column.type in ti.BLOBS else len(value)
    return f"it holds {longest} at most" if 0 <= longest < length else ""


def _check_keys(table: TableInfo, changed: Mapping[str, WrittenAs]) -> None:
    keys, parts = _key_columns(table), _partitioned_by(table)
    for name, becomes in changed.items():
        if name.lower() in parts:
            raise InvalidSpec(
                f"{becomes.path}.columns",
                f"column {name} of {table.full_name} says which partition a row is in, and can't be written otherwise",
                "Exclude it by a rule with !, or exclude the table by spec.filter.rules.",
            )
        if name in keys and (becomes.name is None or (becomes.mask is not None and not becomes.mask.keeps_apart)):
            what = "dropped" if becomes.name is None else str(becomes.mask)
            raise InvalidSpec(
                f"{becomes.path}.columns",
                f"column {name} of {table.full_name} is in the key that tells rows apart, and can't be {what}",
                "Hash it instead (hash), or exclude it by a rule with !.",
            )


def _key_columns(table: TableInfo) -> frozenset[str]:
    """The primary key, or else all NOT NULL unique ones."""
    primary = {column.name for column in table.columns if column.is_pk}
    primary |= {name for index in table.indexes if index.is_primary for name, _ in index.columns}
    if primary:
        return frozenset(primary)
    nullable = {column.name for column in table.columns if column.nullable}
    unique = [{name for name, _ in index.columns} for index in table.indexes if index.is_unique]
    return frozenset().union(*(names for names in unique if not names & nullable))


def _partitioned_by(table: TableInfo) -> set[str]:
    """Names in lower case."""
    partition = table.raw.get("partition") or {}
    if not partition.get("enable"):
        return set()
    return names_in(str(partition.get("expr") or "")) | {
        name_of(each).lower() for each in partition.get("columns") or ()
    }


def _check_generated(table: TableInfo, changed: Mapping[str, WrittenAs]) -> None:
    lower = {name.lower() for name in changed}
    for stored in table.raw.get("cols") or ():
        name, expression = name_of(stored.get("name")), str(stored.get("generated_expr_string") or "")
        if stored.get("hidden") or not expression:
            continue
        becomes = changed.get(name)
        if becomes is not None and (becomes.name is None or becomes.mask is not None):
            continue
        if from_ := sorted(names_in(expression) & lower):
            raise InvalidSpec(
                "spec.columns",
                f"column {name} of {table.full_name} is computed from {', '.join(from_)}, which is written otherwise",
                f"Drop {name}, too; or hash it, if it is STORED.",
            )


def _check_names(table: TableInfo, shaped: TableInfo, changed: Mapping[str, WrittenAs]) -> None:
    seen: dict[str, str] = {}
    by_id = {column.id: column.name for column in table.columns}
    for column in shaped.columns:
        if (other := seen.get(column.name.lower())) is not None:
            path = next(each.path for name, each in changed.items() if name in (other, by_id[column.id]))
            raise InvalidSpec(
                f"{path}.rename",
                f"columns {other} and {by_id[column.id]} of {table.full_name} would both be written as {column.name}",
                'Give each a name of its own, as by rename: "{column}_hash".',
            )
        seen[column.name.lower()] = by_id[column.id]
    if not shaped.output_columns:
        raise InvalidSpec(
            "spec.columns", f"no column of {table.full_name} is left", "Exclude the table by spec.filter.rules."
        )
