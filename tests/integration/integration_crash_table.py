"""The lists of all points, made by the runs: `integration_crash_table.py FILE files` writes docs/crash-points.md,
`... FILE mysql kafka` docs/crash-points-databases.md, `... FILE changelog upsert` docs/crash-points-iceberg.md.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from integration_crash import AT_MOST, Kind, Outcome, enumerate_all

_EVERY = "Every point that a first run passes."
_ADDED = "Every point that a first run passes, of this sink and of the log's records."
#: By sink: whether after a takeover, the section's title, what it lists.
_SECTIONS: dict[Kind, Sequence[tuple[bool, str, str]]] = {
    "files": (
        (False, "From the start", _EVERY),
        (True, "After a takeover", "The driver before has died with one of a plan's two files put."),
    ),
    "mysql": (
        (False, "MySQL, from the start", _ADDED),
        (True, "MySQL, after a takeover", "The driver before has died with some batches of a plan committed."),
    ),
    "kafka": (
        (False, "Kafka, from the start", _ADDED),
        (True, "Kafka, after a takeover", "The driver before has died with an entry's transaction not yet committed."),
    ),
    "changelog": (
        (False, "Changelogs, from the start", _ADDED),
        (True, "Changelogs, after a takeover", "The driver before has died with one of a plan's files committed."),
    ),
    "upsert": (
        (False, "Tables by primary key, from the start", _ADDED),
        (True, "Tables by primary key, after a takeover", "The driver before has died as for changelogs."),
    ),
}


def table(outcomes: Mapping[Kind, Outcome]) -> str:
    """docs/crash-points.md, or that of databases."""
    every = list(outcomes.values())
    rows = [row for outcome in every for row in outcome.rows.values()]
    cases = [case for outcome in every for case in outcome.cases]
    ends = Counter(row.woken for row in rows if row.woken)
    broken = [f"- {kind}: {line}" for kind, outcome in outcomes.items() for line in outcome.broken]
    head = _HEADS[next(iter(outcomes))].format(
        points=len({point for outcome in every for _, point in outcome.rows}),
        passages=sum(row.passed for row in rows),
        killed=sum(not case.frozen for case in cases),
        frozen=sum(case.frozen for case in cases),
        broken=len(broken),
        ends=", ".join(f"{end} {count} times" for end, count in ends.most_common()),
        most=AT_MOST,
    )
    sections = [
        line
        for kind, outcome in outcomes.items()
        for section in _SECTIONS[kind]
        for line in _section(outcome, *section)
    ]
    return "\n".join([head, *(broken or ["None."]), *sections, ""])


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


_HEAD_OF_DATABASES = """# What is left when a process dies that writes to MySQL or Kafka

Made by `make evidence`, not by hand: [the runs](../tests/integration/integration_crash.py) pass {points} named points
{passages} times. {killed} runs were killed by SIGKILL at a passage, each followed by a run that goes on from what was
found. {frozen} were frozen by SIGSTOP, taken over, and woken when the other had finished. Broken promises: {broken}.

The runs are those of [crash-points.md](crash-points.md), with a real MariaDB and a real Kafka (`delivery:
exactly-once`). Two plans are open at a time; DDLs add a column, make a table and truncate one; each run loses a
pipeline task that has written an entry, before it says so. Listed are the points that these sinks add, and of the log
the records of plans, commits and DDLs; the others are the same for every sink. The first, the middle and a late
passage of each are taken, after a takeover the first.

A *point* is the moment before a call and the one when it is *done*; in it *committing*, before a COMMIT; *fenced*, when
earlier producers are shut out; *queued*, when the client has messages that no broker need have; *acknowledged*, when
all have been, and a transaction of them is not committed.

After each recovery `changefeed verify` agrees; the rows, definitions and messages are those of a run that nobody
harms. In MariaDB triggers have seen each change of a row once and in order, and no DDL was executed twice: the server
would have refused it, or rows would be missing that came after a TRUNCATE. Who reads what is committed in Kafka has
met each change once and those of a row in order; no resolved-ts was early or went back.

*Woken* is how the frozen one ended, which had been taken over: nothing that it did changed a row, a message, our own
tables and topics, or the log. They ended as {ends}. `Transient` and `Unavailable` are of a task that finds its segments
gone before its driver asks the log.

## Broken
"""


_HEAD_OF_ICEBERG = """# What is left when a process dies that writes to Iceberg tables

Made by `make evidence`, not by hand: [the runs](../tests/integration/integration_crash.py) pass {points} named points
{passages} times. {killed} runs were killed by SIGKILL at a passage, each followed by a run that goes on from what was
found. {frozen} were frozen by SIGSTOP, taken over, and woken when the other had finished. Broken promises: {broken}.

The runs are those of [crash-points.md](crash-points.md), with a catalog in SQLite: once with tables that are changelogs
(`mode: append`), once with tables that are merged on read (`mode: upsert`). Two plans are open at a time; DDLs add a
column, make a table and truncate one; each run loses a pipeline task that has a file in hand. Listed are the points
that this sink adds, and of the log the records of plans, commits and DDLs; the others are the same for every sink. The
first, the middle and a late passage of each are taken, after a takeover the first.

A *point* is the moment before a call and the one when it is *done*; of a file as in crash-points.md; in a commit
*metadata written*, when the file with the table's new metadata stands and the catalog does not know of it.

After each recovery `changefeed verify` agrees; rows and schemas are those of a run that nobody harms. Before, between
and after the runs a reader has met: in a changelog, each change once, those of a row in order, and none that is taken
back; in a table by primary key, the upstream's rows as of one of its transactions, never an earlier one than before.

*Woken* is how the frozen one ended, which had been taken over: nothing that it did changed a table or the log. They
ended as {ends}. `Transient` and `Unavailable` are of a task that finds its segments gone before its driver asks the
log.

## Broken
"""

_HEADS: dict[Kind, str] = {
    "files": _HEAD,
    "mysql": _HEAD_OF_DATABASES,
    "kafka": _HEAD_OF_DATABASES,
    "changelog": _HEAD_OF_ICEBERG,
    "upsert": _HEAD_OF_ICEBERG,
}


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
    file, *kinds = arguments
    outcomes: dict[Kind, Outcome] = {}
    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder:
            outcome = outcomes[kind] = enumerate_all(kind, Path(folder))
        sys.stdout.write(f"{kind}: {len(outcome.cases)} runs, {outcome.cpu_s:.0f} s of CPU, {outcome.wall_s:.0f} s\n")
        sys.stdout.writelines(f"BROKEN {line}\n" for line in outcome.broken)
    Path(file).write_text(table(outcomes))
    return any(outcome.broken for outcome in outcomes.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
