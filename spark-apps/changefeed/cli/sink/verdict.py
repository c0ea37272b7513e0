"""Prints the progress and the result of `changefeed verify`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from changefeed.reading.progress import NoProgress, ReadingProgress

_READ = (
    "topics",
    "partitions",
    "messages",
    "rows",
    "transactions",
    "tables",
    "files",
    "repeated",
    "replayed",
    "consumed",
)
_BROKEN = (
    "missing",
    "surplus",
    "different",
    "duplicate",
    "unexpected",
    "out_of_order",
    "early",
    "went_back",
    "replay_missing",
    "replay_extra",
    "replay_different",
    "consumed_missing",
    "consumed_extra",
    "consumed_different",
)


def open_progress(console: Console, silent: bool) -> AbstractContextManager[ReadingProgress]:
    """The progress that suits `console`, to be entered while verify runs: a bar on a terminal, else nothing."""
    return nullcontext(NoProgress()) if silent or not console.is_terminal else StageBar(console)


class StageBar:
    """One line: the present stage, and how much of it is done."""

    def __init__(self, console: Console) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._bars = Bars(*columns, TimeElapsedColumn(), console=console, transient=True)
        self._task = self._bars.add_task("starting", total=None)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._bars.stop()

    def stage(self, name: str, total: int | None = None) -> None:
        self._bars.remove_task(self._task)
        self._task = self._bars.add_task(name, total=total)

    def advance(self, count: int) -> None:
        self._bars.advance(self._task, count)


def write_verdict(result: Mapping[str, Any]) -> None:
    """A table of what was read and what was found, what was assumed, then the verdict."""
    console = Console(file=sys.stdout)
    table = Table(show_header=False, title="verify", title_justify="left", title_style="bold")
    table.add_column()
    table.add_column(justify="right")
    for name in _READ:
        if name in result:
            table.add_row(name, f"{result[name]:,}")
    table.add_section()
    for name in _BROKEN:
        if name in result:
            count = result[name]
            table.add_row(name.replace("_", " "), f"{count:,}", style="red" if count else "green")
    if result.get("conserved"):
        table.add_row("conserved", Text(str(result["conserved"])))
    console.print(table)
    for each in result.get("by_table", ()):
        if each["examples"]:
            console.print(Text(f"{each['table']}: {'; '.join(each['examples'])}", style="red"), soft_wrap=True)
    for note in result.get("notes", ()):
        console.print(Text(f"Note: {note}", style="yellow"), soft_wrap=True)
    if result["ok"]:
        console.print("Every promise holds up to the checkpoint.", style="green")
    else:
        console.print(Text(f"A promise is broken: {result['first_problem']}", style="red"), soft_wrap=True)
