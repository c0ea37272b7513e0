"""A changefeed (integration_standing) that reads a PostgreSQL, and writes files.

A run from the start makes its slot and copies the tables as they stand. One after a takeover reads a slot in which
changes wait: transactions over all tables, an added column, a table that is emptied. What it finds is put back for each
run, with the server's data: what is said in the WAL belongs to a state.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from changefeed.model.tso import LOGICAL_BITS
from changefeed.objectstore.local import LocalStore
from changefeed.sink.storage.layout import CLAIM
from changefeed.upstream.postgresql.slot.anchors import EMIT
from integration_inprocess import resource
from integration_postgresql import Postgresql
from integration_postgresql_bank import PUBLICATION, TABLES, Bank, changes, differences, replayed, tables
from integration_processes import Nursery, Process
from integration_standing import Broken
from integration_standing_files import FileWorld, published

USER, PASSWORD = "keeper", "p@ss/word"
_SLOT = "changefeed_points"
_DROP = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{}'"
_END = "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE slot_name = '{}' AND active"
#: How long after it began a run from the start ends: before, it or the next one makes its slot, on a busy machine, too.
_AHEAD_MS = 15_000


class SlotWorld(FileWorld):
    """`database`: nobody else's. Its tables change once, before the first run after a takeover."""

    def __init__(self, nursery: Nursery, folder: Path, database: Postgresql) -> None:
        self.nursery, self.folder, self._database = nursery, folder, database
        self._kept, self._kept_ts = folder.with_name("killed-inside-a-plan"), 0
        self._kept_data = folder.with_name("data")
        self._target_ts = 0
        self._secrets = folder.with_name("secrets")
        (self._secrets / "reader").mkdir(parents=True)
        for key, value in (("username", USER), ("password", PASSWORD)):
            (self._secrets / "reader" / key).write_text(value)
        database.query(*TABLES, PUBLICATION)
        self._bank = Bank(database)
        self._bank.open()

    def resource(self, **spec: Any) -> dict[str, Any]:
        where = {"host": "127.0.0.1", "port": self._database.port, "database": "postgres", "slot": _SLOT}
        reader = {"credentials": {"secretRef": {"name": "reader"}}}
        members = {
            "upstream": {"postgresql": where | reader},
            "filter": {"rules": ["bank.*"]},
            "targetTs": str(self._target_ts),
            "initialCopy": True,
            "spark": {"pullers": {"count": 1}},
        }
        made = resource("", 0, self.folder, **members, **spec)
        del made["spec"]["startTs"]
        return made

    def start(self, point: str | None = None, at: int = 1, then: str = "kill", **more: Any) -> Process:
        options = {"resource": self.resource(), "folder": str(self.folder), "secrets": str(self._secrets)}
        return self.nursery.start("integration_driven:drive", **options, point=point, at=at, then=then, **more)

    def clear(self) -> None:
        super().clear()
        self._drop_slot()
        self._target_ts = self._now() + (_AHEAD_MS << LOGICAL_BITS)

    def die_inside_a_plan(self) -> None:
        """Once; from then on its folder is copied, and what the server has."""
        if not self._kept.exists():
            self.clear()
            ended = self.start().end()
            assert ended.get("ended") == "finished", ended
            self._change()
            self._target_ts = self._kept_ts = self._now()
            point, at = self.inside_a_plan
            assert self.start(point, at).reaches(point)
            self._database.stop()
            _copy(self._data, self._kept_data)
            _copy(self.folder, self._kept)
        self._database.kill()
        _copy(self._kept_data, self._data)
        _copy(self._kept, self.folder)
        self._database.start()
        self._target_ts = self._kept_ts

    @property
    def _data(self) -> Path:
        return self._database.folder / "data"

    def sink(self) -> dict[str, bytes]:
        """Nothing: how rows come to be in files together is a matter of time here."""
        return {}

    def downstream(self) -> dict[str, bytes]:
        """All objects by path, but for the claim."""
        store = LocalStore(self.lake)
        return {path: store.get(path).body for path, _ in store.list() if path != CLAIM}

    def check(self) -> None:
        if found := differences(replayed(changes(self.lake)), tables(self._database)):
            raise Broken(f"replayed rows are not those of the tables: {found[:3]}")
        if published(self) != self._target_ts:
            raise Broken(f"not all is published: {self.found()}")

    def _change(self) -> None:
        self._bank.transfer(8)
        self._database.query("ALTER TABLE bank.notes ADD COLUMN stars int", "UPDATE bank.notes SET stars = 5")
        self._bank.transfer(8)
        self._database.query("TRUNCATE bank.transfers")
        self._bank.transfer(8)

    def _now(self) -> int:
        return int(self._database.query(EMIT)[0][0])

    def _drop_slot(self) -> None:
        """A killed reader's connection is the server's for a moment more."""
        self._database.query(_END.format(_SLOT), _DROP.format(_SLOT))


def _copy(folder: Path, to: Path) -> None:
    """With whom its files belong to: a server does not start with others'."""
    shutil.rmtree(to, ignore_errors=True)
    subprocess.run(["cp", "--archive", folder, to], check=True)
