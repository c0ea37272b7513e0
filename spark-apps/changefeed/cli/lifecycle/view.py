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

from changefeed.owner.reporting.view import Progress, StageProgress, View

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

    def update(self, progress: Progress) -> None:
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

    def update(self, progress: Progress) -> None:
        now = self._clock()
        if now >= self._next:
            self._next = now + self._interval
            self._console.print(Text(line(progress)), soft_wrap=True)

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

    def update(self, progress: Progress) -> None:
        self._live.update(table(progress))

    def close(self) -> None:
        self._live.stop()


def line(progress: Progress) -> str:
    """The progress in one line."""
    sink = progress.sink
    return (
        f"{progress.state} | pulled {progress.puller.rows:,} rows | written {sink.rows:,} rows, {_mb(sink.bytes)} MB, "
        f"{progress.files:,} files | {sink.rows_per_s:,.0f} rows/s, {_mb(sink.bytes_per_s)} MB/s | "
        f"resolved-ts lag {_lag(progress.resolved_ts, progress.resolved_lag)} | "
        f"checkpoint lag {_lag(progress.checkpoint_ts, progress.checkpoint_lag)} at {progress.checkpoint_ts}"
    )


def table(progress: Progress) -> RenderableType:
    """The progress as a table of the stages, with the lags below it."""
    stages = Table(title=Text(progress.state), title_justify="left", title_style="bold", expand=False)
    stages.add_column("stage")
    for column in ("rows", "rows/s", "MB", "MB/s"):
        stages.add_column(column, justify="right", min_width=9)
    for name, stage in (
        ("1 puller", progress.puller),
        ("  event store", progress.event_store),
        ("2 pipeline", progress.pipeline),
        ("3 sink", progress.sink),
    ):
        stages.add_row(name, *_figures(stage))
    below = Table.grid(padding=(0, 2))
    below.add_row("files", f"{progress.files:,}", "resolved-ts lag", _lag(progress.resolved_ts, progress.resolved_lag))
    below.add_row(
        "tables",
        f"{progress.tables:,} ({progress.dirty:,} with unwritten rows)",
        "checkpoint lag",
        _lag(progress.checkpoint_ts, progress.checkpoint_lag),
    )
    return Group(stages, below)


def _figures(stage: StageProgress) -> tuple[str, ...]:
    return (f"{stage.rows:,}", f"{stage.rows_per_s:,.0f}", _mb(stage.bytes), _mb(stage.bytes_per_s))


def _mb(count: float) -> str:
    return f"{count / 1e6:,.1f}"


def _lag(ts: int, seconds: float) -> str:
    return f"{seconds:.1f} s" if ts else "not known yet"
