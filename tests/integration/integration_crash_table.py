"""docs/crash-points.md: the list of all points, made by the runs. `integration_crash_table.py FILE` writes it."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from integration_crash import AT_MOST, Outcome, enumerate_all


def table(outcome: Outcome) -> str:
    """docs/crash-points.md."""
    killed = [case for case in outcome.cases if not case.frozen]
    points = {point for _, point in outcome.rows}
    ends = Counter(row.woken for row in outcome.rows.values() if row.woken)
    bad = [f"- {line}" for line in outcome.broken] or ["None."]
    return "\n".join(
        [
            _HEAD.format(
                points=len(points),
                passages=sum(row.passed for row in outcome.rows.values()),
                killed=len(killed),
                frozen=len(outcome.cases) - len(killed),
                broken=len(outcome.broken),
                ends=", ".join(f"{end} {count} times" for end, count in ends.most_common()),
                most=AT_MOST,
            ),
            *bad,
            *_section(outcome, False, "From the start", "Every point that a first run passes."),
            *_section(
                outcome, True, "After a takeover", "The driver before has died with one of a plan's two files put."
            ),
            "",
        ]
    )


_HEAD = """# What is left when a process dies, at every point at which it can

Made by `make evidence`, not by hand: [the runs](../tests/integration/integration_crash.py) pass {points} named points
{passages} times. {killed} runs were killed by SIGKILL at a passage, each followed by a run that goes on from what was
found. {frozen} were frozen by SIGSTOP, taken over, and woken when the other had finished. Broken promises: {broken}.

A *point* is a moment in a call, mostly of the object store: before it; *written*, when the temporary file is synced and
has no name yet; *linked* or *replaced*, when the name stands and its folder is not yet synced; *gone*, the same for a
name that was removed; *found it there*, when the name was taken; *done*. The process is a whole changefeed: driver,
puller, tasks, real files and gRPC, without Spark. Up to two plans are open at a time, so that files are committed, and
the log is folded, while others are open; and each run loses a pipeline task that has a file in hand. Of a point that is
passed more than {most} times the first, the second, the one in the middle and the last passage are taken.

After each recovery `changefeed verify` agrees; every file of the sink has the bytes that it has when nobody does any
harm; no data file was written twice; neither `metadata` nor an index went back, as a reader saw them before, between
and after; no temporary file, no spooled one and no segment of a dead driver is left.

*Woken* is how the frozen one ended, which had been taken over; nothing that it did changed a file or the log. They
ended as {ends}. `Fenced` is the rule. `Transient` and `Unavailable` are of a task that finds its segments gone before
its driver asks the log. Who was frozen after the last record has nothing more to do. What is *replaced* on local files
is so under a lock, which no second driver gets: nobody is frozen there.

## Broken
"""


def _section(outcome: Outcome, takeover: bool, title: str, what: str) -> list[str]:
    lines = [
        f"\n## {title}\n",
        f"{what}\n",
        "| point | passed | killed at | found by the next run | result | woken |",
        "| --- | ---: | --- | --- | --- | --- |",
    ]
    for (of_takeover, point), row in outcome.rows.items():
        if of_takeover != takeover:
            continue
        seen: dict[str, list[str]] = {}
        for at, found in sorted(row.found.items()):
            seen.setdefault(found, []).append(str(at))
        broken = any(f" at {point}," in line for line in outcome.broken)
        for number, (found, passages) in enumerate(seen.items()):
            first = number == 0
            lines.append(
                f"| {point if first else ''} | {row.passed if first else ''} | {', '.join(passages)} | {found} | "
                f"{'broken' if broken else 'right'} | {row.woken if first else ''} |"
            )
    return lines


def main(arguments: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        outcome = enumerate_all(Path(folder))
    Path(arguments[0]).write_text(table(outcome))
    sys.stdout.write(f"{len(outcome.cases)} runs, {outcome.cpu_s:.0f} s of CPU, {outcome.wall_s:.0f} s\n")
    sys.stdout.writelines(f"BROKEN {line}\n" for line in outcome.broken)
    return bool(outcome.broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
