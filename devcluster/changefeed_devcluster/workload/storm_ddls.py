"""The DDLs of the storm, each with what it wants: every class, on tables that nobody else alters meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from ..ddl import attributes, columns, databases, indexes, partitions, tables
from ..ddl.tables import NewTable
from ..field_types import PRIMARY_KEY
from ..schema import PRIMARY, Column, ColumnInfo, Table
from ..tidb import Tidb
from .values import CHANGES, column

T = TypeVar("T")

_MOST_TABLES = 28
_MOST_COLUMNS = 12


class NotNow(Exception):
    """There is nothing that the DDL could be done to."""


@dataclass
class Storm:
    """What the DDLs are drawn from."""

    tidb: Tidb
    rng: random.Random
    databases: Sequence[str]
    outside: str
    names: int = 0
    dropped: list[Table] = field(default_factory=list)

    def table(self, busy: Iterable[int], wanted: Callable[[Table], bool] = lambda _: True) -> Table:
        """A table with rows that is as wanted, and that no job alters. Raises NotNow."""
        ours = {*self.databases, self.outside}
        found = [
            table
            for table in self.tidb.tables.values()
            if table.db.name in ours and table.info.has_rows and table.id not in busy and wanted(table)
        ]
        return self.rng.choice(self.some(found))

    def some(self, found: Sequence[T]) -> Sequence[T]:
        """Raises NotNow if there is none."""
        if not found:
            raise NotNow
        return found

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def other_columns(self, table: Table) -> list[ColumnInfo]:
        """Those of no key."""
        keyed = {name for index in table.info.indexes for name in index.columns}
        return [c for c in table.info.public if c.name not in keyed and not c.type.flag & PRIMARY_KEY]


Begun = tuple[Sequence[Table], Iterator[object]]


@dataclass(frozen=True)
class Kind:
    """`begin`: gives the tables that nobody else may alter meanwhile, and the states. Raises NotNow.

    `copies`: rows are copied, so nobody may have them locked.
    """

    name: str
    begin: Callable[[Storm, frozenset[int]], Begun]
    copies: bool = False


KINDS: list[Kind] = []


def _kind(weight: int = 1, copies: bool = False) -> Callable[[Callable[[Storm, frozenset[int]], Begun]], None]:
    def add(begin: Callable[[Storm, frozenset[int]], Begun]) -> None:
        KINDS.extend([Kind(begin.__name__.strip("_").replace("_", " "), begin, copies)] * weight)

    return add


def _once(ddl: Callable[[], object]) -> Iterator[object]:
    """A DDL of one state that sessions see."""
    yield ddl()


def _or_not(ddl: Callable[[], object]) -> Iterator[object]:
    """One that is rolled back where rows are duplicates of each other."""
    with suppress(ValueError):
        yield ddl()


# --- columns ---


@_kind(4)
def _add_column(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: len(table.info.public) < _MOST_COLUMNS)
    after = storm.rng.choice((None, None, columns.FIRST, storm.rng.choice(table.info.public).name))
    return [table], columns.add_column(storm.tidb, table, column(storm.rng, storm.name("added")), after)


@_kind(3)
def _drop_column(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: len(storm.other_columns(table)) > 1)
    return [table], columns.drop_column(storm.tidb, table, storm.rng.choice(storm.other_columns(table)).name)


@_kind(4)
def _modify_column(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: bool(_changeable(storm, table)))
    old, kinds = storm.rng.choice(_changeable(storm, table))
    new = Column(old.name, storm.rng.choice(kinds), old.nullable, None if old.nullable else "1")
    return [table], columns.modify_column(storm.tidb, table, old.name, new)


@_kind(2)
def _rename_column(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: bool(_changeable(storm, table)))
    old, _ = storm.rng.choice(_changeable(storm, table))
    new = Column(storm.name("renamed"), _sql_type(old), old.nullable, old.default)
    return [table], columns.modify_column(storm.tidb, table, old.name, new)


@_kind(2)
def _reorder_columns(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: bool(_changeable(storm, table)))
    old, _ = storm.rng.choice(_changeable(storm, table))
    others = [c.name for c in table.info.public if c.name != old.name]
    new = Column(old.name, _sql_type(old), old.nullable, old.default)
    after = storm.rng.choice([columns.FIRST, *others])
    return [table], columns.modify_column(storm.tidb, table, old.name, new, after)


@_kind(2)
def _set_default(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: bool(_changeable(storm, table)))
    old, _ = storm.rng.choice(_changeable(storm, table))
    return [table], columns.set_default(storm.tidb, table, old.name, "42")


@_kind(2)
def _multi_schema_change(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: len(storm.other_columns(table)) > 1)
    dropped = storm.rng.choice(storm.other_columns(table)).name
    return [table], columns.change_several(storm.tidb, table, column(storm.rng, storm.name("added")), dropped)


def _changeable(storm: Storm, table: Table) -> list[tuple[ColumnInfo, tuple[str, ...]]]:
    return [(c, CHANGES[_sql_type(c)]) for c in storm.other_columns(table) if _sql_type(c) in CHANGES]


def _sql_type(of: ColumnInfo) -> str:
    name = {3: "int", 8: "bigint", 15: "varchar", 254: "char", 246: "decimal"}.get(of.type.tp, "")
    if of.type.unsigned or (of.type.tp in (15, 254) and not of.type.is_text):
        return ""
    if name == "decimal":
        return f"{name}({of.type.flen},{of.type.decimal})"
    return f"{name}({of.type.flen})" if name in ("varchar", "char") else name


# --- indexes ---


@_kind(2)
def _add_index(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: len(table.info.indexes) < 3 and bool(storm.other_columns(table)))
    of = storm.rng.choice(storm.other_columns(table)).name
    is_unique = storm.rng.random() < 0.3
    return [table], _or_not(lambda: indexes.add_index(storm.tidb, table, storm.name("i"), [of], is_unique))


@_kind()
def _add_primary_key(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda t: t.info.pk is None and not t.info.indexes and _has_id(t))
    return [table], _or_not(lambda: indexes.add_index(storm.tidb, table, PRIMARY, ["id"], True))


def _has_id(table: Table) -> bool:
    return any(column.name == "id" and not column.nullable for column in table.info.public)


@_kind()
def _drop_index(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: bool(table.info.secondary))
    return [table], _once(lambda: indexes.drop_index(storm.tidb, table, storm.rng.choice(table.info.secondary).name))


@_kind()
def _rename_index(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: any(not i.is_primary for i in table.info.secondary))
    name = storm.rng.choice([i.name for i in table.info.secondary if not i.is_primary])
    return [table], _once(lambda: indexes.rename_index(storm.tidb, table, name, storm.name("i")))


@_kind()
def _hide_index(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: any(not i.is_primary for i in table.info.secondary))
    name = storm.rng.choice([i.name for i in table.info.secondary if not i.is_primary])
    return [table], _once(lambda: indexes.hide_index(storm.tidb, table, name))


# --- tables ---


@_kind(3)
def _create_table(storm: Storm, busy: frozenset[int]) -> Begun:
    _check_room(storm)
    db = storm.rng.choice([name for name in storm.databases if name in storm.tidb.databases])
    new = _new_table(storm)
    at_once = storm.rng.random() < 0.3
    return [], _once(lambda: tables.create_table(storm.tidb, db, new, at_once=at_once))


@_kind()
def _create_tables(storm: Storm, busy: frozenset[int]) -> Begun:
    _check_room(storm)
    several = [_new_table(storm) for _ in range(3)]
    return [], _once(lambda: tables.create_tables(storm.tidb, storm.databases[0], several))


@_kind(2)
def _drop_table(storm: Storm, busy: frozenset[int]) -> Begun:
    _check_enough(storm)
    table = storm.table(busy)

    def drop() -> None:
        tables.drop_table(storm.tidb, table)
        storm.dropped.append(table)

    return [table], _once(drop)


@_kind(2)
def _recover_table(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.some(storm.dropped)[-1]
    if table.db.name not in storm.tidb.databases or storm.tidb.databases[table.db.name].id != table.db.id:
        raise NotNow
    storm.dropped.remove(table)
    return [table], _once(lambda: tables.recover_table(storm.tidb, table, storm.name("recovered")))


@_kind(3)
def _truncate_table(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy)
    return [table], _once(lambda: tables.truncate_table(storm.tidb, table))


@_kind(3)
def _rename_table(storm: Storm, busy: frozenset[int]) -> Begun:
    """Also into the filter and out of it."""
    table = storm.table(busy)
    names = [table.db.name, *storm.databases, storm.outside]
    db = storm.tidb.databases[storm.rng.choice([name for name in names if name in storm.tidb.databases])]
    return [table], _once(lambda: tables.rename_table(storm.tidb, table, db, storm.name("renamed")))


@_kind(2)
def _swap_tables(storm: Storm, busy: frozenset[int]) -> Begun:
    one = storm.table(busy)
    other = storm.table({*busy, one.id})
    return [one, other], _once(lambda: tables.swap_tables(storm.tidb, one, other))


@_kind(4)
def _set_attribute(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy)
    kind = storm.rng.choice(list(attributes.ATTRIBUTES))
    return [table], _once(lambda: attributes.set_attribute(storm.tidb, table, kind))


def _new_table(storm: Storm) -> NewTable:
    more = [column(storm.rng, f"c{i}") for i in range(storm.rng.randint(1, 4))]
    pk = storm.rng.choice(("id", "id", None))
    return NewTable(storm.name("made"), (Column("id", "bigint"), *more), pk)


def _check_room(storm: Storm) -> None:
    if len(storm.tidb.tables) >= _MOST_TABLES:
        raise NotNow


def _check_enough(storm: Storm) -> None:
    if len(storm.tidb.tables) < _MOST_TABLES // 2:
        raise NotNow


# --- views and sequences ---


@_kind()
def _create_view(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy)
    return [], _once(lambda: tables.create_view(storm.tidb, storm.name("view"), table))


@_kind()
def _replace_view(storm: Storm, busy: frozenset[int]) -> Begun:
    view = _without_rows(storm, "view")
    table = storm.table(busy, lambda table: table.db.id == view.db.id)
    return [], _once(lambda: tables.create_view(storm.tidb, view.info.name, table, replaced=view))


@_kind()
def _drop_view(storm: Storm, busy: frozenset[int]) -> Begun:
    view = _without_rows(storm, "view")
    return [], _once(lambda: tables.drop_view(storm.tidb, view))


@_kind()
def _create_sequence(storm: Storm, busy: frozenset[int]) -> Begun:
    db = storm.tidb.databases[storm.databases[0]]
    return [], _once(lambda: tables.create_sequence(storm.tidb, db, storm.name("sequence")))


@_kind()
def _drop_sequence(storm: Storm, busy: frozenset[int]) -> Begun:
    sequence = _without_rows(storm, "sequence")
    return [], _once(lambda: tables.drop_sequence(storm.tidb, sequence))


def _without_rows(storm: Storm, what: str) -> Table:
    found = [t for t in storm.tidb.tables.values() if t.info.attributes.get(what) and t.db.name in storm.databases]
    return storm.rng.choice(storm.some(found))


# --- partitions ---


@_kind(2)
def _add_partition(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda t: bool(t.info.partitions) and t.info.partitions[-1].below is not None)
    below = (table.info.partitions[-1].below or 0) + 40
    name = storm.name("p")
    return [table], _once(lambda: partitions.add_partition(storm.tidb, table, name, below))


@_kind(2)
def _drop_partition(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: len(table.info.partitions) > 2)
    name = storm.rng.choice(table.info.partitions).name
    return [table], _once(lambda: partitions.drop_partition(storm.tidb, table, name))


@_kind(2)
def _truncate_partition(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: bool(table.info.partitions))
    name = storm.rng.choice(table.info.partitions).name
    return [table], _once(lambda: partitions.truncate_partition(storm.tidb, table, name))


@_kind(2, copies=True)
def _reorganize_partition(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: len(table.info.partitions) > 1)
    before, last = table.info.partitions[-2:]
    middle = ((before.below or 0) + (last.below or 1000)) // 2
    into = {storm.name("p"): middle, storm.name("p"): last.below}
    return [table], _once(lambda: partitions.reorganize_partition(storm.tidb, table, [last.name], into))


@_kind(2)
def _exchange_partition(storm: Storm, busy: frozenset[int]) -> Begun:
    """With a table that is made for it, in a job of its own."""
    table = storm.table(busy, lambda table: bool(table.info.partitions) and table.db.name in storm.databases)
    name = storm.rng.choice(table.info.partitions).name

    def exchange() -> Iterator[object]:
        other = tables.create_like(storm.tidb, table, storm.name("twin"))
        yield other
        yield partitions.exchange_partition(storm.tidb, table, name, other)

    return [table], exchange()


@_kind(copies=True)
def _alter_partitioning(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: table.info.pk == "id")
    into: dict[str, int | None] = {storm.name("p"): 50, storm.name("p"): 100, storm.name("p"): None}
    return [table], _once(lambda: partitions.alter_partitioning(storm.tidb, table, into))


@_kind(copies=True)
def _remove_partitioning(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: bool(table.info.partitions))
    return [table], _once(lambda: partitions.remove_partitioning(storm.tidb, table))


# --- databases ---


@_kind()
def _create_database(storm: Storm, busy: frozenset[int]) -> Begun:
    missing = [name for name in storm.databases if name not in storm.tidb.databases]
    name = storm.some(missing)[0]
    return [], _once(lambda: databases.create_database(storm.tidb, name))


@_kind()
def _drop_database(storm: Storm, busy: frozenset[int]) -> Begun:
    """Not the first one."""
    name = storm.databases[-1]
    inside = [table for table in storm.tidb.tables.values() if table.db.name == name]
    if name not in storm.tidb.databases or any(table.id in busy for table in inside):
        raise NotNow
    return inside, _once(lambda: databases.drop_database(storm.tidb, name))


@_kind()
def _alter_database(storm: Storm, busy: frozenset[int]) -> Begun:
    name = storm.databases[0]
    return [], _once(lambda: databases.alter_database(storm.tidb, name, "utf8mb4", "utf8mb4_general_ci"))


@_kind()
def _concern_no_table(storm: Storm, busy: frozenset[int]) -> Begun:
    kind = storm.rng.choice(list(databases.GLOBAL))
    return [], _once(lambda: databases.run_global(storm.tidb, kind, "near"))
