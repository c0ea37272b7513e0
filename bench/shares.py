"""Where CPU time goes: reads `perf script -F comm,ip,sym,dso`, writes how many samples were taken where, as JSON.

A sample counts where it was taken: in the kernel, or in the library of its innermost frame. The time of the kernel is
put to the library that has called it. Processes and threads are told by their names. bench/page.py shows it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from measured import ROOT

_FRAME = re.compile(r"\s+(?P<address>[0-9a-f]+) (?P<symbol>.*) \((?P<library>[^()]*(?:\(deleted\))?)\)$")
_KERNEL_ONLY = "(kernel alone)"
_LEAST = 0.001  # of all samples: a frame with less is not told apart


class Sample(NamedTuple):
    """A sample of the profiler.

    `library`: of the innermost frame outside the kernel; `symbol`: of the innermost one.
    """

    process: str
    library: str
    in_kernel: bool
    symbol: str


def samples(lines: Iterable[str]) -> Iterator[Sample]:
    """Samples are divided by empty lines: a line with the name of the process, then the frames, innermost first."""
    process, frames = "", list[re.Match[str]]()
    for line in (*lines, ""):
        if frame := _FRAME.match(line.rstrip("\n")):
            frames.append(frame)
        elif line.strip():
            process = line.strip()
        elif process:
            yield _sample(process, frames)
            process, frames = "", []


def _sample(process: str, frames: list[re.Match[str]]) -> Sample:
    outside = next((frame["library"] for frame in frames if not _is_kernel(frame)), _KERNEL_ONLY)
    symbol = frames[0]["symbol"].removesuffix(" (inlined)") if frames else "[unknown]"
    return Sample(process, PurePosixPath(outside).name, bool(frames) and _is_kernel(frames[0]), symbol)


def _is_kernel(frame: re.Match[str]) -> bool:
    """The upper half of what 64 bits address."""
    return int(frame["address"], 16) >= 1 << 63


def counted(taken: Iterable[Sample]) -> list[tuple[str, str, bool, str, int]]:
    """Count the samples of each frame, the most first; small frames of a library are one. Ends for none."""
    counts = Counter(taken)
    if not counts:
        raise SystemExit("No samples: give it the output of perf script -F comm,ip,sym,dso.")
    merged: Counter[Sample] = Counter()
    for sample, count in counts.items():
        merged[sample if count >= _LEAST * counts.total() else sample._replace(symbol="")] += count
    return [(*sample, count) for sample, count in merged.most_common()]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--of", required=True, help="what was profiled: a line for the page")
    arguments.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "profile.json")
    given = arguments.parse_args()
    given.out.write_text(json.dumps({"of": given.of, "samples": counted(samples(sys.stdin))}, indent=1) + "\n")


if __name__ == "__main__":
    main()
