"""docs/performance.md and its pictures, made from what the bench has measured: bench/results/*.json.

bench/page.py                            of the committed results
bench/page.py --results bench/out --page bench/out/performance.md
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import flame
from bars import svg
from measured import ROOT

Run = dict[str, Any]
Column = tuple[str, Callable[[Run], Any]]

_PEERS = (
    ("Flink CDC, its TiDB connector", 104_000, 15.5, 0.92),
    ("Debezium 3.6 on PostgreSQL", 75_000, 24.0, None),
)
_HEAD = """\
# Performance

Made by `bench/page.py` from `bench/results`; don't edit.

"""
_LEAST_PERCENT = 0.5
_MEASURING = Path(__file__).with_name("measuring.md")  # what does not depend on figures; its links are from docs


def page(report: dict[str, Any], where: str) -> str:
    """The whole text. `report`: bench.json; `where`: the folder of its pictures, from the page."""
    runs = report["runs"]
    sections = [_HEAD, _machine(report), _throughput(runs, where), _steady(runs, where), _restart(runs)]
    sections.append(_databases(report.get("databases")))
    return "".join([*sections, _profile(report.get("profile"), where), _MEASURING.read_text()])


def _machine(report: dict[str, Any]) -> str:
    machine = report["machine"]
    memory = machine["mem_bytes"] / (1 << 30)
    commits = sorted({run.get("commit", report["commit"]) for run in report["runs"]})
    return (
        f"Measured on {machine['cores']} cores ({machine['cpu']}) with {memory:.0f} GiB, Python {machine['python']}, "
        f"{machine['java'].replace(chr(34), '')}, Spark {machine['spark']}, at {', '.join(commits)}. "
        "[How](#measuring).\n\n"
    )


def _throughput(runs: Sequence[Run], where: str) -> str:
    chosen = _of(runs, "throughput")
    if not chosen:
        return ""
    columns: list[Column] = [
        ("rows/s", lambda run: _number(run["rows_per_s"], 0)),
        ("MB/s", lambda run: _number(run["mb_per_s"], 0)),
        ("CPU-s a million rows", lambda run: _number(_marginal(run, "cpu_s_per_mrow"))),
        ("in the kernel", lambda run: _number(_marginal(run, "kernel"))),
        ("CPU-s with the start", lambda run: _number(run["cpu_s_per_mrow"])),
        ("× receive", lambda run: _number(_times(run, "receive"), 1)),
        ("× cat", lambda run: _number(_times(run, "cat"), 0)),
        ("memory, MiB", _memory),
    ]
    peers = [
        f"| {name} | {rows:,} | {cpu:g} | {'' if idle is None else f'{idle:g}'} |" for name, rows, cpu, idle in _PEERS
    ]
    return "".join(
        [
            "## Throughput\n\n",
            _table("case", chosen, columns),
            _picture("throughput", "rows a second by case", where),
            _picture("cpu", "CPU by stage and case", where),
            "For orientation, others as measured elsewhere on two such cores, with other sources and workloads:\n\n",
            "| | rows/s | CPU-s a million rows | cores when idle |\n|---|---:|---:|---:|\n",
            "\n".join(peers),
            "\n\n",
        ]
    )


def _steady(runs: Sequence[Run], where: str) -> str:
    chosen = _of(runs, "steady")
    if not chosen:
        return ""
    columns: list[Column] = [
        ("rows/s", lambda run: _number(run["rows_per_s"], 0)),
        *((f"file lag {which}, ms", _lag("file_lag_ms", which)) for which in ("p50", "p99", "p999")),
        *((f"checkpoint lag {which}, ms", _lag("lag_ms", which)) for which in ("p50", "p99", "p999")),
        ("cores", lambda run: _number(run["cpu_cores"])),
        ("in the kernel", lambda run: _number(run.get("kernel_cpu_cores"))),
        ("memory, MiB", _memory),
    ]
    return "## Lag, and what a quiet changefeed takes\n\n" + "".join(
        [_table("case", chosen, columns), _picture("lag", "checkpoint lag by case", where)]
    )


def _restart(runs: Sequence[Run]) -> str:
    chosen = [*_of(runs, "catch-up"), *_of(runs, "recovery")]
    if not chosen:
        return ""
    lines = ["## Starting, catching up\n\n"]
    for run in chosen:
        if "live_multiple" in run:
            lines.append(
                f"- {run['name']}: {run['rows']:,} rows that were written while nothing ran are in the sink "
                f"{run['live_multiple']:g} times as fast as they came, beside those that go on coming.\n"
            )
        lines += [f"- {run['name']}, {what}: {seconds:g} s\n" for what, seconds in run["seconds"].items()]
    return "".join([*lines, "\n"])


def _databases(said: str | None) -> str:
    """As bench/database_sinks.py has said it."""
    if not said:
        return ""
    words = "Rows into a MariaDB and a Kafka beside it; the conflict detector alone. [What they mean](databases.md)."
    return f"## MySQL and Kafka\n\n{words}\n\n```text\n{said}```\n\n"


def _profile(profile: Run | None, where: str) -> str:
    """Percent of all samples by process and library, the largest first."""
    if profile is None:
        return ""
    user, kernel = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for process, library, in_kernel, _, count in profile["samples"]:
        (kernel if in_kernel else user)[process, library] += count
    both, percent = user + kernel, 100 / (user.total() + kernel.total())
    shown = [key for key, count in both.most_common() if count * percent >= _LEAST_PERCENT]
    rest = [key for key in both if key not in shown]
    rows = [(*key, user[key], kernel[key]) for key in shown]
    rows.append(("", "the rest", sum(user[key] for key in rest), sum(kernel[key] for key in rest)))
    rows.append(("", "all", user.total(), kernel.total()))
    lines = [
        f"| {process} | {library} | {in_user * percent:.1f} | {in_kernel * percent:.1f} |"
        for process, library, in_user, in_kernel in rows
    ]
    return "".join(
        [
            f"## Where the CPU goes\n\nSamples of {profile['of']}, in percent. [How](#a-profile).\n\n",
            _picture("profile", "samples by process, library and function", where),
            "| process | library | user | kernel |\n|---|---|---:|---:|\n",
            "\n".join(lines),
            "\n\n",
        ]
    )


def pictures(report: dict[str, Any]) -> dict[str, str]:
    """SVG by name."""
    runs = report["runs"]
    fast, lags = _of(runs, "throughput"), _of(runs, "steady")
    found = {}
    if profile := report.get("profile"):
        places = [((process, library, inside, name), n) for process, library, inside, name, n in profile["samples"]]
        found["profile"] = flame.svg(f"Where the CPU goes: {profile['of']}", places)
    if fast:
        bars = [(run["name"], {"rows": float(run["rows_per_s"])}) for run in fast]
        found["throughput"] = svg("Rows a second", bars, "rows/s")
        stages = [(run["name"], _marginal(run, "stages") or run["stages"]) for run in fast]
        found["cpu"] = svg("CPU seconds a million rows", stages, "s")
    if lags:
        found["lag"] = svg("Checkpoint lag", [(run["name"], _steps(run["lag_ms"])) for run in lags], "ms")
    return found


def _steps(lag: dict[str, int]) -> dict[str, float]:
    """What each percentile has above the one before."""
    return {"p50": lag["p50"], "p99": lag["p99"] - lag["p50"], "p999": lag["p999"] - lag["p99"]}


def _of(runs: Iterable[Run], kind: str) -> list[Run]:
    return [run for run in runs if run["kind"] == kind]


def _marginal(run: Run, name: str) -> Any:
    return run.get("marginal", {}).get(name)


def _times(run: Run, baseline: str) -> Any:
    return run.get("baselines", {}).get(baseline, {}).get("times")


def _memory(run: Run) -> str:
    peak = run.get("peak_memory_bytes")
    return "" if peak is None else f"{(peak['own'] + peak['shared']) / (1 << 20):,.0f}"


def _lag(name: str, which: str) -> Callable[[Run], str]:
    return lambda run: _number(run.get(name, {}).get(which), 0)


def _number(value: float | None, digits: int = 2) -> str:
    """Empty for what was not measured."""
    return "" if value is None else f"{value:,.{digits}f}"


def _table(first: str, runs: Sequence[Run], columns: Sequence[Column]) -> str:
    """Without columns in which nothing stands."""
    cells = [[column(run) for run in runs] for _, column in columns]
    kept = [number for number, column in enumerate(cells) if any(column)]
    head = [first, *(columns[number][0] for number in kept)]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * len(kept)]
    for row, run in enumerate(runs):
        lines.append("| " + " | ".join([run["name"], *(cells[number][row] for number in kept)]) + " |")
    return "\n".join(lines) + "\n\n"


def _picture(name: str, words: str, where: str) -> str:
    return f"![{words}]({where}/performance-{name}.svg)\n\n"


def read(results: Path) -> dict[str, Any]:
    """What a folder has: bench.json, under "profile" what bench/shares.py has written, under "databases" the sinks'."""
    report: dict[str, Any] = json.loads((results / "bench.json").read_text())
    if (profile := results / "profile.json").exists():
        report["profile"] = json.loads(profile.read_text())
    if (databases := results / "database_sinks.txt").exists():
        report["databases"] = databases.read_text()
    return report


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--results", type=Path, default=ROOT / "bench" / "results", help="folder of bench.json")
    arguments.add_argument("--page", type=Path, default=ROOT / "docs" / "performance.md")
    given = arguments.parse_args()
    report = read(given.results)
    for name, drawn in pictures(report).items():
        (given.results / f"performance-{name}.svg").write_text(drawn)
    where = os.path.relpath(given.results.resolve(), given.page.resolve().parent)
    given.page.write_text(page(report, where))
    sys.stdout.write(f"written to {given.page}\n")


if __name__ == "__main__":
    main()
