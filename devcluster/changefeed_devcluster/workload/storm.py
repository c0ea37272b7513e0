"""What a storm's DDLs are drawn from: the tables that are there, and nobody alters."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from ..tidb.field_types import PRIMARY_KEY
from ..tidb.schema import NamedTable, TidbColumn
from ..tidb.tidb import Tidb

T = TypeVar("T")


class NothingToAlter(Exception):
    """There is nothing that the DDL could be done to."""


@dataclass
class Storm:
    """What the DDLs are drawn from."""

    tidb: Tidb
    rng: random.Random
    databases: Sequence[str]
    outside: str
    names: int = 0
    dropped: list[NamedTable] = field(default_factory=list)

    def table(self, busy: Iterable[int], wanted: Callable[[NamedTable], bool] = lambda _: True) -> NamedTable:
        """A table with rows that is as wanted, and that no job alters. Raises NothingToAlter."""
        ours = {*self.databases, self.outside}
        found = [
            table
            for table in self.tidb.tables.values()
            if table.db.name in ours and table.info.has_rows and table.id not in busy and wanted(table)
        ]
        return self.rng.choice(self.some(found))

    def some(self, found: Sequence[T]) -> Sequence[T]:
        """Raises NothingToAlter if there is none."""
        if not found:
            raise NothingToAlter
        return found

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def other_columns(self, table: NamedTable) -> list[TidbColumn]:
        """Return those of no key."""
        keyed = {name for index in table.info.indexes for name in index.columns}
        return [c for c in table.info.public if c.name not in keyed and not c.type.flag & PRIMARY_KEY]


Begun = tuple[Sequence[NamedTable], Iterator[object]]


@dataclass(frozen=True)
class StormDdl:
    """A DDL that a storm may draw.

    `begin`: gives the tables that nobody else may alter meanwhile, and the states. Raises NothingToAlter.

    `alone`: no transaction may be open when it begins. It copies rows, or takes at once what TiDB takes in several
    steps, waiting for open transactions at each.
    """

    name: str
    begin: Callable[[Storm, frozenset[int]], Begun]
    alone: bool = False


Begin = Callable[[Storm, frozenset[int]], Begun]


class Kinds(list[StormDdl]):
    """Kinds of statements of one module; each comes as often as it weighs."""

    def add(self, weight: int = 1, alone: bool = False) -> Callable[[Begin], None]:
        def added(begin: Begin) -> None:
            self.extend([StormDdl(begin.__name__.strip("_").replace("_", " "), begin, alone)] * weight)

        return added


def once(ddl: Callable[[], object]) -> Iterator[object]:
    """A DDL of one state that sessions see."""
    yield ddl()


def or_not(ddl: Callable[[], object]) -> Iterator[object]:
    """One that is rolled back where rows are duplicates of each other."""
    with suppress(ValueError):
        yield ddl()
