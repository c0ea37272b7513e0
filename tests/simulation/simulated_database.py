"""A downstream that rows are applied to, for worlds whose sink wants a dispatcher's entries in order.

It remembers who writes a dispatcher and what is done, as MySQL's progress table does (rule 25). When a driver says that
a syncpoint is reached, all that the upstream has committed up to it must stand here, and nothing above.
"""

from __future__ import annotations

from changefeed.errors import Fenced
from changefeed.model.tso import compose
from changefeed.pipeline.work import Work, WorkEntry
from changefeed.sink.contract import EntryId
from simulated_tables import path_of
from simulated_transactions import START_TS
from simulated_upstream import Upstream

Writer = tuple[int, int]  # epoch, number in it


class Database:
    def __init__(self) -> None:
        self.syncpoint_ms: int | None = None  # time between two syncpoints; None: there are none
        self._writers: dict[int, Writer] = {}
        self._done: dict[int, dict[EntryId, tuple[int, int]]] = {}  # the ts that each goes from, and to
        self._driver = 0  # its epoch
        self._syncpoints: set[int] = set()

    def write(self, work: Work, given: WorkEntry) -> None:
        """The entry's rows are applied, or were before. Raises Fenced for a writer that has been given up."""
        entry = given.plan_entry
        writer, dispatcher = (work.epoch, given.writer), entry.dispatcher
        newest = self._writers.get(dispatcher, writer)
        if writer < newest:
            raise Fenced(f"Dispatcher {dispatcher} is written by {newest}, this is {writer}.")
        self._writers[dispatcher] = writer
        done, here = self._done.setdefault(dispatcher, {}), EntryId(work.record, entry.entry)
        if here in done:
            return
        upto = max((to for _, to in done.values()), default=0)
        assert entry.from_.commit_ts >= upto, f"{path_of(entry)} begins at {entry.from_.commit_ts}, behind {upto}"
        done[here] = (entry.from_.commit_ts, entry.to.commit_ts)

    def driven_by(self, epoch: int) -> None:
        """By a driver that has claimed it. Raises Fenced when a newer one has."""
        if epoch < self._driver:
            raise Fenced(f"Driven by epoch {self._driver}, this is {epoch}.")
        self._driver = epoch

    def reached_syncpoint(self, epoch: int, ts: int, upstream: Upstream) -> None:
        """Raises Fenced, and AssertionError where it does not equal the upstream at `ts`."""
        self.driven_by(epoch)
        self._syncpoints.add(ts)
        for table in upstream.tables:
            at = upstream.first_ts
            for from_ts, to_ts in [*sorted(self._done.get(table, {}).values()), (ts, ts)]:
                assert to_ts <= ts, f"table {table} is written up to {to_ts} at syncpoint {ts}"
                lacking = upstream.selected_rows(table, at, from_ts)
                assert not lacking, f"table {table} lacks {lacking} at syncpoint {ts}"
                at = to_ts

    def check_syncpoints(self, checkpoint_ts: int) -> None:
        """None was left out."""
        if self.syncpoint_ms is None:
            return
        step = compose(self.syncpoint_ms)
        expected = set(range((START_TS // step + 1) * step, checkpoint_ts + 1, step))
        written = {ts for ts in self._syncpoints if ts <= checkpoint_ts}
        assert written == expected, f"syncpoints {sorted(expected - written)} are missing"
