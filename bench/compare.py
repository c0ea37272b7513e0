"""Two builds in turns on one machine: what became faster, cheaper or smaller, and what of that is noise.

    .venv/bin/python bench/compare.py BASE HEAD --case insert-csv-scan --pairs 5 --rows 10000000

BASE and HEAD are commits, as git names them; what is not committed is not measured. Each gets a worktree in a temporary
folder, with an environment of its own by its own Makefile, and is measured by its own bench/bench.py. Which of the two
comes first changes with every pair, so that neither has always the warmer machine. BASE and BASE again show the noise.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cases import CASES
from measured import ROOT
from results import Result, read

Pair = tuple[Result, Result]  # of BASE and of HEAD


@dataclass(frozen=True)
class Ratio:
    """HEAD's figure as a multiple of BASE's, a pair each."""

    figure: str
    of_pairs: Sequence[float]

    @property
    def is_noise(self) -> bool:
        """Whether the pairs disagree about which of the two builds has more; so it is for a single pair."""
        return len(self.of_pairs) < 2 or min(self.of_pairs) <= 1.0 <= max(self.of_pairs)

    def line(self) -> str:
        middle = statistics.median(self.of_pairs)
        said = "within the noise" if self.is_noise else ""
        return f"{self.figure:<24}{min(self.of_pairs):8.3f}{middle:8.3f}{max(self.of_pairs):8.3f}  {said}".rstrip()


def _lag(which: str) -> Callable[[Result], float | None]:
    return lambda result: (result.lag_ms or {}).get(which)


FIGURES: dict[str, Callable[[Result], float | None]] = {
    "rows/s": lambda result: result.rows_per_s,
    "CPU-s a million rows": lambda result: result.cpu_s_per_mrow,
    "of them at the margin": lambda result: (result.marginal or {}).get("cpu_s_per_mrow"),
    "cores": lambda result: result.cpu_cores,
    "memory": lambda result: result.peak_memory_bytes["own"] + result.peak_memory_bytes["shared"],
    "checkpoint lag p50": _lag("p50"),
    "checkpoint lag p99": _lag("p99"),
}


def ratios(pairs: Sequence[Pair]) -> list[Ratio]:
    """Leave out what the case does not have, or what is nothing at BASE."""
    found = []
    for figure, of in FIGURES.items():
        both = [(of(base), of(head)) for base, head in pairs]
        of_pairs = [head / base for base, head in both if base and head is not None]
        if len(of_pairs) == len(pairs):
            found.append(Ratio(figure, of_pairs))
    return found


def table(case: str, pairs: Sequence[Pair]) -> str:
    base, head = pairs[0]
    lines = [
        f"{case}: {head.commit} / {base.commit}, {len(pairs)} pairs of {head.rows:,} rows on {head.cpu}",
        f"{'':<24}{'min':>8}{'median':>8}{'max':>8}",
    ]
    return "\n".join([*lines, *(ratio.line() for ratio in ratios(pairs))]) + "\n"


@contextmanager
def build(commit: str, folder: Path) -> Iterator[Path]:
    """Give a worktree with its environment; it is gone afterwards."""
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", folder, commit], check=True, cwd=ROOT)
    try:
        subprocess.run(["make", "--silent", ".venv/.made", "classes"], check=True, cwd=folder)
        yield folder
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", folder], check=True, cwd=ROOT)


def measure(tree: Path, case: str, options: Sequence[str], out: Path) -> Result:
    """One run of the case; its report is in `out` afterwards. Ends this program when the build's bench fails."""
    command = [".venv/bin/python", "bench/bench.py", "--case", case, *options, "--out", out]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tree)
    if done.returncode:
        raise SystemExit(f"bench.py of {tree.name} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    (result,) = read(out).runs
    return result


def measured_pairs(trees: Sequence[Path], case: str, count: int, options: Sequence[str], out: Path) -> Iterator[Pair]:
    for number in range(count):
        found = {}
        for tree in trees if number % 2 == 0 else reversed(trees):
            found[tree] = measure(tree, case, options, out / f"{case}-{tree.name}-{number + 1}.json")
        base, head = (found[tree] for tree in trees)
        yield base, head


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("base", help="a commit")
    arguments.add_argument("head", help="another one")
    arguments.add_argument("--case", action="append", required=True, choices=sorted(CASES), metavar="NAME")
    arguments.add_argument("--pairs", type=int, default=5)
    arguments.add_argument("--rows", type=int, help="as of bench.py")
    arguments.add_argument("--seconds", type=float, help="as of bench.py")
    arguments.add_argument("--no-verify", action="store_true", help="as of bench.py")
    arguments.add_argument("--out", type=Path, default=ROOT / "bench" / "out" / "compare", help="a report a run")
    given = arguments.parse_args()
    out = given.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    sizes = {"--rows": given.rows, "--seconds": given.seconds}
    options = [text for name, size in sizes.items() if size is not None for text in (name, str(size))]
    options += ["--no-verify"] if given.no_verify else []
    with (
        tempfile.TemporaryDirectory(prefix="changefeed-compare-") as name,
        build(given.base, Path(name) / "base") as base,
        build(given.head, Path(name) / "head") as head,
    ):
        for case in given.case:
            pairs = []
            for pair in measured_pairs((base, head), case, given.pairs, options, out):
                pairs.append(pair)
                sys.stdout.write(table(case, pairs) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
