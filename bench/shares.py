"""Where CPU time goes, by library and by user and kernel: reads `perf script -F comm,ip,sym,dso`, prints a table.

A sample counts where it was taken: in the kernel, or in the library of its innermost frame. The time of the kernel is
put to the library that has called it. Processes and threads are told by their names.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

_FRAME = re.compile(r"\s+(?P<address>[0-9a-f]+) (?P<symbol>.*) \((?P<library>[^()]*(?:\(deleted\))?)\)$")
_KERNEL_ONLY = "(kernel alone)"


class Sample(NamedTuple):
    """`library`: of the innermost frame outside the kernel."""

    process: str
    library: str
    in_kernel: bool


def samples(lines: Iterable[str]) -> Iterator[Sample]:
    """Samples are divided by empty lines: a line with the name of the process, then the frames, innermost first."""
    process, frames = "", list[tuple[bool, str]]()
    for line in (*lines, ""):
        if frame := _FRAME.match(line.rstrip("\n")):
            frames.append((_is_kernel(frame["address"]), frame["library"]))
        elif line.strip():
            process = line.strip()
        elif process:
            yield _sample(process, frames)
            process, frames = "", []


def _sample(process: str, frames: list[tuple[bool, str]]) -> Sample:
    outside = next((library for in_kernel, library in frames if not in_kernel), _KERNEL_ONLY)
    return Sample(process, PurePosixPath(outside).name, bool(frames) and frames[0][0])


def _is_kernel(address: str) -> bool:
    """The upper half of what 64 bits address."""
    return int(address, 16) >= 1 << 63


def table(taken: Iterable[Sample], least: float) -> str:
    """Percent of all samples, the largest first; `least`: what has less is in the last line but one."""
    user: Counter[tuple[str, str]] = Counter()
    kernel: Counter[tuple[str, str]] = Counter()
    for sample in taken:
        (kernel if sample.in_kernel else user)[sample.process, sample.library] += 1
    total = user.total() + kernel.total()
    if not total:
        raise SystemExit("No samples: give it the output of perf script -F comm,ip,sym,dso.")
    both = user + kernel
    shown = [key for key, count in both.most_common() if 100 * count / total >= least]
    rest = [key for key in both if key not in shown]
    rows = [(*key, user[key], kernel[key]) for key in shown]
    rows.append(("", "the rest", sum(user[key] for key in rest), sum(kernel[key] for key in rest)))
    rows.append(("", "all", user.total(), kernel.total()))
    lines = ["| process | library | user % | kernel % |", "|---|---|---:|---:|"]
    lines += [
        f"| {process} | {library} | {100 * in_user / total:.1f} | {100 * in_kernel / total:.1f} |"
        for process, library, in_user, in_kernel in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--least", type=float, default=0.5, help="percent that a line of its own needs")
    given = arguments.parse_args()
    sys.stdout.write(table(samples(sys.stdin), given.least))


if __name__ == "__main__":
    main()
