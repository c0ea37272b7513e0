"""Passes what tasks report from the service to the cores and the meter.

All it decides is which task errors end the run: those that a retry can't fix.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from changefeed.errors import ChangefeedError, InvalidSpec, NeedsHuman, OutputConflict
from changefeed.log.records import FileCommitted
from changefeed.metrics import Registry
from changefeed.owner.owner import Owner
from changefeed.owner.reporting.meter import Meter
from changefeed.owner.serving.vigilance import Vigilance
from changefeed.owner.writing.open_entries import EntryKey
from changefeed.wire import owner_pb2 as pb
from changefeed.wire.owner import error_of

_FILES = "files"


class Calls:
    """Implements service.Handler. `changed` is called after each that may give the owner something to do."""

    def __init__(
        self,
        owner: Owner,
        meter: Meter,
        registry: Registry,
        changed: Callable[[], None],
        failed: Callable[[ChangefeedError], None],
        hear: Callable[[int, bytes], None],
    ) -> None:
        """`hear`: as SchemaFeed.hear."""
        self._owner = owner
        self._meter = meter
        self._registry = registry
        self._changed = changed
        self._failed = failed
        self._hear = hear
        self.vigilance = Vigilance()
        self.task_error: ChangefeedError | None = None  # the last one that a task reported, which is tried again

    def puller_joined(self, puller: int) -> list[pb.Command]:
        commands = self._owner.puller_joined(time.monotonic(), puller)
        self._changed()
        return commands

    def puller_left(self, puller: int) -> None:
        self.vigilance.left("puller", puller)
        self._owner.puller_left(time.monotonic(), puller)
        self._meter.puller_left(puller)
        self._changed()

    def report(self, puller: int, report: pb.Report) -> None:
        if report.HasField("task"):
            self.vigilance.heard("puller", puller, report.task)
        try:
            for news in report.news:
                self._hear(news.ts, news.content)
            self._owner.report(time.monotonic(), puller, report)
            self._meter.report(puller, report)
        except ChangefeedError as error:
            self._failed(error)
        for failure in report.failures:
            self._failed(error_of(failure))  # nobody pulls that span any more
        self._changed()

    def task_joined(self, task: int) -> list[pb.Order]:
        self._owner.task_joined(task)
        self._changed()
        return []

    def task_left(self, task: int) -> None:
        self.vigilance.left("pipeline", task)
        self._owner.task_left(task)
        self._changed()

    def written(self, task: int, written: pb.Written) -> None:
        if written.HasField("attempt"):
            self.vigilance.heard("pipeline", task, written.attempt)
        for file in written.files:
            self._owner.file_done(task, _committed(file))
            self._meter.written(time.monotonic(), EntryKey(file.plan, file.entry))
        for back in written.given_back:
            self._owner.given_back(task, EntryKey(back.plan, back.entry), back.segment)
        for delta in written.metrics:
            self._registry.apply_delta(delta.name, delta.label, delta.value, gauge=False)
        if written.files:
            self._meter.store_works(_FILES)
        if written.files or written.given_back:
            self._changed()

    def fail(self, failure: pb.Failure) -> None:
        """A task failed and Spark tries it again, or waits for a store.

        Where trying again can't help the run ends now, else when Spark or the driver gives up.
        """
        error = error_of(failure)
        self._registry.apply_delta("changefeed_owner_task_errors_total", failure.reason, 1, False)
        if isinstance(error, NeedsHuman | OutputConflict | InvalidSpec):
            self._failed(error)
        else:
            self.task_error = error
            self._meter.store_failed(_FILES, error)


def _committed(file: pb.FileDone) -> FileCommitted:
    return FileCommitted(
        plan=file.plan,
        entry=file.entry,
        rows=file.rows,
        raw_rows=file.raw_rows,
        filtered_rows=file.filtered_rows,
        bytes=file.bytes,
        hash=file.hash,
    )
