"""A table's definition with all that TiDB keeps of it, read from `TableInfo.raw` (pkg/meta/model of pingcap/tidb)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from changefeed.schema.table_info import STATE_PUBLIC, ColumnInfo, TableInfo, as_tidb_writes, name_of

ZEROFILL, AUTO_INCREMENT, NO_DEFAULT, ON_UPDATE_NOW = 64, 512, 4096, 8192
RANGE, HASH, LIST, KEY = 1, 2, 3, 4
WHOLE = -1

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """`expression`: of a generated one. `default_is_expression`: the default is no literal."""

    info: ColumnInfo
    comment: str
    expression: str
    default_is_expression: bool
    auto_random: tuple[int, int] | None = None  # bits, and of how many

    @property
    def name(self) -> str:
        return self.info.name

    def has(self, flag: int) -> bool:
        return bool(self.info.flag & flag)


@dataclass(frozen=True)
class Index:
    """`parts`: a column's name and how much of it is indexed, or an expression and None.

    `is_columnar`: TiFlash's, which is another copy of rows; `is_hidden`: no plan uses it.
    """

    id: int
    name: str
    parts: tuple[tuple[str, int | None], ...]
    is_unique: bool
    is_primary: bool
    is_hidden: bool = False
    is_global: bool = False
    is_columnar: bool = False
    comment: str = ""

    @property
    def shape(self) -> tuple[object, ...]:
        """What makes it another index. It is renamed and hidden as it is; as one of all partitions, TiDB builds it with
        these.
        """
        return self.parts, self.is_unique, self.is_primary, self.comment

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name, length in self.parts if length is not None)

    def of_columns(self, names: Mapping[str, str]) -> Index:
        """With its columns under other names."""
        parts = tuple((part if length is None else names.get(part, part), length) for part, length in self.parts)
        return replace(self, parts=parts)


@dataclass(frozen=True)
class ForeignKey:
    name: str
    columns: tuple[str, ...]
    to: tuple[str, str]  # database, table
    to_columns: tuple[str, ...]
    on_delete: int
    on_update: int


@dataclass(frozen=True)
class Partition:
    """`below`: of RANGE. `values`: of LIST, rows of them."""

    id: int
    name: str
    below: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]
    comment: str


@dataclass(frozen=True)
class Partitioning:
    """By an expression, or by columns."""

    type: int
    expression: str
    columns: tuple[str, ...]
    partitions: tuple[Partition, ...]

    @property
    def method(self) -> tuple[object, ...]:
        return self.type, self.expression, self.columns


@dataclass(frozen=True)
class Ttl:
    column: str
    interval: str
    unit: int
    job_interval: str


@dataclass(frozen=True)
class Definition:
    """One version of a table or view. `columns`: those that a user sees."""

    table: TableInfo

    @classmethod
    def of(cls, table: TableInfo) -> Definition:
        """Raises NeedsHuman for JSON that is not as TiDB writes it."""
        made = cls(table)
        with as_tidb_writes(f"the definition of {table.full_name}"):
            _ = made.columns, made.indexes, made.foreign_keys, made.partitioning, made.ttl  # all are read
        return made

    @property
    def name(self) -> tuple[str, str]:
        return self.table.schema_name, self.table.name

    @property
    def charset(self) -> str:
        return self._text("charset") or "utf8mb4"

    @property
    def collate(self) -> str:
        return self._text("collate")

    @property
    def comment(self) -> str:
        return self._text("comment")

    @property
    def auto_increment(self) -> int:
        """The next value that a statement has asked for; 0: none has."""
        return int(self.table.raw.get("auto_inc_id") or 0)

    @property
    def shard_row_id_bits(self) -> int:
        return int(self.table.raw.get("ShardRowIDBits") or 0)

    @property
    def is_clustered(self) -> bool:
        return self.table.pk_is_handle or self.table.is_common_handle

    @property
    def view(self) -> Json:
        return self.table.raw.get("view") or {}

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        raw = {int(each.get("id") or 0): each for each in self._listed("cols")}
        bits = int(self.table.raw.get("auto_random_bits") or 0), int(self.table.raw.get("auto_random_range_bits") or 64)
        first = self.table.handle_column or next((column for column, _ in self.table.common_handle), None)
        return tuple(
            Column(
                column,
                str(raw[column.id].get("comment") or ""),
                str(raw[column.id].get("generated_expr_string") or ""),
                bool(raw[column.id].get("default_is_expr")),
                bits if bits[0] and first is not None and column.id == first.id else None,
            )
            for column in self.table.columns
            if not column.hidden
        )

    @cached_property
    def indexes(self) -> tuple[Index, ...]:
        """The indexes, with a primary key that is the int handle as the first one."""
        hidden = {
            name_of(each.get("name")): str(each.get("generated_expr_string") or "")
            for each in self._listed("cols")
            if each.get("hidden")
        }
        found = [_index(each, hidden) for each in self._listed("index_info") if _is_public(each)]
        if (handle := self.table.handle_column) is not None:
            found.insert(0, Index(0, "PRIMARY", ((handle.name, WHOLE),), True, True))
        return tuple(found)

    @property
    def primary(self) -> Index | None:
        return next((index for index in self.indexes if index.is_primary), None)

    @cached_property
    def foreign_keys(self) -> tuple[ForeignKey, ...]:
        return tuple(
            ForeignKey(
                name_of(each.get("fk_name")),
                tuple(map(name_of, each.get("cols") or ())),
                (name_of(each.get("ref_schema")) or self.table.schema_name, name_of(each.get("ref_table"))),
                tuple(map(name_of, each.get("ref_cols") or ())),
                int(each.get("on_delete") or 0),
                int(each.get("on_update") or 0),
            )
            for each in self._listed("fk_info")
            if _is_public(each)
        )

    @property
    def checks(self) -> tuple[tuple[str, str], ...]:
        """(name, expression) of those that are enforced."""
        return tuple(
            (name_of(each.get("constraint_name")), str(each.get("expr_string") or ""))
            for each in self._listed("constraint_info")
            if _is_public(each) and each.get("enforced")
        )

    @cached_property
    def partitioning(self) -> Partitioning | None:
        stored = self.table.raw.get("partition") or {}
        if not stored.get("enable"):
            return None
        return Partitioning(
            int(stored.get("type") or 0),
            str(stored.get("expr") or ""),
            tuple(map(name_of, stored.get("columns") or ())),
            tuple(map(_partition, stored.get("definitions") or ())),
        )

    @cached_property
    def ttl(self) -> Ttl | None:
        stored = self.table.raw.get("ttl_info")
        if not stored:
            return None
        unit = int(stored.get("interval_time_unit") or 0)
        interval, every = str(stored.get("interval_expr") or ""), str(stored.get("job_interval") or "")
        return Ttl(name_of(stored.get("column")), interval, unit, every)

    def _text(self, member: str) -> str:
        return str(self.table.raw.get(member) or "")

    def _listed(self, member: str) -> Iterator[Json]:
        return iter(self.table.raw.get(member) or ())


def _index(stored: Json, hidden: Mapping[str, str]) -> Index:
    parts: list[tuple[str, int | None]] = []
    for each in stored.get("idx_cols") or ():
        name, length = name_of(each.get("name")), each.get("length")
        if name in hidden:
            parts.append((hidden[name], None))
        else:
            parts.append((name, WHOLE if length is None else int(length)))
    return Index(
        id=int(stored.get("id") or 0),
        name=name_of(stored.get("idx_name")),
        parts=tuple(parts),
        is_unique=bool(stored.get("is_unique")),
        is_primary=bool(stored.get("is_primary")),
        is_hidden=bool(stored.get("is_invisible")),
        is_global=bool(stored.get("is_global")),
        is_columnar=any(stored.get(kind) for kind in ("vector_index", "inverted_index", "full_text_index")),
        comment=str(stored.get("comment") or ""),
    )


def _partition(stored: Json) -> Partition:
    return Partition(
        int(stored.get("id") or 0),
        name_of(stored.get("name")),
        tuple(map(str, stored.get("less_than") or ())),
        tuple(tuple(map(str, row)) for row in stored.get("in_values") or ()),
        str(stored.get("comment") or ""),
    )


def _is_public(stored: Json) -> bool:
    return int(stored.get("state") or 0) == STATE_PUBLIC
