"""A changefeed over a history that stands: its folder, its processes (integration_driven), and who watches its sink.

Every run makes the same plans and writes the same rows, so that what is harmed can be held against what is not (O9).
What differs between sinks is in integration_standing_files, _mysql and _kafka.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from changefeed.log.log import Log
from changefeed.log.state import State
from changefeed.objectstore.local import LocalStore
from changefeed_devcluster.ddl.indexes import add_index
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.rows import Row
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from changefeed_devcluster.tidb.server import CommittedChange
from changefeed_devcluster.tidb.tidb import Tidb
from integration_inprocess import resource
from integration_processes import Nursery, Process

COLUMNS = (NewColumn("id", "bigint"), NewColumn("balance", "bigint"))
NOTE = NewColumn("note", "varchar(8)", nullable=True)
Key = tuple[str, int]  # a table's name, the primary key
ROWS = 12  # of a table in a small transaction; twice as many in a large one


@dataclass(frozen=True)
class History:
    """What stands in the upstream, and where its DDL span resolves to, step by step.

    `tables`: each physical table that ever was, as it was last; those of the same name had different rows.
    """

    cluster: DevCluster
    tidb: Tidb
    start_ts: int
    steps: tuple[int, ...]
    rows: int
    tables: tuple[NamedTable, ...]

    @property
    def target_ts(self) -> int:
        return self.steps[-1]

    @cached_property
    def changes(self) -> dict[Key, list[CommittedChange]]:
        """The changes of each row, in order."""
        found: dict[Key, list[CommittedChange]] = {}
        for table in self.tables:
            for change in self.tidb.history(table, self.start_ts, self.target_ts):
                found.setdefault((table.info.name, change.pk), []).append(change)
        return found

    @cached_property
    def standing(self) -> dict[str, list[Row]]:
        """The rows of each table in the end, by primary key."""
        now = {table.info.name: table for table in self.tables}  # the last of a name is the one that is there
        snapshots = {name: self.tidb.snapshot(table, self.target_ts) for name, table in now.items()}
        return {name: [rows[pk] for pk in sorted(rows)] for name, rows in snapshots.items()}


@contextmanager
def upstream(truncated: bool = False, indexed: bool = False) -> Iterator[History]:
    """Steps with changes of all tables; one that ends with a column, one with a table that is new; and one without.

    `truncated`: then one of the tables is, which shows in no definition of it, and all change again; `indexed`: before
    that it gets an index, as rows go on.
    """
    with DevCluster(stores=1, min_ts_interval=0.05) as cluster:
        tidb = Tidb(cluster)
        tidb.bootstrap()
        tidb.create_database("shop")
        items, orders = (
            tidb.create_table("shop", name, COLUMNS, regions=2, handles=100) for name in ("items", "orders")
        )
        start_ts, steps, rows = tidb.now(), [], 0
        rows += _change(tidb, [items, orders], 0)
        steps.append(tidb.now())
        rows += _change(tidb, [items, orders], 1)
        orders = tidb.add_column(orders, NOTE)
        steps.append(tidb.last_ddl_ts)
        rows += _change(tidb, [items, orders], 2)
        late = tidb.create_table("shop", "late", COLUMNS)
        steps.append(tidb.last_ddl_ts)
        tables = {each.id: each for each in (items, orders, late)}
        rows += _change(tidb, [items, orders, late], 3)
        if indexed:
            orders = add_index(tidb, orders, "by_balance", ("balance",), False)
            steps.append(tidb.last_ddl_ts)
            tables[orders.id] = orders
            rows += _change(tidb, [items, orders, late], 4)
        if truncated:
            orders = tidb.truncate_table(orders)
            steps.append(tidb.last_ddl_ts)
            tables[orders.id] = orders
            rows += _change(tidb, [items, orders, late], 5)
        steps += [tidb.now(), tidb.now()]
        yield History(cluster, tidb, start_ts, tuple(steps), rows, tuple(tables.values()))


def _change(tidb: Tidb, tables: Sequence[NamedTable], step: int) -> int:
    """A large and a small transaction; how many rows change."""
    first, middle, end = (ROWS * (3 * step + part) + 1 for part in (0, 2, 3))
    for pks in (range(first, middle), range(middle, end)):
        with tidb.begin() as txn:
            for table in tables:
                for pk in pks:
                    txn.insert(table, {"id": pk, "balance": 1})
                if pks.start == middle:
                    txn.update(table, {"id": first, "balance": 2})
                    txn.delete(table, first + 1)
    return len(tables) * (3 * ROWS + 2)


@dataclass
class World:
    """The folder of one changefeed, with its processes and what it writes to."""

    history: History
    nursery: Nursery
    folder: Path

    #: The passage of a point at which the driver dies whose place the runs of "takeover" take: inside a plan.
    inside_a_plan = ("", 1)

    @property
    def state(self) -> Path:
        return self.folder / "state" / "default" / "test" / "local"

    def spec(self) -> dict[str, Any]:
        """Members of the resource's spec that are the sink's."""
        raise NotImplementedError

    def resource(self, **spec: Any) -> dict[str, Any]:
        members = {"targetTs": str(self.history.target_ts), "spark": {"pullers": {"count": 1}}, **self.spec(), **spec}
        return resource(self.history.cluster.pd_address, self.history.start_ts, self.folder, **members)

    def start(self, point: str | None = None, at: int = 1, then: str = "kill", **more: Any) -> Process:
        """A driver with its puller and its tasks, that dies or stops at a passage of `point`."""
        steps = list(self.history.steps)
        options = {"resource": self.resource(), "folder": str(self.folder), "steps": steps, "next_day": steps[1]}
        return self.nursery.start("integration_driven:drive", **options, point=point, at=at, then=then, **more)

    def clear(self) -> None:
        """Nothing has run yet."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def die_inside_a_plan(self) -> None:
        """From the start, a driver runs and dies there."""
        self.clear()
        point, at = self.inside_a_plan
        assert self.start(point, at).reaches(point)

    def log(self) -> State:
        return Log(LocalStore(self.state)).read()

    def sink(self) -> dict[str, bytes]:
        """What a run to the target leaves for readers, the same each time."""
        raise NotImplementedError

    def downstream(self) -> Mapping[str, Any]:
        """All that stands there, what our own records say included: nobody who has been taken over may change it."""
        return self.sink()

    def found(self) -> str:
        """In a line, what the next driver finds."""
        state = self.log()
        if not state.n:
            return "no log"
        parts = [
            f"record {state.n}, epoch {state.epoch.number}",
            "a snapshot" if any((self.state / "log").glob("snapshot-*")) else "",
            self.plans(state),
            self.written(state),
            "finished" if state.finished else "",
            f"{temporary} temporary" if (temporary := len(list(self.folder.rglob("*.tmp")))) else "",
        ]
        return "; ".join(part for part in parts if part)

    def plans(self, state: State) -> str:
        """Which are open."""
        numbers = " and ".join(str(each.plan.n) for each in state.plans)
        return f"plan {numbers} open" if numbers else "no plan open"

    def written(self, state: State) -> str:
        """How much stands downstream."""
        raise NotImplementedError

    def watch(self) -> Watch:
        return Watch(self)

    def look(self) -> None:
        """At any moment. Raises Broken when a reader of the sink sees what he must not."""

    def check(self) -> None:
        """After a run to the target. Raises Broken when the sink is not what the upstream is."""
        raise NotImplementedError

    def left_over(self) -> list[str]:
        """What a run must not leave behind: temporary files, what was spooled, folders of runs before it."""
        epoch = self.log().epoch
        run_folder = f"{epoch.number}-{epoch.nonce}"
        temporary = [*self.folder.rglob("*.tmp"), *self.folder.rglob(".changefeed-probe*")]
        events = [path for path in self.state.glob("events/*/**/*") if path.is_file()]
        late = [path for path in events if not path.is_relative_to(self.state / "events" / run_folder)]
        spooled = [path for path in events if "spool" in path.parts]
        return [str(path.relative_to(self.folder)) for path in (*temporary, *late, *spooled)]


class Broken(AssertionError):
    """A promise is broken."""


def check_changes(met: Mapping[Key, list[Any]], made: Mapping[Key, list[Any]], *, whole: bool) -> None:
    """What a reader met of each row is its first changes, none twice, none out of order; `whole`: all of them."""
    for key in met.keys() | made.keys():
        first, all_ = met.get(key, []), made.get(key, [])
        if first != (all_ if whole else all_[: len(first)]):
            raise Broken(f"{first} of {key} are met, not {'' if whole else 'the first of '}{all_}")


class Watch:
    """Who looks at a world's sink, from before the first process to after the last."""

    def __init__(self, world: World) -> None:
        self._world = world

    def look(self) -> None:
        self._world.look()

    def check_finished(self, sink: Mapping[str, bytes] | None) -> None:
        """After a run to the target: the sink is right, and has what a run that nobody harmed leaves there (O9)."""
        self.look()
        world, there = self._world, self._world.sink()
        world.check()
        if not world.log().finished:
            raise Broken(f"not finished: {world.found()}")
        for place in sorted(there.keys() | sink.keys() if sink is not None else ()):
            if sink is not None and there.get(place) != sink.get(place):
                raise Broken(f"{place} is not what it is in a run that nobody harmed")
