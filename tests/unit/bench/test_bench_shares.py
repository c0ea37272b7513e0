"""What `perf script` says, as shares."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from shares import Sample, samples, table

SAID = [
    "python3 ",
    "\tffffffff816b975a ksys_read ([kernel.kallsyms])",
    "\t           f82ad read (/usr/lib/libc.so.6)",
    "\t           1cfd6e main (/usr/bin/python3.11)",
    "",
    "C2 CompilerThre ",
    "\t    7fb5509bd640 void a(b)::c (inlined) (/usr/lib/jvm/libjvm.so)",
    "\t    7fb551056240 [unknown] ([unknown])",
    "",
    "swapper ",
    "\tffffffff813a2413 idle ([kernel.kallsyms])",
    "",
    "python3 ",
    "\t           194b8b walk (/usr/lib/deleted.so (deleted))",
]


def test_the_kernels_time_is_put_to_the_library_that_called_it() -> None:
    assert list(samples(f"{line}\n" for line in SAID)) == [
        Sample("python3", "libc.so.6", True),
        Sample("C2 CompilerThre", "libjvm.so", False),
        Sample("swapper", "(kernel alone)", True),
        Sample("python3", "deleted.so (deleted)", False),
    ]


def test_the_table_adds_up_and_small_shares_are_the_rest() -> None:
    taken = [Sample("a", "x", True)] * 6 + [Sample("a", "x", False)] * 3 + [Sample("b", "y", False)]
    assert table(taken, least=20.0).splitlines()[2:] == [
        "| a | x | 30.0 | 60.0 |",
        "|  | the rest | 10.0 | 0.0 |",
        "|  | all | 40.0 | 60.0 |",
    ]


def test_nothing_is_no_table() -> None:
    with pytest.raises(SystemExit, match="No samples: give it the output of perf script"):
        table([], 0.5)
