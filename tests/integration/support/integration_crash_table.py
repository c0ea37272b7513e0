"""The lists of all points, made by the runs, in bench/results: `integration_crash_table.py FILE files` writes
crash-points.md, `... FILE mysql kafka` crash-points-databases.md, `... FILE changelog upsert` crash-points-iceberg.md,
`... FILE delta-changelog delta-upsert` crash-points-delta.md, `... FILE slot` crash-points-postgresql.md.
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
_CHANGELOGS = (
    (False, "Changelogs, from the start", _ADDED),
    (True, "Changelogs, after a takeover", "The driver before has died with one of a plan's files committed."),
)
_BY_KEY = (
    (False, "Tables by primary key, from the start", _ADDED),
    (True, "Tables by primary key, after a takeover", "The driver before has died as for changelogs."),
)
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
    "changelog": _CHANGELOGS,
    "upsert": _BY_KEY,
    "delta-changelog": _CHANGELOGS,
    "delta-upsert": _BY_KEY,
    "slot": (
        (False, "From the start", "Every point that a first run passes, of the slot and of the log's records."),
        (
            True,
            "After a takeover",
            "The driver before has died with a plan's first file put, and changes wait in the slot.",
        ),
    ),
}


def table(outcomes: Mapping[Kind, Outcome]) -> str:
    """The document for these kinds of sinks."""
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


_HEAD = """# What is left when a process dies, at every point where it can

Made by `make evidence`, not by hand. [The runs](../../tests/integration/support/integration_crash.py) pass {points}
named points {passages} times. {killed} runs were killed by SIGKILL at one of them, each followed by a run that resumes
from what it finds. {frozen} were frozen by SIGSTOP, taken over, and woken once the other run had finished. Broken
promises: {broken}.

A *point* is a moment in a call, mostly to the object store: *before* it; *written*, when the temporary file is synced
and has no name yet; *linked* or *replaced*, when the name exists and its folder is not yet synced; *gone*, the same for
a removed name; *found it there*, when the name was taken; *done*. The process is a whole changefeed: driver, puller,
tasks, real files and gRPC, without Spark. Up to two plans are open at a time, so that files are committed, and the log
is folded, while others are open; and each run loses a pipeline task that has a file in hand. Of a point that is passed
more than {most} times, the first, the second, the middle and the last passage are taken.

After each recovery, `changefeed verify` agrees; every file of the sink has the bytes that an undisturbed run gives it;
no data file was written twice; a reader who looked before, between and after never saw `metadata` or an index go back;
and no temporary file, spooled file or segment of a dead driver is left.

*Woken* is how the frozen run ended after it was taken over; nothing that it did changed a file or the log. These runs
ended as {ends}. `Fenced` is the rule. `Transient` and `Unavailable` come from a task that finds its segments gone
before its driver reads the log. A run that is frozen after its last record has nothing more to do. On local files,
*replaced* happens under a lock that no second driver gets, so nobody is frozen there.

## Broken
"""


_HEAD_OF_DATABASES = """# What is left when a process dies that writes to MySQL or Kafka

Made by `make evidence`, not by hand. [The runs](../../tests/integration/support/integration_crash.py) pass {points}
named points {passages} times. {killed} runs were killed by SIGKILL at one of them, each followed by a run that resumes
from what it finds. {frozen} were frozen by SIGSTOP, taken over, and woken once the other run had finished. Broken
promises: {broken}.

The runs are those of [crash-points.md](crash-points.md), with a real MariaDB and a real Kafka (`delivery:
exactly-once`). Two plans are open at a time; DDLs add a column, create a table and truncate one; each run loses a
pipeline task that has written an entry and not yet said so. The tables list the points that these sinks add and, of the
log, the records of plans, commits and DDLs; the others are the same for every sink. Of each point the first, the middle
and a late passage are taken; after a takeover, only the first.

A *point* is a moment in a call: *before* it; *committing*, before a COMMIT; *fenced*, when earlier producers are shut
out; *queued*, when the client has messages that no broker may have yet; *acknowledged*, when brokers have all of them
and their transaction is not committed; *done*.

After each recovery, `changefeed verify` agrees; rows, definitions and messages are those of an undisturbed run. In
MariaDB, triggers have seen each change of a row once and in order, and no DDL was executed twice: the server would have
refused it, or rows that came after a TRUNCATE would be missing. A read_committed consumer of Kafka has read each change
once, and those of a row in order; no resolved-ts came early or went back.

*Woken* is how the frozen run ended after it was taken over; nothing that it did changed a row, a message, our own
tables and topics, or the log. These runs ended as {ends}. `Transient` and `Unavailable` come from a task that finds
its segments gone before its driver reads the log.

## Broken
"""


_HEAD_OF_ICEBERG = """# What is left when a process dies that writes to Iceberg tables

Made by `make evidence`, not by hand. [The runs](../../tests/integration/support/integration_crash.py) pass {points}
named points {passages} times. {killed} runs were killed by SIGKILL at one of them, each followed by a run that resumes
from what it finds. {frozen} were frozen by SIGSTOP, taken over, and woken once the other run had finished. Broken
promises: {broken}.

The runs are those of [crash-points.md](crash-points.md), with a catalog in SQLite: once with tables that are changelogs
(`mode: append`), once with tables that are merged on read (`mode: upsert`). Two plans are open at a time; DDLs add a
column, create a table and truncate one; each run loses a pipeline task that has a file in hand. The tables list the
points that this sink adds and, of the log, the records of plans, commits and DDLs; the others are the same for every
sink. Of each point the first, the middle and a late passage are taken; after a takeover, only the first.

A *point* is a moment in a call: *before* it, or when it is *done*; for a file, those of crash-points.md; in a commit,
*metadata written*, when the file with the table's new metadata exists and the catalog does not know of it.

After each recovery, `changefeed verify` agrees; rows and schemas are those of an undisturbed run. A reader who looked
before, between and after the runs has met, in a changelog, each change once, those of a row in order, and none that was
taken back; in a table by primary key, the upstream's rows as of one of its transactions, never an earlier one than the
last time.

*Woken* is how the frozen run ended after it was taken over; nothing that it did changed a table or the log. These runs
ended as {ends}. `Transient` and `Unavailable` come from a task that finds its segments gone before its driver reads the
log.

## Broken
"""

_HEAD_OF_DELTA = """# What is left when a process dies that writes to tables of Delta Lake

Made by `make evidence`, not by hand. [The runs](../../tests/integration/support/integration_crash.py) pass {points}
named points {passages} times. {killed} runs were killed by SIGKILL at one of them, each followed by a run that resumes
from what it finds. {frozen} were frozen by SIGSTOP, taken over, and woken once the other run had finished. Broken
promises: {broken}.

The runs are those of [crash-points.md](crash-points.md), once with tables that are changelogs (`mode: append`), once
with tables that are merged (`mode: upsert`). Two plans are open at a time; DDLs add a
column, create a table and truncate one; each run loses a pipeline task that has a file in hand. The tables list the
points that this sink adds and, of the log, the records of plans, commits and DDLs; the others are the same for every
sink. Of each point the first, the middle and a late passage are taken; after a takeover, only the first.

A *point* is a moment in a call: *before* it, or when it is *done*; for a file, those of crash-points.md.

After each recovery, rows are those of an undisturbed run, by the logs as Delta's protocol has them. A reader who looked
before, between and after the runs has met, in a changelog, each change once, those of a row in order, and none that was
taken back; in a table by primary key, the upstream's rows as of one of its transactions, never an earlier one than the
last time.

*Woken* is how the frozen run ended after it was taken over; nothing that it did changed a table or the log. These runs
ended as {ends}. `Transient` and `Unavailable` come from a task that finds its segments gone before its driver reads the
log.

## Broken
"""

_HEAD_OF_SLOT = """# What is left when a process dies that reads a PostgreSQL

Made by `make evidence`, not by hand. [The runs](../../tests/integration/support/integration_crash.py) pass {points}
named points {passages} times. {killed} runs were killed by SIGKILL at one of them, each followed by a run that resumes
from what it finds. {frozen} were frozen by SIGSTOP, taken over, and woken once the other run had finished. Broken
promises: {broken}.

The server is real, and so are files and gRPC; the process is a whole changefeed: driver, puller, tasks, without Spark.
A run from the start makes its slot and copies three tables. One after a takeover reads transactions over all of them,
an added column and a table that is emptied. The tables list the points of the slot, of data files and, of the log, the
records of plans, commits and DDLs. Of each point the first, the middle and a late passage are taken. When a record is
written is a matter of time here, so files need not have the same bytes each time.

A *point* is a moment in a call: *before* it, or when it is *done*; for a file, those of
[crash-points.md](crash-points.md). The slot is *confirmed* behind what the log has as durable: the server removes what
is before.

After each recovery, what is replayed of the files is what the tables have; no change is there twice, each transaction
is whole; no data file was written twice; a reader who looked before, between and after never saw `metadata` or an index
go back; and no temporary file, spooled file or segment of a dead driver is left.

*Woken* is how the frozen run ended after it was taken over; nothing that it did changed a file or the log. These runs
ended as {ends}.

## Broken
"""

_HEADS: dict[Kind, str] = {
    "files": _HEAD,
    "mysql": _HEAD_OF_DATABASES,
    "kafka": _HEAD_OF_DATABASES,
    "changelog": _HEAD_OF_ICEBERG,
    "upsert": _HEAD_OF_ICEBERG,
    "delta-changelog": _HEAD_OF_DELTA,
    "delta-upsert": _HEAD_OF_DELTA,
    "slot": _HEAD_OF_SLOT,
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
