"""What a run has done, in numbers: counted for the metrics, and read as a snapshot."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterable, Sequence

from changefeed.errors import ChangefeedError, Unavailable
from changefeed.log.records import FileCommitted
from changefeed.log.state import State
from changefeed.metrics import Registry
from changefeed.model.tso import physical_ms
from changefeed.objectstore.patience import RUN_S, given_up
from changefeed.owner.owner import Owner
from changefeed.owner.planning.actions import Action, AppendPlan, Publish
from changefeed.owner.pulling.known_files import Reader
from changefeed.owner.reporting.copy_progress import CopyProgress
from changefeed.owner.reporting.lags import Lags
from changefeed.owner.reporting.snapshot import RunSnapshot
from changefeed.owner.reporting.stage_times import StageTimes
from changefeed.owner.reporting.troubles import Troubles, away_reason, failed_reason
from changefeed.owner.writing.open_entries import EntryKey
from changefeed.spec.driver_status import TRANSACTIONS_MAX, DriverError, OpenTransaction, StageRate, TableStatus
from changefeed.wire import owner_pb2 as pb

_LOG = logging.getLogger(__name__)
_OVERFLOW = "its segments overflowed the buffer (spec.eventStore.bufferSize) and are now read from the archive."
_BACK = "its segments are read from the buffer again."
_WINDOW_S = 5.0
_STATES = ("Pending", "Normal", "Warning", "Finished")  # TiCDC's words, as in the resource's status
#: Each with the metrics of its rows and bytes.
_STAGES = (
    ("puller", "changefeed_puller_events_total", "changefeed_puller_bytes_total"),
    ("event store", "changefeed_event_store_events_total", "changefeed_event_store_bytes_total"),
    ("pipeline", "changefeed_pipeline_rows_total", "changefeed_pipeline_bytes_total"),
    ("sink", "changefeed_sink_rows_total", "changefeed_sink_bytes_total"),
)


class Meter:
    """Counts into `registry`, reads progress out of it. `pd_ms` is PD's clock as last seen; 0: not yet."""

    def __init__(
        self, owner: Owner, registry: Registry, server: str = RunSnapshot.server, source: str = RunSnapshot.source
    ) -> None:
        """`server`, `source`: as those of UpstreamSpec."""
        self._owner = owner
        self._registry = registry
        self._server, self._source = server, source
        self._samples: deque[tuple[float, list[tuple[float, float]]]] = deque()
        self._moves = self._splits = 0  # counted
        self._overflowed: set[int] = set()  # pullers whose segments are said to be read from the archive
        self.draining = False
        self.pd_ms = 0
        self._pd_at = 0.0
        self._troubles = Troubles()
        self._stage_times = StageTimes()
        self.blocked: dict[int, pb.Blocked] = {}  # by puller
        self._copies = CopyProgress()
        self.lags = Lags()
        self.started_ms = 0  # by PD's clock
        self._last_error: DriverError | None = None

    def pd_answered(self, now: float, pd_ms: int) -> None:
        """`now`: monotonic seconds."""
        self.pd_ms, self._pd_at = pd_ms, now
        self.started_ms = self.started_ms or pd_ms
        self._troubles.upstream_answered(pd_ms)

    def pd_age(self, now: float) -> float:
        """Seconds since PD has answered."""
        return now - self._pd_at if self.pd_ms else math.inf

    @property
    def next_step(self) -> str:
        """Say what to do about a server that does not answer."""
        return f"Check {self._server} and the network to it"

    def pd_failed(self, message: str) -> None:
        self._troubles.upstream_failed(self.pd_ms, message)
        self._failed(away_reason(self._server), message, f"Look at {self._server} and the network to it.")

    def store_failed(self, who: str, error: ChangefeedError) -> None:
        """The sink or the state fails for `who`, which waits and tries again."""
        self._troubles.store_failed(who, self.pd_ms, error.message, error.answered, error.next_step)
        self._failed(failed_reason(error.answered), error.message, error.next_step)

    def store_works(self, who: str, at_once: bool = True) -> None:
        if at_once:
            self._troubles.store_works(who)
        else:
            self._troubles.store_worked_late(who, self.pd_ms)

    def given_up(self, now: float) -> Unavailable | None:
        """That a store has failed for longer than a run waits; tasks wait for as long as they are let."""
        trouble = self._troubles.failing
        if trouble is None or self.clock(now) - trouble.since_ms < RUN_S * 1000:
            return None
        return given_up("A store", RUN_S, trouble.message, trouble.answered, trouble.next_step)

    def report(self, puller: int, report: pb.Report) -> None:
        """A puller's report: its own metrics, the segments that it has written, and why it can't write more."""
        if report.trouble:
            answered = report.answered if report.HasField("answered") else None
            self._troubles.store_failed(f"puller-{puller}", self.pd_ms, report.trouble, answered)
            self._failed(failed_reason(answered), report.trouble)
        else:
            self.store_works(f"puller-{puller}")
        self.blocked.pop(puller, None)
        if report.HasField("blocked"):
            self.blocked[puller] = report.blocked
        stopped = report.stopped if report.HasField("stopped") else None
        self.tikv_stopped(f"puller-{puller}", (stopped.reason, stopped.message) if stopped else None)
        for delta in report.metrics:
            self._registry.apply_delta(delta.name, delta.label, delta.value, delta.gauge, f"puller-{puller}")
        for segment in report.segments:
            if not segment.uri:
                continue  # a number without a file
            rows = sum(span.rows for span in segment.spans)
            self.count("changefeed_event_store_segments_total", 1)
            self.count("changefeed_event_store_events_total", rows)
            self.count("changefeed_event_store_bytes_total", segment.bytes)

    def puller_left(self, puller: int) -> None:
        self._registry.forget(f"puller-{puller}")
        self.store_works(f"puller-{puller}")
        self.blocked.pop(puller, None)
        self.tikv_stopped(f"puller-{puller}", None)

    def tikv_stopped(self, who: str, why: tuple[str, str] | None) -> None:
        """A TiKV store sends `who` no change data; `why`: the condition's reason, the message. None: they all do."""
        before = self._troubles.tikv
        if why is None:
            self._troubles.tikv_sends(who)
        elif self._troubles.tikv_stopped(who, self.pd_ms, *why):
            self._failed(*why, "It is tried again.")
        now = self._troubles.tikv
        if now and (before is None or before.message != now.message):
            _LOG.warning("%s", now.message)
        if before and now is None:
            _LOG.warning("Change data is sent again.")

    def written(self, now: float, key: EntryKey) -> None:
        """The sink has an entry's rows. `now`: monotonic seconds."""
        self._observe(self._stage_times.written(key, self.clock(now)))

    def recorded(self, now: float, action: Action) -> None:
        """An action's record is in the log. `now`: monotonic seconds."""
        if isinstance(action, AppendPlan):
            self.count("changefeed_owner_plans_total", 1)
            for entry in action.record.entries:
                self.count("changefeed_owner_entries_total", 1, entry.reason)
            self._observe(self._stage_times.planned(action.record, self.clock(now)))
        elif isinstance(action, Publish):
            self._files(action.record.files)
            self._observe(self._stage_times.committed(action.record.files, self.clock(now)))

    def snapshot(self, now: float, tables: int = 0) -> RunSnapshot:
        """`now`: monotonic seconds; `tables`: how many of those that are furthest behind it shows."""
        owner, state, spans, troubles = self._owner, self._owner.state, self._owner.spans, self._troubles
        resolved_ts, dirty, pd_ms = owner.resolved_ts(), owner.planner.dirty, self.clock(now)
        checkpoint_lag, resolved_lag = _lag(pd_ms, state.checkpoint_ts), _lag(pd_ms, resolved_ts)
        self.lags.note(pd_ms, resolved_ts, owner.planned_ts(resolved_ts), state.checkpoint_ts)
        for name, value, label in (
            ("changefeed_owner_checkpoint_ts_lag_seconds", checkpoint_lag, ""),
            ("changefeed_owner_resolved_ts_lag_seconds", resolved_lag, ""),
            ("changefeed_event_store_used_bytes", spans.files.bytes, ""),
            ("changefeed_owner_held_spans_count", len(spans.held), ""),
            ("changefeed_owner_dispatchers_count", dirty, "dirty"),
            ("changefeed_owner_dispatchers_count", len(owner.dispatchers) - dirty, "idle"),
            *(("changefeed_owner_state_info", word == self.word, word) for word in _STATES),
        ):
            self._registry.apply_delta(name, label, value, True)
        self.count("changefeed_owner_moves_total", spans.moves - self._moves)
        self.count("changefeed_owner_splits_total", spans.splits - self._splits)
        self._moves, self._splits = spans.moves, spans.splits
        self._modes()
        copied = self._copies.say(now, state)
        return RunSnapshot(
            at_ms=pd_ms,
            started_ms=self.started_ms,
            state=self.word,
            message=self._sentence(state, copied),
            epoch=state.epoch.number,
            cluster_id=state.cluster_id,
            start_ts=state.asked_ts,
            checkpoint_ts=state.checkpoint_ts,
            resolved_ts=resolved_ts,
            checkpoint_lag=checkpoint_lag,
            resolved_lag=resolved_lag,
            rows=state.rows,
            files=int(self._registry.total("changefeed_sink_files_total")),
            stages=self._stages(now),
            lags=self.lags.samples(),
            table_count=len(owner.dispatchers),
            dirty=dirty,
            tables=tuple(self._table(*reached) for reached in owner.furthest_behind(tables)) if tables else (),
            transactions=self._transactions(),
            complete=spans.complete,
            held=len(spans.held),
            sink=troubles.sink,
            server=self._server,
            source=self._source,
            upstream=troubles.upstream,
            tikv=troubles.tikv,
            last_error=self.last_error,
            ddl=(state.last_ddl[0], state.last_statement) if state.last_ddl else None,
            copied=copied,
            mode=mode_of(spans.files.readers.values()),
        )

    def _modes(self) -> None:
        """Where each puller's segments are read; a change is said in the log, but not how each run begins."""
        readers = self._owner.spans.files.readers
        for mode, in_buffer in (("buffer", True), ("archive", False)):
            count = sum(reader.in_buffer is in_buffer for reader in readers.values())
            self._registry.apply_delta("changefeed_event_store_mode", mode, count, True)
        for puller, in_buffer in self._owner.spans.files.take_switches():
            self.count("changefeed_event_store_mode_switches_total", 1)
            if not in_buffer:
                self._overflowed.add(puller)
                _LOG.warning("Puller %d: %s", puller, _OVERFLOW)
            elif puller in self._overflowed:
                self._overflowed.remove(puller)
                _LOG.warning("Puller %d: %s", puller, _BACK)

    def status_failed(self, reason: str) -> None:
        """The resource's status could not be written."""
        self.count("changefeed_owner_status_errors_total", 1, reason)

    def _table(self, dispatcher: int, written_ts: int) -> TableStatus:
        spans = self._owner.spans
        return TableStatus(
            name=self._owner.table_name(dispatcher),
            dispatcher=dispatcher,
            written_ts=written_ts,
            resolved_ts=spans.resolved_ts(dispatcher),
            held=dispatcher in spans.held,
        )

    def _transactions(self) -> tuple[OpenTransaction, ...]:
        """Who began first comes first."""
        oldest = sorted(self.blocked.items(), key=lambda each: (each[1].start_ts, each[0]))
        name = self._owner.table_name
        return tuple(
            OpenTransaction(table=name(by.span_id), puller=puller, start_ts=by.start_ts, ttl_ms=by.ttl_ms)
            for puller, by in oldest[:TRANSACTIONS_MAX]
        )

    def _files(self, files: Sequence[FileCommitted]) -> None:
        rows, size = sum(file.rows for file in files), sum(file.bytes for file in files)
        self.count("changefeed_pipeline_rows_total", rows)
        self.count("changefeed_pipeline_bytes_total", size)
        self.count("changefeed_pipeline_filtered_rows_total", sum(file.filtered_rows for file in files))
        self.count("changefeed_sink_files_total", len(files))
        self.count("changefeed_sink_rows_total", rows)
        self.count("changefeed_sink_bytes_total", size)

    def _observe(self, times: Iterable[tuple[str, float]]) -> None:
        for name, seconds in times if self.pd_ms else ():
            self._registry.apply_delta(name, "", seconds, False)

    def count(self, name: str, value: float, label: str = "") -> None:
        self._registry.apply_delta(name, label, value, False)

    def _stages(self, now: float) -> tuple[StageRate, ...]:
        """What went through since the driver started, and how fast lately."""
        totals = [(self._registry.total(rows), self._registry.total(size)) for _, rows, size in _STAGES]
        self._samples.append((now, totals))
        while len(self._samples) > 1 and now - self._samples[0][0] > _WINDOW_S:
            self._samples.popleft()
        first_at, first = self._samples[0]
        seconds = max(now - first_at, 1e-3)
        return tuple(
            StageRate(
                name=name,
                rows=int(rows),
                rows_per_second=(rows - rows_before) / seconds,
                bytes=int(size),
                bytes_per_second=(size - size_before) / seconds,
            )
            for (name, _, _), (rows, size), (rows_before, size_before) in zip(_STAGES, totals, first, strict=True)
        )

    def clock(self, now: float) -> int:
        """PD's, which has gone on since it was last seen; 0: not seen yet."""
        return self.pd_ms + int((now - self._pd_at) * 1000) if self.pd_ms else 0

    @property
    def last_error(self) -> DriverError | None:
        """The newest one, of a store or of the upstream; it may be over."""
        error, troubles = self._last_error, self._troubles
        return error and error.model_copy(update={"over": not (troubles.sink or troubles.upstream or troubles.tikv)})

    def _failed(self, kind: str, message: str, next_step: str = "") -> None:
        step = next_step or "It is tried again; look at the store if this lasts."
        self._last_error = DriverError(kind=kind, message=message, next_step=step, at_ms=self.pd_ms)

    @property
    def word(self) -> str:
        """The state of the run, one of _STATES."""
        if self._owner.state.finished:
            return "Finished"
        if self._troubles.sink or self._troubles.upstream or self._troubles.tikv:
            return "Warning"
        return "Normal" if self._owner.spans.complete else "Pending"

    def _sentence(self, state: State, copied: str) -> str:
        if trouble := self._troubles.sink:
            return f"Waiting for a store and retrying: {trouble.message}"
        if trouble := self._troubles.upstream or self._troubles.tikv:
            return f"Waiting for the upstream and retrying: {trouble.message}"
        if self.draining:
            return "Draining: resolved changes are being written. Press Ctrl-C again to stop at once."
        if not self._owner.spans.complete:
            return "Starting: the pullers are catching up."
        if held := len(self._owner.spans.held):
            return f"Running, epoch {state.epoch.number}; the event store is full, {held} spans are held back."
        return f"Running, epoch {state.epoch.number}{copied and '; '}{copied}."


def mode_of(readers: Iterable[Reader]) -> str:
    """Return the mode of a run: the archive as soon as one puller's buffer has overflowed."""
    buffers = [reader.in_buffer for reader in readers if reader.has_buffer]
    if not buffers:
        return ""
    return "Buffer" if all(buffers) else "Archive"


def _lag(pd_ms: int, ts: int) -> float:
    return max(0.0, (pd_ms - physical_ms(ts)) / 1000) if pd_ms else 0.0
