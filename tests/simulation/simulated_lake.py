"""Drivers that commit to Iceberg tables of a catalog in memory: the product's own side of the driver.

Tasks have written all files before it begins. Simulated are the catalog (commits that fail, whose answer is lost, that
come behind another driver's, that are confirmed and not done; reads of what was; tables that go back to what they were,
or are gone), who else commits there or rolls a table back, a log, and drivers that die, or stop right before a commit
while another takes over. After each commit each table must have the first entries of each dispatcher, each once and in
order, and all that the log says; of a table that is upserted, what a TRUNCATE leaves of them. A driver that finds
something lost stops; then somebody registers the newest metadata again.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
from changefeed.errors import Fenced, NeedsHuman
from changefeed.log.records import CommitRecord, FileCommitted, PlanEntry
from changefeed.model.position import Position
from changefeed.objectstore import Location
from changefeed.objectstore.patience import Patience
from changefeed.schema import table_info as ti
from changefeed.schema.ddl.actions import Action
from changefeed.schema.ddl.change import SchemaChange
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import TableInfo, parse_table_info
from changefeed.sink.contract import Ddl, EntryId
from changefeed.sink.iceberg import driver as iceberg_driver
from changefeed.sink.iceberg.driver import IcebergDriver
from changefeed.sink.iceberg.endpoint import IcebergEndpoint
from changefeed.sink.iceberg.layout import deletes_file
from changefeed.sink.iceberg.marks import SNAPSHOT, VERSION, version_of
from changefeed.sink.iceberg.shape import file_schema, table_schema
from changefeed.sink.iceberg.snapshot import Added, add_snapshots
from changefeed.sink.iceberg.tables import InitialTable, LakeTables, TableWriter
from changefeed.sink.table_format.relied import Relied
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import RemoveSnapshotsUpdate, SetSnapshotRefUpdate, update_table_metadata
from simulated_catalog import MemoryCatalog
from simulated_world import Broken, Story

_LOG = "uid/origin"
_FIRST, _TRUNCATED_TS = 5, 1_000  # versions of the tables
_ITEMS, _EMPTIED, _ORDERS = 101, 111, 102  # ids: of one table before and after its TRUNCATE, of another
#: Dispatchers, by the id of their table. Those of a table that is emptied are others.
_DISPATCHERS = {_ITEMS: (1, 2), _EMPTIED: (11, 12), _ORDERS: (3,)}
_ODDS = {
    "refused": 0.1,  # a commit comes to nothing, and nobody says so
    "unheard": 0.1,  # it counts, and nobody says so
    "dies": 0.1,
    "dies behind it": 0.1,
    "stranger": 0.15,  # has made a snapshot with the same files, as who compacts them
    "expiry": 0.1,
    "takeover": 0.15,  # the driver stops right before a commit, and another one takes its place
}
_LOSSES = {
    "confirmed": 0.05,  # a commit comes to nothing, and the catalog says that it counts
    "stale": 0.05,  # a read gives the table as it was
    "back": 0.05,  # the table is what it was from now on, or is not there
}
_ROLLBACK = 0.05  # somebody has Spark show an earlier snapshot of the table, whose marks stay
_TROUBLES = 60  # commits, then none fails
_STEPS = 500
_MOST_AT_ONCE = 3  # entries of a dispatcher in a record


class Killed(Exception):
    """The driver is gone."""


@dataclass(frozen=True)
class Given:
    """An entry, as its task has written it."""

    planned: PlanEntry
    file: FileCommitted
    is_behind_ddl: bool

    @property
    def path(self) -> str:
        return str(self.planned.output["path"])


class LakeWorld:
    """`trace` says what has happened in it."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.trace: list[str] = []
        self._rng = Random(f"{story.seed} lake")
        self._faults = {
            kind: odds for kind, odds in _ODDS.items() if self._rng.random() < 0.5 and kind not in story.without
        }
        self._upsert = self._rng.random() < 0.5
        self._losses = Random(f"{story.seed} losses")
        self._losing = {
            kind: odds for kind, odds in _LOSSES.items() if self._losses.random() < 0.3 and kind not in story.without
        }
        self._rollbacks = Random(f"{story.seed} rollbacks")
        self._rolls_back = self._rollbacks.random() < 0.3 and "rolled back" not in story.without
        self._lost: dict[tuple[str, ...], TableMetadata] = {}  # the newest of tables that have gone back
        self._rolled_back: set[tuple[str, ...]] = set()
        self._may_stop = False  # because of something that the catalog has done
        self._commits = self._committing = 0  # epoch of who does
        self._epoch = self._records = 0
        self._is_truncated = False  # and recorded
        self._recorded: set[str] = set()
        self._had: dict[str, int] = {}

    def run(self) -> None:
        """Raises Broken."""
        try:
            # One table after the other, for the same story each time.
            with (
                tempfile.TemporaryDirectory(prefix="changefeed-lake-") as folder,
                patch.object(iceberg_driver, "AT_ONCE", 1),
            ):
                self._run(Path(folder))
        except Exception as error:
            raise Broken(self.story, error, self.trace) from error

    def say(self, what: str) -> None:
        self.trace.append(what)

    def _run(self, folder: Path) -> None:
        self._endpoint = IcebergEndpoint(Location(folder.as_uri()), "memory")
        self._entries = [*self._planned(behind_ddl=False), *self._planned(behind_ddl=True)]
        for given in self._entries:
            self._write(folder, given)
        self.catalog = MemoryCatalog(self._check)
        self._driver = self._next_driver()
        for _ in range(_STEPS):
            driver = self._driver
            try:
                next(driver)
            except StopIteration:
                break
            except (Fenced, Killed, NeedsHuman) as error:
                self._ended(driver, error)
        assert len(self._recorded) == len(self._entries), "the end is not reached"
        for name in self.catalog.tables.keys() | self._lost.keys():
            lacking = [given for given in self._of(name[1]) if given.file.rows and given.path not in self._files(name)]
            assert not lacking or self._is_missed(name, lacking[0]), f"{name[1]} lacks {lacking[0].path}"

    def _is_missed(self, name: tuple[str, ...], given: Given) -> bool:
        """Whether a driver that comes after the last commit stops at the table, which went back behind that."""
        tables = self._tables(self._epoch + 1, lambda: None)
        table = _definition(_table_of(given.planned.dispatcher))
        definition = InitialTable(table_schema(table, upsert=self._upsert), "memory", table.id, 0)
        try:
            tables.change((name[0], name[1]), definition, lambda table: None)
        except NeedsHuman:
            return True
        return False

    # -- what there is to commit

    def _planned(self, *, behind_ddl: bool) -> Iterator[Given]:
        tables = (_EMPTIED, _ORDERS) if behind_ddl else (_ITEMS, _ORDERS)
        first = 100 if behind_ddl else 1
        for plan in range(first, first + self._rng.randint(2, 4)):
            pairs = [(table, dispatcher) for table in tables for dispatcher in _DISPATCHERS[table]]
            for number, (table, dispatcher) in enumerate(pairs):
                for part in range(self._rng.choice((0, 1, 1, 2))):
                    yield _given(plan, 2 * number + part, table, dispatcher, self._rng.choice((0, 1, 1, 1)), behind_ddl)

    def _write(self, folder: Path, given: Given) -> None:
        bodies = _bodies(self._upsert)
        for path, body in zip((given.path, deletes_file(given.path)), bodies, strict=False):
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            if given.file.rows:
                place.write_bytes(body)

    # -- drivers

    def _next_driver(self) -> Iterator[None]:
        self._epoch += 1
        epoch = self._epoch
        self.say(f"driver {epoch} begins")

        def poll_fence() -> None:
            if self._epoch > epoch:
                raise Fenced(f"driver {self._epoch} drives, not {epoch}")

        return self._drive(epoch, poll_fence)

    def _drive(self, epoch: int, poll_fence: Callable[[], None]) -> Iterator[None]:
        """From what is recorded to the end, a record a step."""
        tables = self._tables(epoch, poll_fence)
        sink = IcebergDriver(self._endpoint, tables, self._upsert, _there(self._is_truncated))
        if epoch == 1:
            sink.create()
        while not self._is_truncated or len(self._recorded) < len(self._entries):
            if batch := self._batch():
                n = self._records + 1
                sink.publish([given.planned for given in batch], self._record(n, epoch, batch))
                poll_fence()
                self._records = n
                self._recorded |= {given.path for given in batch}
            else:
                sink.execute(_truncated())
                poll_fence()
                self._is_truncated = True
            yield

    def _tables(self, epoch: int, poll_fence: Callable[[], None]) -> LakeTables:
        writer, patience = TableWriter(_LOG, epoch, poll_fence), Patience(60, lambda _: None)
        answers: Any = Answers(self, epoch)
        return LakeTables(answers, "memory", writer, patience, self._relied())

    def _relied(self) -> dict[int, dict[int, Relied]]:
        """What the log says."""
        relied: dict[int, dict[int, Relied]] = {_EMPTIED: {}} if self._is_truncated else {}
        for given in self._entries:
            if given.path in self._recorded and given.file.rows:
                entry, last = given.planned, EntryId(given.file.plan, given.file.entry)
                relied.setdefault(_table_of(entry.dispatcher), {})[entry.dispatcher] = Relied(entry.table_version, last)
        return relied

    def _batch(self) -> list[Given]:
        """The next entries of some dispatchers; none: the DDL is next."""
        waiting: dict[int, list[Given]] = {}
        for given in self._entries:
            if given.path not in self._recorded and given.is_behind_ddl <= self._is_truncated:
                waiting.setdefault(given.planned.dispatcher, []).append(given)
        chosen = [dispatcher for dispatcher in waiting if self._rng.random() < 0.6] or list(waiting)
        batch = [given for each in chosen for given in waiting[each][: self._rng.randint(1, _MOST_AT_ONCE)]]
        return sorted(batch, key=lambda given: (given.planned.dispatcher, given.file.plan, given.file.entry))

    def _record(self, n: int, epoch: int, batch: list[Given]) -> CommitRecord:
        return CommitRecord(n=n, epoch=epoch, nonce="n", checkpoint_ts=n, files=tuple(given.file for given in batch))

    # -- what goes wrong

    def commit(self, epoch: int, table: Any, requirements: Any, updates: Any) -> CommitTableResponse:
        """As driver `epoch` meets it."""
        name = table.name()
        self._commits += 1
        if self._has("stranger"):
            self._disturb(name)
        if self._has("expiry"):
            self._expire(name)
        if self._has("takeover") and epoch == self._epoch:
            self.say(f"driver {epoch} stops before a commit to {name[1]}")
            self._take_over()
        if self._has("dies"):
            raise Killed(f"driver {epoch} before a commit to {name[1]}")
        if self._has("refused"):
            raise CommitStateUnknownException("no answer")
        if self._loses("back"):
            self._go_back(name)
        if self._loses("confirmed"):
            self.say(f"a commit of driver {epoch} to {name[1]} is confirmed and not done")
            return CommitTableResponse(metadata=table.metadata, metadata_location="memory")
        self._committing = epoch
        try:
            answer = self.catalog.commit_table(table, requirements, updates)
        finally:
            self._committing = 0
        self.say(f"driver {epoch} has committed to {name[1]}: {', '.join(type(each).__name__ for each in updates)}")
        if self._has("dies behind it"):
            raise Killed(f"driver {epoch} behind a commit to {name[1]}")
        if self._has("unheard"):
            raise CommitStateUnknownException("no answer")
        return answer

    def _has(self, kind: str) -> bool:
        return self._commits <= _TROUBLES and self._rng.random() < self._faults.get(kind, 0.0)

    def load(self, name: tuple[str, ...]) -> Table:
        """As a driver meets it."""
        if self._loses("back"):
            self._go_back(name)
        if self._rolls_back and self._commits <= _TROUBLES and self._rollbacks.random() < _ROLLBACK:
            self._roll_back(name)
        if len(past := self.catalog.past.get(name, ())) > 1 and self._loses("stale"):
            self.say(f"a read of {name[1]} is stale")
            return self.catalog.table(name, past[self._losses.randrange(len(past) - 1)])
        return self.catalog.load_table(name)

    def _loses(self, kind: str) -> bool:
        has = self._commits <= _TROUBLES and self._losses.random() < self._losing.get(kind, 0.0)
        self._may_stop |= has
        return has

    def _go_back(self, name: tuple[str, ...]) -> None:
        """Until somebody looks, or a driver that knows nothing of what is lost commits."""
        if name not in self.catalog.tables:
            return
        past: list[Any] = self.catalog.past[name]
        self._lost.setdefault(name, past[-1])
        earlier = None if self._losses.random() < 0.4 else self._losses.choice(past[:-1] or [None])
        self.say(f"{name[1]} {'is gone' if earlier is None else 'goes back'}")
        self.catalog.put(name, earlier)
        self._had.pop(name[1], None)

    def _roll_back(self, name: tuple[str, ...]) -> None:
        """To a snapshot from before the drivers' last one."""
        table = self.catalog.tables.get(name)
        sequence = int(table.properties[SNAPSHOT].partition("/")[2]) if table and SNAPSHOT in table.properties else 0
        earlier = [each for each in table.snapshots if (each.sequence_number or 0) < sequence] if table else []
        if table is None or not earlier:
            return
        self.say(f"{name[1]} is rolled back")
        self._lost.setdefault(name, table)
        self._rolled_back.add(name)
        self._may_stop = True
        shown = self._rollbacks.choice(earlier).snapshot_id
        main = SetSnapshotRefUpdate(ref_name=MAIN_BRANCH, type=SnapshotRefType.BRANCH, snapshot_id=shown)
        self.catalog.put(name, update_table_metadata(table, (main,)))
        self._had.pop(name[1], None)

    def _take_over(self) -> None:
        """The next driver goes some steps; it may die as well."""
        self._driver = driver = self._next_driver()
        try:
            for _ in range(self._rng.randint(0, 3)):
                next(driver, None)
        except (Fenced, Killed, NeedsHuman) as error:
            self._ended(driver, error)

    def _ended(self, driver: Iterator[None], error: Exception) -> None:
        self.say(f"{type(error).__name__}: {error}")
        if isinstance(error, NeedsHuman):
            if (driver is self._driver and not self._may_stop) or "can't be written" in error.message:
                raise error
            self._may_stop = False
            for name, metadata in self._lost.items():
                self.say(f"somebody registers {name[1]} again")
                self.catalog.put(name, metadata)
            self._lost.clear()
            self._rolled_back.clear()
        if driver is self._driver:
            self._driver = self._next_driver()

    def _disturb(self, name: tuple[str, ...]) -> None:
        if name in self.catalog.tables and (table := self.catalog.load_table(name)).current_snapshot() is not None:
            self.say(f"a stranger commits to {name[1]}")
            self.catalog.commit_table(table, (), tuple(add_snapshots(table, [Added()], {})))

    def _expire(self, name: tuple[str, ...]) -> None:
        if name in self._rolled_back:  # behind what has expired nothing is known
            return
        if name in self.catalog.tables and (current := self.catalog.load_table(name).current_snapshot()) is not None:
            table = self.catalog.load_table(name)
            old = [each.snapshot_id for each in table.snapshots() if each.snapshot_id != current.snapshot_id]
            if old:
                self.say(f"{len(old)} snapshots of {name[1]} expire")
                self.catalog.commit_table(table, (), (RemoveSnapshotsUpdate(snapshot_ids=old),))

    # -- what must hold

    def _of(self, table: str) -> list[Given]:
        """The entries that the table may have now."""
        ids = {"items": (_ITEMS, _EMPTIED), "orders": (_ORDERS,)}[table]
        items = self.catalog.tables.get(("shop", "items"))
        is_emptied = self._upsert and items is not None and int(items.properties[VERSION]) >= _TRUNCATED_TS
        ids = tuple(id_ for id_ in ids if id_ != _ITEMS or not is_emptied)
        dispatchers = {dispatcher for id_ in ids for dispatcher in _DISPATCHERS[id_]}
        return [given for given in self._entries if given.planned.dispatcher in dispatchers]

    def _files(self, name: tuple[str, ...]) -> dict[str, int]:
        """Paths below the warehouse of all files, with their sequence numbers. Each is there once."""
        if name not in self.catalog.tables:
            return {}
        table, found = self.catalog.load_table(name), dict[str, int]()
        snapshot, root = table.current_snapshot(), self._endpoint.location("")
        for manifest in snapshot.manifests(table.io) if snapshot is not None else ():
            for path, content in _content(table, manifest):
                short = path.removeprefix(root)
                assert short not in found, f"{name[1]} has {short} twice"
                assert (content == DataFileContent.DATA) != short.endswith("-deletes.parquet")
                found[short] = manifest.sequence_number
        return found

    def _check(self, name: tuple[str, ...]) -> None:
        """After each commit."""
        if ("shop", "items") not in self.catalog.tables:
            return
        if name in self._lost and self._committing != self._epoch:
            return  # only who drives looks at what there must be
        files, may_have = self._files(name), self._of(name[1])
        for dispatcher in sorted({given.planned.dispatcher for given in may_have}):
            of = [given for given in may_have if given.planned.dispatcher == dispatcher and given.file.rows]
            there = [given for given in of if given.path in files]
            assert there == of[: len(there)], f"{name[1]} has {there[-1].path}, and not all before it"
            if self._upsert:
                sequences = [files[given.path] for given in there]
                assert sequences == sorted(set(sequences)), f"{name[1]} has two entries of a dispatcher in one snapshot"
                assert sequences == [files.get(deletes_file(given.path)) for given in there], "rows without deletes"
        self._lost.pop(name, None)
        lacking = [given.path for given in may_have if given.path in self._recorded and given.file.rows]
        lacking = [path for path in lacking if path not in files]
        assert not lacking, f"a commit to {name[1]}, which has lost {lacking[0]}"
        version = version_of(self.catalog.load_table(name))
        assert version >= _TRUNCATED_TS or name[1] != "items" or not self._is_truncated, "the TRUNCATE is lost"
        surplus = files.keys() - {path for given in may_have for path in (given.path, deletes_file(given.path))}
        assert not surplus, f"{name[1]} has {min(surplus)}"
        assert len(files) >= self._had.get(name[1], 0) or self._upsert, f"{name[1]} has lost files"
        self._had[name[1]] = len(files)


class Answers:
    """The catalog, as the driver `epoch` meets it."""

    def __init__(self, world: LakeWorld, epoch: int) -> None:
        self._world, self._epoch = world, epoch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world.catalog, name)

    def load_table(self, name: tuple[str, ...]) -> Table:
        return self._world.load(name)

    def commit_table(self, *call: Any) -> CommitTableResponse:
        return self._world.commit(self._epoch, *call)


def _there(is_truncated: bool) -> dict[int, tuple[TableInfo, int]]:
    items = (_EMPTIED, _TRUNCATED_TS) if is_truncated else (_ITEMS, _FIRST)
    return {
        dispatcher: (_definition(id_), version)
        for id_, version in (items, (_ORDERS, _FIRST))
        for dispatcher in _DISPATCHERS[id_]
    }


def _table_of(dispatcher: int) -> int:
    return next(table for table, dispatchers in _DISPATCHERS.items() if dispatcher in dispatchers)


@cache
def _definition(id_: int) -> TableInfo:
    key = {"Tp": SqlType.BIGINT, "Flag": ti.FLAG_NOT_NULL | ti.FLAG_PRI_KEY, "Flen": 20, "Decimal": 0}
    columns = [{"id": 1, "name": {"O": "id"}, "offset": 0, "type": key, "state": 5}]
    name = "orders" if id_ == _ORDERS else "items"
    info = {"id": id_, "name": {"O": name}, "cols": columns, "pk_is_handle": True, "state": 5}
    return parse_table_info(info, "shop")


@cache
def _truncated() -> Ddl:
    before, after = ({each: _definition(id_) for each in _DISPATCHERS[id_]} for id_ in (_ITEMS, _EMPTIED))
    query = "TRUNCATE TABLE items"
    return Ddl(
        ts=_TRUNCATED_TS,
        job_id=1,
        change=SchemaChange(id=1, type=Action.TRUNCATE_TABLE, query=query),
        query=query,
        description=query,
        involved=frozenset(before),
        left=frozenset(before),
        before=before,
        tables=after,
        is_told=True,
    )


def _given(plan: int, number: int, table: int, dispatcher: int, rows: int, is_behind_ddl: bool) -> Given:
    path = f"{table}/{dispatcher}/{plan}-{number}.parquet"
    planned = PlanEntry.model_validate(
        {
            "entry": number,
            "dispatcher": dispatcher,
            "table_id": dispatcher,
            "from": Position.end_of(10 * plan - 1),
            "to": Position.end_of(10 * plan + 9),
            "output": {"path": path, "directory": f"{table}/{dispatcher}", "index": plan, "date": ""},
            "table_version": _TRUNCATED_TS if table == _EMPTIED else _FIRST,
            "table_info": _definition(table).hash,
            "estimate": 1,
            "reason": "interval",
        }
    )
    file = FileCommitted(plan=plan, entry=number, rows=rows, raw_rows=rows, filtered_rows=0, bytes=1, hash="h")
    return Given(planned, file, is_behind_ddl)


@cache
def _bodies(upsert: bool) -> tuple[bytes, ...]:
    """Return the bodies of a file of rows, and of one of deletes."""
    table = _definition(_ORDERS)
    schema = file_schema(table, table.output_columns, upsert=upsert)
    row = {"id": 1} if upsert else {"_op": "I", "_commit_ts": 1, "id": 1}
    body = _parquet(pa.Table.from_pylist([row], schema))
    return (body, body) if upsert else (body,)


def _parquet(table: pa.Table) -> bytes:
    body = io.BytesIO()
    pq.write_table(table, body)
    return body.getvalue()


_read: dict[str, list[tuple[str, DataFileContent]]] = {}


def _content(table: Table, manifest: Any) -> list[tuple[str, DataFileContent]]:
    """Return the content of a manifest, which never changes."""
    if manifest.manifest_path not in _read:
        entries = manifest.fetch_manifest_entry(table.io)
        _read[manifest.manifest_path] = [(each.data_file.file_path, each.data_file.content) for each in entries]
    return _read[manifest.manifest_path]
