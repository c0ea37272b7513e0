"""Progress display of a running changefeed: a live table on a terminal, otherwise a line every two seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from changefeed.owner.reporting.snapshot import RunSnapshot, View
from changefeed.spec.driver_status import StageRate

LINE_INTERVAL_S = 2.0
#: In a pod, whose log is kept for weeks and read when something is wrong.
POD_LINE_INTERVAL_S = 30.0


def open_view(console: Console, silent: bool, line_interval: float = LINE_INTERVAL_S) -> AbstractContextManager[View]:
    """The view that suits `console`, to be entered for as long as the changefeed runs."""
    if silent:
        return nullcontext(SilentView())
    return LiveView(console) if console.is_terminal else nullcontext(LineView(console, line_interval))


class SilentView:
    """Shows nothing: for scripts."""

    def update(self, snapshot: RunSnapshot) -> None:
        pass

    def close(self) -> None:
        pass


class LineView:
    """One plain line every `interval` seconds, for logs."""

    def __init__(
        self, console: Console, interval: float = LINE_INTERVAL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._interval = interval
        self._clock = clock
        self._next = float("-inf")

    def update(self, snapshot: RunSnapshot) -> None:
        now = self._clock()
        if now >= self._next:
            self._next = now + self._interval
            self._console.print(Text(line(snapshot)), soft_wrap=True)

    def close(self) -> None:
        pass


class LiveView:
    """A table that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=4)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def update(self, snapshot: RunSnapshot) -> None:
        self._live.update(table(snapshot))

    def close(self) -> None:
        self._live.stop()


def line(snapshot: RunSnapshot) -> str:
    """It in one line."""
    sink = snapshot.stages[-1]
    return (
        f"{snapshot.message} | pulled {snapshot.pulled:,} rows | written {sink.rows:,} rows, {_mb(sink.bytes)} MB, "
        f"{snapshot.files:,} files | {sink.rows_per_second:,.0f} rows/s, {_mb(sink.bytes_per_second)} MB/s | "
        f"resolved-ts lag {_lag(snapshot.resolved_ts, snapshot.resolved_lag)} | "
        f"checkpoint lag {_lag(snapshot.checkpoint_ts, snapshot.checkpoint_lag)} at {snapshot.checkpoint_ts}"
    )


def table(snapshot: RunSnapshot) -> RenderableType:
    """It as a table of the stages, with the lags below it."""
    stages = Table(title=Text(snapshot.message), title_justify="left", title_style="bold", expand=False)
    stages.add_column("stage")
    for column in ("rows", "rows/s", "MB", "MB/s"):
        stages.add_column(column, justify="right", min_width=9)
    for name, stage in zip(("1 puller", "  event store", "2 pipeline", "3 sink"), snapshot.stages, strict=True):
        stages.add_row(name, *_figures(stage))
    below = Table.grid(padding=(0, 2))
    below.add_row("files", f"{snapshot.files:,}", "resolved-ts lag", _lag(snapshot.resolved_ts, snapshot.resolved_lag))
    below.add_row(
        "tables",
        f"{snapshot.table_count:,} ({snapshot.dirty:,} with unwritten rows)",
        "checkpoint lag",
        _lag(snapshot.checkpoint_ts, snapshot.checkpoint_lag),
    )
    return Group(stages, below)


def _figures(stage: StageRate) -> tuple[str, ...]:
    return (f"{stage.rows:,}", f"{stage.rows_per_second:,.0f}", _mb(stage.bytes), _mb(stage.bytes_per_second))


def _mb(count: float) -> str:
    return f"{count / 1e6:,.1f}"


def _lag(ts: int, seconds: float) -> str:
    return f"{seconds:.1f} s" if ts else "not known yet"
