"""A table's definition with its columns as they are written: types, indexes and all that names a column. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from changefeed.schema.masks import HASH_CHARACTERS, Mask
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import (
    FLAG_NOT_NULL,
    FLAG_PRI_KEY,
    FLAG_UNIQUE_KEY,
    ColumnInfo,
    TableInfo,
    column_json,
    name_of,
    parse_table_info,
)

_Json = Mapping[str, Any]
_KEY_FLAGS = FLAG_NOT_NULL | FLAG_PRI_KEY | FLAG_UNIQUE_KEY
_NO_DEFAULT = 4096
_VALUE_FLAGS = 512 | 8192  # AUTO_INCREMENT, ON UPDATE CURRENT_TIMESTAMP: the server would make values of its own
_QUOTED = re.compile(r"`((?:``|[^`])+)`")
_COLUMNAR = ("vector_index", "inverted_index", "full_text_index")


@dataclass(frozen=True)
class WrittenAs:
    """What becomes of a column. `name`: None: it is left out. `path`: of the entry that says so."""

    name: str | None
    mask: Mask | None
    path: str


def names_in(expression: str) -> set[str]:
    """The names that an expression quotes, in lower case, as TiDB stores it."""
    return {name.replace("``", "`").lower() for name in _QUOTED.findall(expression)}


def reshaped(table: TableInfo, changed: Mapping[str, WrittenAs], treats: Callable[[str, str, str], bool]) -> TableInfo:
    """The definition with `changed` columns, which has the one that is given within it.

    `treats`: whether a column, by the names of its database, its table and its own, is written otherwise.
    """
    shape = _Shape(table, changed, treats)
    raw = shape.raw()
    parsed = parse_table_info(raw, table.schema_name)
    masks = tuple((column.id, becomes.mask) for column, becomes in shape.kept() if becomes and becomes.mask)
    return replace(
        table,
        columns=parsed.columns,
        indexes=parsed.indexes,
        raw=raw,
        stored=table,
        masks=masks,
    )


@dataclass(frozen=True)
class _Shape:
    table: TableInfo
    changed: Mapping[str, WrittenAs]
    treats: Callable[[str, str, str], bool]

    def raw(self) -> dict[str, Any]:
        """As the upstream stores a definition."""
        given = self.table.raw if self.table.raw.get("cols") else self.table.to_json()
        raw = dict(given)
        raw["cols"] = list(self._columns(given))
        raw["index_info"] = list(self._indexes(given))
        raw["fk_info"] = [key for each in given.get("fk_info") or () if (key := self._foreign_key(each))]
        raw["constraint_info"] = [
            each for each in given.get("constraint_info") or () if not self._names(str(each.get("expr_string") or ""))
        ]
        ttl = given.get("ttl_info")
        if ttl and name_of(ttl.get("column")).lower() in self._lower:
            raw["ttl_info"] = None
        if any(self.changed[column.name].mask for column in self.table.columns if self._is_changed_key(column)):
            raw["auto_random_bits"] = 0
        return raw

    def kept(self) -> Iterator[tuple[ColumnInfo, WrittenAs | None]]:
        """The columns that are written, those of expressions in indexes among them."""
        hidden = self._hidden_gone
        for column in self.table.columns:
            becomes = self.changed.get(column.name) if not column.hidden else None
            is_gone = column.name in hidden if column.hidden else becomes is not None and becomes.name is None
            if not is_gone:
                yield column, becomes

    @property
    def _lower(self) -> set[str]:
        return {name.lower() for name in self.changed}

    @property
    def _hidden_gone(self) -> set[str]:
        return {
            name_of(each.get("name"))
            for each in self.table.raw.get("cols") or ()
            if each.get("hidden") and self._names(str(each.get("generated_expr_string") or ""))
        }

    def _names(self, expression: str) -> bool:
        return bool(names_in(expression) & self._lower)

    def _is_changed_key(self, column: ColumnInfo) -> bool:
        return column.is_pk and column.name in self.changed

    def _columns(self, given: _Json) -> Iterator[_Json]:
        by_id = {int(each.get("id") or 0): each for each in given.get("cols") or ()}
        for offset, (column, becomes) in enumerate(self.kept()):
            stored = by_id[column.id]
            if becomes is None or becomes.mask is None:
                shown = dict(stored)
            else:
                literal = replace(column, default=None) if stored.get("default_is_expr") else column
                shown = column_json(_masked(literal, becomes.mask)) | {"comment": stored.get("comment") or ""}
            name = column.name if becomes is None else becomes.name
            assert name is not None, "it is kept"
            yield shown | {"name": {"O": name, "L": name.lower()}, "offset": offset}

    def _indexes(self, given: _Json) -> Iterator[_Json]:
        names = {column.name: becomes for column, becomes in self.kept()}
        for index in given.get("index_info") or ():
            parts = [(each, name_of(each.get("name"))) for each in index.get("idx_cols") or ()]
            masks = [mask for _, name in parts if (becomes := names.get(name)) and (mask := becomes.mask)]
            is_lost = any(name not in names for _, name in parts)
            is_lost |= bool(index.get("is_unique")) and not all(mask.keeps_apart for mask in masks)
            is_lost |= bool(masks) and any(index.get(kind) for kind in _COLUMNAR)
            if not is_lost:
                yield {**index, "idx_cols": [_part(each, names[name]) for each, name in parts]}

    def _foreign_key(self, key: _Json) -> _Json | None:
        """None for one that has a column which is written otherwise, on either side."""
        own = {name_of(each) for each in key.get("cols") or ()}
        return None if own & self.changed.keys() or _refers_to(self.table, key, self.treats) else key


def refers_to(table: TableInfo, treats: Callable[[str, str, str], bool]) -> bool:
    """Whether a foreign key of the table names a column that is written otherwise."""
    return any(_refers_to(table, key, treats) for key in table.raw.get("fk_info") or ())


def _refers_to(table: TableInfo, key: _Json, treats: Callable[[str, str, str], bool]) -> bool:
    to = name_of(key.get("ref_schema")) or table.schema_name, name_of(key.get("ref_table"))
    return any(treats(*to, name_of(each)) for each in key.get("ref_cols") or ())


def _part(stored: _Json, becomes: WrittenAs | None) -> _Json:
    if becomes is None or becomes.name is None:
        return stored
    part = {**stored, "name": {"O": becomes.name, "L": becomes.name.lower()}}
    return part | {"length": -1} if becomes.mask is not None and becomes.mask.kind == "hash" else part


def _masked(column: ColumnInfo, mask: Mask) -> ColumnInfo:
    """The column as it is written: computed nowhere downstream, and without defaults that could give values away."""
    plain = replace(
        column,
        flag=column.flag & ~_VALUE_FLAGS,
        default=None,
        default_bit=None,
        origin_default=None,
        origin_default_bit=None,
        is_generated=False,
        is_generated_stored=False,
    )
    match mask.kind:
        case "hash":
            flag = column.flag & _KEY_FLAGS
            return replace(
                plain,
                type=SqlType.VARCHAR,
                flag=flag | (_NO_DEFAULT if flag & FLAG_NOT_NULL else 0),
                flen=HASH_CHARACTERS,
                decimal=0,
                charset="utf8mb4",
                collate="utf8mb4_bin",
                elems=(),
            )
        case "null":
            return replace(plain, flag=plain.flag & ~(FLAG_NOT_NULL | _NO_DEFAULT))
        case "constant":
            return replace(plain, flag=plain.flag & ~_NO_DEFAULT, default=mask.value, origin_default=mask.value)
        case "truncate":
            default, origin = (_cut(value, mask.length) for value in (column.default, column.origin_default))
            return replace(plain, default=default, origin_default=origin)


def _cut(value: object, length: int) -> str | None:
    return value[:length] if isinstance(value, str) else None
