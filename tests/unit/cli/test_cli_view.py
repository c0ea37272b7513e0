from __future__ import annotations

import io
from dataclasses import replace

from changefeed.cli.lifecycle.view import LineView, LiveView, SilentView, open_view, table
from changefeed.owner.reporting.snapshot import RunSnapshot
from changefeed.spec.driver_status import StageRate
from rich.console import Console

SNAPSHOT = RunSnapshot(
    message="Running.",
    checkpoint_ts=449000000000000000,
    resolved_ts=449000000000000001,
    checkpoint_lag=2.26,
    resolved_lag=0.5,
    stages=(
        StageRate(name="puller", rows=12_345),
        StageRate(name="event store"),
        StageRate(name="pipeline"),
        StageRate(name="sink", rows=12_000, bytes=3_400_000, rows_per_second=987.4, bytes_per_second=250_000),
    ),
    files=7,
    table_count=4,
    dirty=1,
)


def _console(terminal: bool = False) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=terminal, width=120), out


def test_a_line_every_two_seconds_and_no_more() -> None:
    console, out = _console()
    moments = iter([10.0, 11.9, 12.0, 12.1])
    view = LineView(console, clock=lambda: next(moments))
    for state in ("one", "two", "three", "four"):
        view.update(replace(SNAPSHOT, message=state))
    assert [line.split(" | ")[0] for line in out.getvalue().splitlines()] == ["one", "three"]


def test_the_line_says_it_all() -> None:
    console, out = _console()
    LineView(console).update(SNAPSHOT)
    assert out.getvalue() == (
        "Running. | pulled 12,345 rows | written 12,000 rows, 3.4 MB, 7 files | 987 rows/s, 0.2 MB/s | "
        "resolved-ts lag 0.5 s | checkpoint lag 2.3 s at 449000000000000000\n"
    )


def test_the_table_shows_stages_rates_files_and_lags() -> None:
    console, out = _console()
    console.print(table(replace(SNAPSHOT, resolved_ts=0)))
    rows = {line.split("│")[1].strip(): line for line in out.getvalue().splitlines() if line.startswith("│")}
    assert list(rows) == ["1 puller", "event store", "2 pipeline", "3 sink"]
    assert [cell.strip() for cell in rows["3 sink"].split("│")[2:6]] == ["12,000", "987", "3.4", "0.2"]
    assert "Running." in out.getvalue()
    assert "4 (1 with unwritten rows)" in out.getvalue()
    assert "resolved-ts lag  not known yet" in " ".join(out.getvalue().split("\n")).replace("   ", "  ")


def test_the_view_suits_the_place() -> None:
    terminal, out = _console(terminal=True)
    with open_view(terminal, silent=False) as view:
        assert isinstance(view, LiveView)
        view.update(SNAPSHOT)
    assert "12,345" in out.getvalue()
    with open_view(_console()[0], silent=False) as view:
        assert isinstance(view, LineView)
    with open_view(terminal, silent=True) as view:
        assert isinstance(view, SilentView)


def test_square_brackets_in_a_state_are_text() -> None:
    console, out = _console()
    LineView(console).update(replace(SNAPSHOT, message="[bold]x[/nope]"))
    console.print(table(replace(SNAPSHOT, message="[bold]x[/nope]")))
    assert out.getvalue().count("[bold]x[/nope]") == 2
