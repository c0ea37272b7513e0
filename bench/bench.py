"""The bench suite: rows from a development cluster or a PostgreSQL, through `changefeed run`, to files.

    bench.py                                           all cases of the suite
    bench.py --case insert-csv-scan --rows 1000000 --repeat 5

Prints what each case came to and writes bench/out/bench.json (bench/measuring.md, The form of results) after each;
what is there of cases that are not measured now stays. bench/page.py makes a page with pictures of it. The cases are
declared in bench/cases.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from cases import CASES, Case, Kind
from measured import ROOT, runs_of, write_report
from postgresql import slot
from postgresql_lag import slot_lag
from restart import catch_up, recovery
from results import Result, median
from steady import steady
from throughput import throughput

_MEASURED_BY: dict[Kind, Callable[[Case, bool], Result]] = {
    "throughput": throughput,
    "steady": steady,
    "catch-up": catch_up,
    "recovery": recovery,
    "slot": slot,
    "slot-lag": slot_lag,
}


def measure(case: Case, repeat: int, verify: bool) -> Result:
    return median([_MEASURED_BY[case.kind](case, verify) for _ in range(repeat)])


def said(result: Result) -> str:
    """Return what a case came to, in lines."""
    lines = [
        f"{result.name}: {result.rows:,} rows in {result.wall_s:.1f} s = {result.rows_per_s:,.0f} rows/s, "
        f"verified: {result.verified}"
    ]
    if result.marginal is not None:
        lines.append(
            "  CPU-s a million rows: {cpu_s_per_mrow:.2f}, of these in the kernel {kernel:.2f}".format_map(
                result.marginal
            )
        )
        lines += [f"    {stage:<14}{seconds:6.2f}" for stage, seconds in result.marginal["stages"].items()]
    for name, figures in (result.baselines or {}).items():
        lines.append(f"  {name}: {figures['rows_per_s']:,.0f} rows/s, the run takes {figures['times']:g} times its CPU")
    if result.cpu_cores is not None:
        lines.append(f"  cores used: {result.cpu_cores:.2f}, in the kernel {result.kernel_cpu_cores:.2f}")
    lags = {
        "file": result.file_lag_ms,
        "consumer": result.consumer_lag_ms,
        "checkpoint": result.lag_ms,
        "resolved-ts": result.resolved_lag_ms,
        "own row": result.own_row_lag_ms,
        "own checkpoint": result.own_lag_ms,
    }
    for name, lag in lags.items():
        if lag is not None:
            lines.append(f"  {name} lag, ms: " + ", ".join(f"{which} {ms:,}" for which, ms in lag.items()))
    if result.live_multiple is not None:
        lines.append(f"  catches up at {result.live_multiple:.1f} times the live rate")
    lines += [f"  {what}: {seconds:.2f} s" for what, seconds in (result.seconds or {}).items()]
    mib = {name: size >> 20 for name, size in result.peak_memory_bytes.items()}
    lines.append("  peak memory, MiB: {own:,} of processes, {shared:,} shared; {mapped:,} of files".format_map(mib))
    return "\n".join(lines) + "\n"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--case", action="append", choices=sorted(CASES), metavar="NAME", help="default: the suite")
    arguments.add_argument("--list", action="store_true", help="print the names of all cases")
    arguments.add_argument("--rows", type=int, help="of all tables; default: as the case has it")
    arguments.add_argument("--seconds", type=float, help="how long to watch; default: as the case has it")
    arguments.add_argument("--repeat", type=int, default=1, help="give the median of so many")
    arguments.add_argument("--no-verify", action="store_true")
    arguments.add_argument("--out", type=Path, default=ROOT / "bench" / "out" / "bench.json")
    given = arguments.parse_args()
    if given.list:
        sys.stdout.write("".join(f"{'*' if case.in_suite else ' '} {name}\n" for name, case in CASES.items()))
        return
    named = [CASES[name] for name in given.case] if given.case else [case for case in CASES.values() if case.in_suite]
    runs = runs_of(given.out)
    for case in named:
        result = measure(case.sized(given.rows, given.seconds), given.repeat, not given.no_verify)
        sys.stdout.write(said(result))
        runs = [run for run in runs if run["name"] != case.name] + [result.to_json()]
        write_report(given.out, runs)


if __name__ == "__main__":
    main()
