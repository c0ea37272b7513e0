"""A changefeed over a history that stands: its folder, its processes (integration_driven), and who watches its sink.

Every run makes the same plans and the same files, so that what is harmed can be held against what is not (O9).
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from changefeed.objectstore.local import LocalStore
from changefeed.owner.transaction_log.log import Log
from changefeed.owner.transaction_log.state import State
from changefeed.sink.storage.layout import CLAIM
from changefeed.verify.report import verify
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.schema import Column
from changefeed_devcluster.tidb.tidb import Table, Tidb
from integration_inprocess import resource
from integration_observer import Observer, format_of
from integration_processes import Nursery, Process

COLUMNS = (Column("id", "bigint"), Column("balance", "bigint"))
NOTE = Column("note", "varchar(8)", nullable=True)
ROWS = 12  # of a table in a small transaction; twice as many in a large one


@dataclass(frozen=True)
class History:
    """What stands in the upstream, and where its DDL span resolves to, step by step."""

    cluster: DevCluster
    start_ts: int
    steps: tuple[int, ...]
    rows: int

    @property
    def target_ts(self) -> int:
        return self.steps[-1]


@contextmanager
def upstream() -> Iterator[History]:
    """Steps with changes of all tables; one that ends with a column, one with a table that is new; and one without."""
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
        rows += _change(tidb, [items, orders, late], 3)
        steps += [tidb.now(), tidb.now()]
        yield History(cluster, start_ts, tuple(steps), rows)


def _change(tidb: Tidb, tables: Sequence[Table], step: int) -> int:
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
    """The folder of one changefeed, with its processes."""

    history: History
    nursery: Nursery
    folder: Path

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    @property
    def state(self) -> Path:
        return self.folder / "state" / "default" / "test" / "local"

    def resource(self, **spec: Any) -> dict[str, Any]:
        members = {"targetTs": str(self.history.target_ts), "spark": {"pullers": {"count": 1}}, **spec}
        return resource(self.history.cluster.pd_address, self.history.start_ts, self.folder, **members)

    def start(self, point: str | None = None, at: int = 1, then: str = "kill", **more: Any) -> Process:
        """A driver with its puller and its tasks, that dies or stops at a passage of `point`."""
        steps = list(self.history.steps)
        options = {"resource": self.resource(), "folder": str(self.folder), "steps": steps, "next_day": steps[1]}
        return self.nursery.start("integration_driven:drive", **options, point=point, at=at, then=then, **more)

    def clear(self, template: Path | None = None) -> None:
        """Nothing has run yet, or what a template says."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if template is None:
            self.folder.mkdir(parents=True)
        else:
            shutil.copytree(template, self.folder, symlinks=True)

    def log(self) -> State:
        return Log(LocalStore(self.state), "log").read()

    def data_files(self) -> dict[Path, tuple[int, bytes]]:
        """(inode, bytes): a file that is written again is another one."""
        return {path: (path.stat().st_ino, path.read_bytes()) for path in self.lake.rglob("CDC*.csv")}

    def sink(self) -> dict[str, bytes]:
        """All objects by path, but for the claim, which names the state's folder."""
        store = LocalStore(self.lake)
        return {path: store.get(path).body for path, _ in store.list() if path != CLAIM}

    def left_over(self) -> list[str]:
        """What a run must not leave behind: temporary files, what was spooled, houses of those before it."""
        epoch = self.log().epoch
        house = f"{epoch.number}-{epoch.nonce}"
        temporary = [*self.folder.rglob("*.tmp"), *self.folder.rglob(".changefeed-probe*")]
        events = [path for path in self.state.glob("events/*/**/*") if path.is_file()]
        late = [path for path in events if not path.is_relative_to(self.state / "events" / house)]
        spooled = [path for path in events if "spool" in path.parts]
        return [str(path.relative_to(self.folder)) for path in (*temporary, *late, *spooled)]


def published(world: World) -> int:
    try:
        return int(json.loads((world.lake / "metadata").read_text())["checkpoint-ts"])
    except FileNotFoundError:
        return 0


def found(world: World) -> str:
    """In a line, what the next driver finds."""
    state = world.log()
    if not state.n:
        return "no log"
    plan = "no plan open"
    if state.plans:
        numbers = " and ".join(str(each.plan.n) for each in state.plans)
        open_ = [entry for _, entry in state.open_entries()]
        there = sum((world.lake / entry.path).exists() for entry in open_)
        plan = f"plan {numbers} open, {there} of {len(open_)} files"
    behind = "at" if published(world) == state.checkpoint_ts else "behind"
    temporary = len(list(world.folder.rglob("*.tmp")))
    parts = [
        f"record {state.n}, epoch {state.epoch.number}",
        "a snapshot" if any((world.state / "log").glob("snapshot-*")) else "",
        plan,
        f"{len(world.data_files())} data files, {len(list(world.lake.rglob('CDC.index')))} indexes",
        f"metadata {behind} the log" if published(world) else "no metadata",
        "finished" if state.finished else "",
        f"{temporary} temporary" if temporary else "",
    ]
    return "; ".join(part for part in parts if part)


class Broken(AssertionError):
    """A promise is broken."""


class Watch:
    """What a reader of a world's sink has seen, from before the first process to after the last."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._observer = Observer(world.lake.as_uri(), format_of())
        self._files: dict[Path, tuple[int, bytes]] = {}

    def look(self) -> None:
        """Raises Broken when metadata or an index has gone back, a file has come late or was written again (O2)."""
        self._observer.look()
        for problem in self._observer.problems:
            raise Broken(problem)
        now = self._world.data_files()
        for path, was in self._files.items():
            if now.get(path) != was:
                raise Broken(f"{path.relative_to(self._world.folder)} was written again or is gone")
        self._files = now

    def check_finished(self, sink: Mapping[str, bytes] | None) -> None:
        """After a run to the target: `verify`, and the bytes of a run that nobody harmed are in `sink` (O9)."""
        self.look()
        world, there = self._world, self._world.sink()
        result = asyncio.run(verify(world.lake.as_uri(), [f"http://{world.history.cluster.pd_address}"]))
        if not result.ok:
            raise Broken(f"verify: {result.first_problem}")
        if result.rows != world.history.rows:
            raise Broken(f"{result.rows} rows are in files, not {world.history.rows}")
        if not world.log().finished or published(world) != world.history.target_ts:
            raise Broken(f"not finished: {found(world)}")
        for path in sorted(there.keys() | sink.keys() if sink is not None else ()):
            if sink is not None and there.get(path) != sink.get(path):
                raise Broken(f"{path} has other bytes than in a run that nobody harmed")
