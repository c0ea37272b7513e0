"""Publishes what a run has done, one step at a time: the sink's part, the log record, the checkpoint (rule 11).

A shell. The order of publication (data, index, commit record, `metadata`) is the order of its calls. `carry_out` says
what becomes of each action of the owner's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import assert_never

from changefeed.log.log import Log
from changefeed.objectstore.patience import Patience
from changefeed.owner.deletion import Deletion
from changefeed.owner.owner import Owner
from changefeed.owner.pace import Pace
from changefeed.owner.patience import in_thread
from changefeed.owner.planning.actions import (
    AppendCheckpoint,
    AppendExpiry,
    AppendPlan,
    Publish,
    Recorded,
    WriteDdl,
    WriteSyncpoint,
)
from changefeed.owner.preparation.prepared import Prepared
from changefeed.sink.contract import SinkDriver

_TABLES_A_RECORD = 100  # a snapshot holds all tables: so many take as long to write as a record takes to read


class Publication:
    """One caller at a time. Raises what the log and the sink do."""

    def __init__(self, prepared: Prepared, patience: Patience, pace: Pace) -> None:
        self._prepared, self.patience, self._pace = prepared, patience, pace
        self._sink: SinkDriver | None = None
        self._published: int | None = None
        self._published_at = 0.0

    @property
    def checkpoint_ts(self) -> int:
        """As readers know it; before the first of this run, the log's as the run found it."""
        return self._prepared.state.checkpoint_ts if self._published is None else self._published

    async def open(self) -> None:
        """Before anything else. It may take as long as the patience lasts."""
        prepared = self._prepared
        self._sink = await in_thread(prepared.sink.driver, prepared.taken, prepared.log.poll_fence, self.patience)

    def close(self) -> None:
        if self._sink is not None:
            self._sink.close()

    async def record(self, action: Recorded) -> None:
        """Carry it out; its record is in the log then."""
        await in_thread(carry_out, action, self._opened(), self._prepared.log)

    async def checkpoint(self, ts: int, force: bool = False) -> None:
        """Publish the checkpoint of what is in the log (rules 8, 11): now and then, or now."""
        due = force or time.monotonic() - self._published_at >= self._pace.metadata_s
        if ts == self._published or not due:
            return
        await in_thread(self._opened().write_checkpoint, ts)
        self._published, self._published_at = ts, time.monotonic()

    async def fold(self) -> None:
        """Make a snapshot of the log, if it has grown."""
        log = self._prepared.log
        if has_grown(log, self._pace.fold_after):
            await in_thread(log.fold, log.state)

    def _opened(self) -> SinkDriver:
        assert self._sink is not None, "open comes first"
        return self._sink


async def act(
    action: Recorded | None,
    owner: Owner,
    publication: Publication,
    deletion: Deletion,
    recorded: Callable[[Recorded], None],
) -> None:
    """Do one turn of a driver's loop: the owner's action, if it has one, and what that leads to.

    `recorded` is told when the action's record is in the log. The simulation's drivers call this as well, with a
    publication and a deletion of their own: the order is theirs too.
    """
    if action is not None:
        await publication.record(action)
        recorded(action)
    await publication.checkpoint(owner.state.checkpoint_ts)
    if action is None or isinstance(action, Publish):
        await deletion.delete(owner.unneeded_segments())
    await publication.fold()


def has_grown(log: Log, fold_after: int) -> bool:
    """Whether it is to be folded. `fold_after`: records since the newest snapshot, of a log with few tables."""
    return log.tail > fold_after + len(log.state.dispatchers) // _TABLES_A_RECORD


def carry_out(action: Recorded, sink: SinkDriver, log: Log) -> None:
    """Do the sink's part of an action, then append its record. Blocks, and raises what the two do.

    The simulation's drivers call it as well: whatever the owner hands out is simulated.
    """
    match action:
        case Publish():
            sink.publish(action.entries, action.record)
        case WriteDdl():
            sink.execute(action.ddl)
        case WriteSyncpoint():
            sink.write_syncpoint(action.ts)
        case AppendPlan() | AppendCheckpoint() | AppendExpiry():
            pass
        case _:
            assert_never(action)
    log.append(action.record)
