"""The storm's DDLs of columns and indexes."""

from __future__ import annotations

from ..ddl import columns, indexes
from ..tidb.schema import PRIMARY, NamedTable, NewColumn, TidbColumn
from .random_values import CHANGES, column
from .storm import Begun, Kinds, Storm, once, or_not

_MOST_COLUMNS = 12

KINDS = Kinds()

# --- columns ---


@KINDS.add(4)
def _add_column(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: len(table.info.public) < _MOST_COLUMNS)
    after = storm.rng.choice((None, None, columns.FIRST, storm.rng.choice(table.info.public).name))
    return [table], columns.add_column(storm.tidb, table, column(storm.rng, storm.name("added")), after)


@KINDS.add(3)
def _drop_column(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: len(storm.other_columns(table)) > 1)
    return [table], columns.drop_column(storm.tidb, table, storm.rng.choice(storm.other_columns(table)).name)


@KINDS.add(4)
def _modify_column(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: bool(_changeable(storm, table)))
    old, kinds = storm.rng.choice(_changeable(storm, table))
    new = NewColumn(old.name, storm.rng.choice(kinds), old.nullable, None if old.nullable else "1")
    return [table], columns.modify_column(storm.tidb, table, old.name, new)


@KINDS.add(2)
def _rename_column(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: bool(_changeable(storm, table)))
    old, _ = storm.rng.choice(_changeable(storm, table))
    new = NewColumn(storm.name("renamed"), _sql_type(old), old.nullable, old.default)
    return [table], columns.modify_column(storm.tidb, table, old.name, new)


@KINDS.add(2)
def _reorder_columns(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: bool(_changeable(storm, table)))
    old, _ = storm.rng.choice(_changeable(storm, table))
    others = [c.name for c in table.info.public if c.name != old.name]
    new = NewColumn(old.name, _sql_type(old), old.nullable, old.default)
    after = storm.rng.choice([columns.FIRST, *others])
    return [table], columns.modify_column(storm.tidb, table, old.name, new, after)


@KINDS.add(2)
def _set_default(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: bool(_changeable(storm, table)))
    old, _ = storm.rng.choice(_changeable(storm, table))
    return [table], columns.set_default(storm.tidb, table, old.name, "42")


@KINDS.add(2)
def _multi_schema_change(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: len(storm.other_columns(table)) > 1)
    dropped = storm.rng.choice(storm.other_columns(table)).name
    return [table], columns.change_several(storm.tidb, table, column(storm.rng, storm.name("added")), dropped)


def _changeable(storm: Storm, table: NamedTable) -> list[tuple[TidbColumn, tuple[str, ...]]]:
    return [(c, CHANGES[_sql_type(c)]) for c in storm.other_columns(table) if _sql_type(c) in CHANGES]


def _sql_type(of: TidbColumn) -> str:
    name = {3: "int", 8: "bigint", 15: "varchar", 254: "char", 246: "decimal"}.get(of.type.tp, "")
    if of.type.unsigned or (of.type.tp in (15, 254) and not of.type.is_text):
        return ""
    if name == "decimal":
        return f"{name}({of.type.flen},{of.type.decimal})"
    return f"{name}({of.type.flen})" if name in ("varchar", "char") else name


# --- indexes ---


@KINDS.add(2)
def _add_index(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: len(table.info.indexes) < 3 and bool(storm.other_columns(table)))
    of = storm.rng.choice(storm.other_columns(table)).name
    is_unique = storm.rng.random() < 0.3
    return [table], or_not(lambda: indexes.add_index(storm.tidb, table, storm.name("i"), [of], is_unique))


@KINDS.add()
def _add_primary_key(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda t: t.info.pk is None and not t.info.indexes and _has_id(t))
    return [table], or_not(lambda: indexes.add_index(storm.tidb, table, PRIMARY, ["id"], True))


def _has_id(table: NamedTable) -> bool:
    return any(column.name == "id" and not column.nullable for column in table.info.public)


@KINDS.add()
def _drop_index(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: bool(table.info.secondary))
    return [table], once(lambda: indexes.drop_index(storm.tidb, table, storm.rng.choice(table.info.secondary).name))


@KINDS.add()
def _rename_index(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: any(not i.is_primary for i in table.info.secondary))
    name = storm.rng.choice([i.name for i in table.info.secondary if not i.is_primary])
    return [table], once(lambda: indexes.rename_index(storm.tidb, table, name, storm.name("i")))


@KINDS.add()
def _hide_index(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: any(not i.is_primary for i in table.info.secondary))
    name = storm.rng.choice([i.name for i in table.info.secondary if not i.is_primary])
    return [table], once(lambda: indexes.hide_index(storm.tidb, table, name))
