"""Columns of a Relation against those of a definition. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

from changefeed.schema.table_info import (
    FLAG_NOT_NULL,
    FLAG_PRI_KEY,
    STATE_PUBLIC,
    ColumnInfo,
    IndexInfo,
    TableInfo,
    parse_table_info,
)
from changefeed.upstream.postgresql.pgoutput.messages import Relation, RelationColumn
from changefeed.upstream.postgresql.values.column_types import NearestType, nearest_type

#: The first id of a column, or index, whose number on the server nobody knows. A table has at most 1,600 columns.
MADE = 10_000
Domains = Mapping[int, tuple[int, int]]
_Json = dict[str, Any]


def fits(table: TableInfo, relation: Relation, domains: Domains) -> bool:
    """Whether the definition is that of the Relation, as far as the latter says."""
    return table.qualified == (relation.schema_name, relation.name) and has_columns(table, relation, domains)


def has_columns(table: TableInfo, relation: Relation, domains: Domains) -> bool:
    """The same ones in the same order, and the same key where the Relation names one."""
    ours = [(column.name, _type_of(column)) for column in table.columns]
    theirs = [(column.name, _nearest(column, domains)) for column in relation.columns]
    return ours == theirs and _has_key(_primary(table), relation)


def mended(old: TableInfo | None, relation: Relation, catalog: TableInfo | None, domains: Domains) -> TableInfo:
    """The old definition with the Relation's columns.

    `catalog`: another one, which knows numbers, and names of keys.
    """
    pairs = _paired(old, relation, catalog)
    kept = {was["name"]: said.name for said, was, _ in pairs if was is not None}
    indexes = _indexes(old, relation, catalog, kept)
    key = {part["name"] for index in indexes if index["is_primary"] for part in index["idx_cols"]}
    columns: list[_Json] = []
    for offset, (said, was, number) in enumerate(pairs):
        flag = 0 if was is None else was["type"]["Flag"] & ~(FLAG_PRI_KEY | FLAG_NOT_NULL)
        flag |= (FLAG_PRI_KEY | FLAG_NOT_NULL) * (said.name in key)
        type_ = _nearest(said, domains).to_json(flag)
        made: _Json = {"id": number, "name": said.name, "offset": offset, "type": type_}
        if was is not None and was["type"] | {"Flag": flag} != type_:
            made["origin_default"] = None  # all rows were written anew
        columns.append({"state": STATE_PUBLIC} | (was or {}) | made)
    whole = {
        "id": relation.oid,
        "name": relation.name,
        "cols": columns,
        "index_info": indexes,
        "state": STATE_PUBLIC,
        "upstream": "postgresql",
    }
    return parse_table_info(whole, relation.schema_name)


def _paired(
    old: TableInfo | None, relation: Relation, catalog: TableInfo | None
) -> list[tuple[RelationColumn, _Json | None, int]]:
    """Each with what it was, None if it is new, and its number."""
    before: list[_Json] = [] if old is None else old.to_json()["cols"]
    numbers = {} if catalog is None else {column.name: column.id for column in catalog.columns}
    ids = [column["id"] for column in before]
    newest = max((id_ for id_ in ids if id_ < MADE), default=0)
    free = count(max([MADE - 1, *ids]) + 1)
    pairs: list[tuple[RelationColumn, _Json | None, int]] = []
    for column, place in zip(relation.columns, _places(before, relation, numbers), strict=True):
        if place is not None:
            pairs.append((column, before[place], ids[place]))
        elif numbers.get(column.name, 0) > newest:
            newest = numbers[column.name]
            pairs.append((column, None, newest))
        else:
            pairs.append((column, None, next(free)))
    return pairs


def _places(before: list[_Json], relation: Relation, numbers: Mapping[str, int]) -> list[int | None]:
    """Where each column was; None: it is new. `numbers`: the catalog's, by name.

    The server has columns in the order of their numbers, new ones behind all others. So one that stands behind a
    younger one is another one of the same name, and one of an unknown name ahead of an old one was renamed.
    """
    said = {column.name for column in relation.columns}
    by_name = {column["name"]: place for place, column in enumerate(before)}
    by_number = {column["id"]: place for place, column in enumerate(before) if column["name"] not in said}
    found: list[int | None] = []
    reached = -1
    for column in relation.columns:
        known = by_name.get(column.name, by_number.get(numbers.get(column.name, 0), -1))
        found.append(known if known > reached else None)
        reached = max(reached, known)
    left = [place for place in by_number.values() if place not in found]
    low = -1
    for at, place in enumerate(found):
        high = next((later for later in found[at:] if later is not None), -1)
        if place is None:
            place = found[at] = next((each for each in left if low < each < high), None)
        low = low if place is None else place
    return found


def _indexes(
    old: TableInfo | None, relation: Relation, catalog: TableInfo | None, kept: Mapping[str, str]
) -> list[_Json]:
    """Those of columns that are still there, and the key that the Relation names."""
    found: list[_Json] = []
    for index in () if old is None else old.to_json()["index_info"]:
        names = [part["name"] for part in index["idx_cols"]]
        if all(name in kept for name in names):
            found.append(index | {"idx_cols": [{"name": kept[name], "length": -1} for name in names]})
    primary = next((index for index in found if index["is_primary"]), None)
    key_names = set() if primary is None else {part["name"] for part in primary["idx_cols"]}
    if _has_key(key_names, relation):
        return found
    others = [index for index in found if index is not primary]
    columns = [column.name for column in relation.columns if column.is_identity]
    if not columns:
        return others
    key = _key(columns, relation, catalog)
    return [key, *(index for index in others if index["id"] != key["id"])]


def _key(columns: list[str], relation: Relation, catalog: TableInfo | None) -> _Json:
    """The primary key of these columns, by the catalog's name and order if that has such a one."""
    known: IndexInfo | None = None
    if catalog is not None:
        known = next((index for index in catalog.indexes if {name for name, _ in index.columns} == set(columns)), None)
    names = columns if known is None else [name for name, _ in known.columns]
    return {
        "id": MADE if known is None else known.id,
        "idx_name": f"{relation.name}_pkey" if known is None else known.name,
        "idx_cols": [{"name": name, "length": -1} for name in names],
        "is_unique": True,
        "is_primary": True,
        "state": STATE_PUBLIC,
    }


def _has_key(names: set[str], relation: Relation) -> bool:
    """Whether the Relation's rows are told apart by these columns, as far as it says.

    It says the primary key unless the replica identity is another one; that counts where there is no primary key.
    """
    key = {column.name for column in relation.columns if column.is_identity}
    if relation.replica_identity == "d":
        return key == names
    return relation.replica_identity != "i" or bool(names) or not key


def _primary(table: TableInfo) -> set[str]:
    return {name for index in table.indexes if index.is_primary for name, _ in index.columns}


def _type_of(column: ColumnInfo) -> NearestType:
    return NearestType(column.type, column.flen, column.decimal, column.charset, column.collate)


def _nearest(column: RelationColumn, domains: Domains) -> NearestType:
    return nearest_type(*domains.get(column.type_oid, (column.type_oid, column.typmod)))
