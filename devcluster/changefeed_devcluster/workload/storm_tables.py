"""The storm's DDLs of tables, views, partitions and databases."""

from __future__ import annotations

from collections.abc import Iterator

from ..ddl import attributes, databases, partitions, tables
from ..ddl.tables import NewTable
from ..tidb.schema import NamedTable, NewColumn
from .random_values import column
from .storm import Begun, Kinds, NothingToAlter, Storm, once

_MOST_TABLES = 28

KINDS = Kinds()

# --- tables ---


@KINDS.add(3)
def _create_table(storm: Storm, busy: frozenset[int]) -> Begun:
    _check_room(storm)
    db = storm.rng.choice([name for name in storm.databases if name in storm.tidb.databases])
    new = _new_table(storm)
    at_once = storm.rng.random() < 0.3
    return [], once(lambda: tables.create_table(storm.tidb, db, new, at_once=at_once))


@KINDS.add()
def _create_tables(storm: Storm, busy: frozenset[int]) -> Begun:
    _check_room(storm)
    several = [_new_table(storm) for _ in range(3)]
    return [], once(lambda: tables.create_tables(storm.tidb, storm.databases[0], several))


@KINDS.add(2, alone=True)
def _drop_table(storm: Storm, busy: frozenset[int]) -> Begun:
    _check_enough(storm)
    table = storm.table(busy)

    def drop() -> None:
        tables.drop_table(storm.tidb, table)
        storm.dropped.append(table)

    return [table], once(drop)


@KINDS.add(2)
def _recover_table(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.some(storm.dropped)[-1]
    if table.db.name not in storm.tidb.databases or storm.tidb.databases[table.db.name].id != table.db.id:
        raise NothingToAlter
    storm.dropped.remove(table)
    return [table], once(lambda: tables.recover_table(storm.tidb, table, storm.name("recovered")))


@KINDS.add(3)
def _truncate_table(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy)
    return [table], once(lambda: tables.truncate_table(storm.tidb, table))


@KINDS.add(3)
def _rename_table(storm: Storm, busy: frozenset[int]) -> Begun:
    """Also into the filter and out of it."""
    table = storm.table(busy)
    names = [table.db.name, *storm.databases, storm.outside]
    db = storm.tidb.databases[storm.rng.choice([name for name in names if name in storm.tidb.databases])]
    return [table], once(lambda: tables.rename_table(storm.tidb, table, db, storm.name("renamed")))


@KINDS.add(2)
def _swap_tables(storm: Storm, busy: frozenset[int]) -> Begun:
    one = storm.table(busy)
    other = storm.table({*busy, one.id})
    return [one, other], once(lambda: tables.swap_tables(storm.tidb, one, other))


@KINDS.add(4)
def _set_attribute(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy)
    kind = storm.rng.choice(list(attributes.ATTRIBUTES))
    return [table], once(lambda: attributes.set_attribute(storm.tidb, table, kind))


def _new_table(storm: Storm) -> NewTable:
    more = [column(storm.rng, f"c{i}") for i in range(storm.rng.randint(1, 4))]
    pk = storm.rng.choice(("id", "id", None))
    return NewTable(storm.name("made"), (NewColumn("id", "bigint"), *more), pk)


def _check_room(storm: Storm) -> None:
    if len(storm.tidb.tables) >= _MOST_TABLES:
        raise NothingToAlter


def _check_enough(storm: Storm) -> None:
    if len(storm.tidb.tables) < _MOST_TABLES // 2:
        raise NothingToAlter


# --- views and sequences ---


@KINDS.add()
def _create_view(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy)
    return [], once(lambda: tables.create_view(storm.tidb, storm.name("view"), table))


@KINDS.add()
def _replace_view(storm: Storm, busy: frozenset[int]) -> Begun:
    view = _without_rows(storm, "view")
    table = storm.table(busy, lambda table: table.db.id == view.db.id)
    return [], once(lambda: tables.create_view(storm.tidb, view.info.name, table, replaced=view))


@KINDS.add()
def _drop_view(storm: Storm, busy: frozenset[int]) -> Begun:
    view = _without_rows(storm, "view")
    return [], once(lambda: tables.drop_view(storm.tidb, view))


@KINDS.add()
def _create_sequence(storm: Storm, busy: frozenset[int]) -> Begun:
    db = storm.tidb.databases[storm.databases[0]]
    return [], once(lambda: tables.create_sequence(storm.tidb, db, storm.name("sequence")))


@KINDS.add()
def _drop_sequence(storm: Storm, busy: frozenset[int]) -> Begun:
    sequence = _without_rows(storm, "sequence")
    return [], once(lambda: tables.drop_sequence(storm.tidb, sequence))


def _without_rows(storm: Storm, what: str) -> NamedTable:
    found = [t for t in storm.tidb.tables.values() if t.info.attributes.get(what) and t.db.name in storm.databases]
    return storm.rng.choice(storm.some(found))


# --- partitions ---


@KINDS.add(2)
def _add_partition(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda t: bool(t.info.partitions) and t.info.partitions[-1].below is not None)
    below = (table.info.partitions[-1].below or 0) + 40
    name = storm.name("p")
    return [table], once(lambda: partitions.add_partition(storm.tidb, table, name, below))


@KINDS.add(2)
def _drop_partition(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: len(table.info.partitions) > 2)
    name = storm.rng.choice(table.info.partitions).name
    return [table], once(lambda: partitions.drop_partition(storm.tidb, table, name))


@KINDS.add(2)
def _truncate_partition(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: bool(table.info.partitions))
    name = storm.rng.choice(table.info.partitions).name
    return [table], once(lambda: partitions.truncate_partition(storm.tidb, table, name))


@KINDS.add(2, alone=True)
def _reorganize_partition(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: len(table.info.partitions) > 1)
    before, last = table.info.partitions[-2:]
    middle = ((before.below or 0) + (last.below or 1000)) // 2
    into = {storm.name("p"): middle, storm.name("p"): last.below}

    def reorganize() -> object:
        try:
            return partitions.reorganize_partition(storm.tidb, table, [last.name], into)
        except ValueError as error:  # an exchange without validation has brought a row that none of them holds
            raise NothingToAlter from error

    return [table], once(reorganize)


@KINDS.add(2)
def _exchange_partition(storm: Storm, busy: frozenset[int]) -> Begun:
    """With a table that is made for it, in a job of its own."""
    table = storm.table(busy, lambda table: bool(table.info.partitions) and table.db.name in storm.databases)
    name = storm.rng.choice(table.info.partitions).name

    def exchange() -> Iterator[object]:
        other = tables.create_like(storm.tidb, table, storm.name("twin"))
        yield other
        if storm.tidb.tables.get(other.name) is not other:  # altered meanwhile: TiDB refuses what differs
            raise NothingToAlter
        yield partitions.exchange_partition(storm.tidb, table, name, other)

    return [table], exchange()


@KINDS.add(alone=True)
def _alter_partitioning(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: table.info.pk == "id")
    into: dict[str, int | None] = {storm.name("p"): 50, storm.name("p"): 100, storm.name("p"): None}
    return [table], once(lambda: partitions.alter_partitioning(storm.tidb, table, into))


@KINDS.add(alone=True)
def _remove_partitioning(storm: Storm, busy: frozenset[int]) -> Begun:
    table = storm.table(busy, lambda table: bool(table.info.partitions))
    return [table], once(lambda: partitions.remove_partitioning(storm.tidb, table))


# --- databases ---


@KINDS.add()
def _create_database(storm: Storm, busy: frozenset[int]) -> Begun:
    missing = [name for name in storm.databases if name not in storm.tidb.databases]
    name = storm.some(missing)[0]
    return [], once(lambda: databases.create_database(storm.tidb, name))


@KINDS.add(alone=True)
def _drop_database(storm: Storm, busy: frozenset[int]) -> Begun:
    """Not the first one."""
    name = storm.databases[-1]
    inside = [table for table in storm.tidb.tables.values() if table.db.name == name]
    if name not in storm.tidb.databases or any(table.id in busy for table in inside):
        raise NothingToAlter
    return inside, once(lambda: databases.drop_database(storm.tidb, name))


@KINDS.add()
def _alter_database(storm: Storm, busy: frozenset[int]) -> Begun:
    name = storm.databases[0]
    return [], once(lambda: databases.alter_database(storm.tidb, name, "utf8mb4", "utf8mb4_general_ci"))


@KINDS.add()
def _concern_no_table(storm: Storm, busy: frozenset[int]) -> Begun:
    kind = storm.rng.choice(list(databases.GLOBAL))
    return [], once(lambda: databases.run_global(storm.tidb, kind, "near"))
