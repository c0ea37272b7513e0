"""Which seed finds which mutation: found.json, and the table of docs/simulation.md that is made of it.

`simulate.py --mutations` writes both. Whoever looks for a mutation begins with the seed that found it the last time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from mutations import MUTATIONS

_FILE = Path(__file__).with_name("found.json")
UNIT_TESTS = Path(__file__).with_name("unit_tests.json")
DOCUMENT = Path(__file__).parents[2] / "docs" / "simulation.md"


class Found(NamedTuple):
    seed: int
    what: str  # it breaks


@cache
def known() -> dict[str, Found]:
    """By the mutation's name."""
    return {name: Found(*found) for name, found in json.loads(_FILE.read_text()).items()} if _FILE.exists() else {}


def write(found: Mapping[str, Found]) -> None:
    _FILE.write_text(json.dumps(found, indent=1) + "\n")
    seen = json.loads(UNIT_TESTS.read_text()) if UNIT_TESTS.exists() else {}
    rows = []
    for mutation in MUTATIONS:
        seed, what = found.get(str(mutation), ("–", ""))
        by_unit_tests = seen.get(str(mutation), "not looked")
        rows.append(
            f"| {mutation.core} | {mutation.name} | {mutation.rule or ''} | {seed} | {what} | {by_unit_tests} |\n"
        )
    stories = [f"- **{mutation}**: {mutation.story}\n" for mutation in MUTATIONS if mutation.story]
    DOCUMENT.write_text(_HEAD + _COLUMNS + "".join(rows) + _STORIES + "".join(stories))


_HEAD = """# The simulation, and the proof that it is awake

`make simulate SEEDS=5000` runs the cores together, in one thread with virtual time:

- the pullers from the bytes of a stream on: feed, matcher, range lock, span pipeline, event buffer, reports;
- segments, their reader, and the sorter;
- all of the owner that decides: spans, quota, barrier, planner, which pipeline task writes what, which files are
  committed, log with folding, checkpoint, recovery, index and `metadata`.

Simulated are the upstream (transactions in one and two phases, locks, late commits, rollbacks, dead clients, DDLs,
regions that split, merge and move, streams that break, GC; and in every world one to three large transactions, which
send flush after flush for seconds, by stores that let resolved-ts pass them, by old ones, or by both), one to three
pipeline tasks of a driver, the object store (failures, unknown outcomes, late writes), the network, and kills, freezes
and zombies at every call that waits. In one world of three, pullers have memory for next to no uncommitted row; in
most, those of one machine share theirs with its tasks, some with room for one or two segments; in some, tasks of other
machines fetch it, which may fail. In one of five, tables are copied before their changes. In one of five, the sink is a
database that wants a table's entries in order and refuses old writers, and which must equal the upstream at each
syncpoint. The oracles read what stands in the store at each write, after each crash and at the end: each row once and
in order, nothing above a limit, one history, nothing that goes back; and in the end the checkpoint must have got where
it should. A seed that breaks something is printed with its story, shrunken to few kinds of faults, and with the command
that replays it.

What the driver does to Iceberg tables has worlds of its own (`simulated_lake.py`), with the product's own commits on a
catalog in memory: commits that fail or whose answer is lost, strangers that compact and expire, drivers that die or
stop right before a commit while others take over. After each commit each table has the first entries of each
dispatcher, each once.

A simulation that finds nothing proves nothing. So each mechanism below is taken out once, by an edit of a few words,
and seeds run until one breaks a promise; one must, nearly always one of the first 2,000. `make mutations` writes this
table, `make test` runs each of its seeds again; those of before there were copies with `WITHOUT=copy`, or large
transactions, with `WITHOUT=large,copy`.
`MUTATION="<core>: <what is taken out>" SEED=<seed> make simulate`
tells the story of one. A dash: none has yet, in as many seeds as were tried. The last column says whether unit tests
see it too, of the part or of what it works with. Of matcher, range lock, span pipeline, planner, barrier, log,
recovery and owner they miss three or more each. A rule that is taken out whole is seen by the tests named after it,
as it must be: what they miss is a part of a rule.
Rules 7, 12, 13, 19, 22, 23 and 25 to 29 are about what is not simulated: claims, the splitting of updates,
files' bytes, disks, the operator, databases, schema files, clocks, probes. [guarantees.md](guarantees.md) names their
tests.

"""
_STORIES = """
## What has to come together

Some are broken by rare chains of events, for which the worlds are made:

"""
_COLUMNS = (
    "| core | what is taken out | rule | seed | what it breaks | unit tests |\n| --- | --- | --- | --- | --- | --- |\n"
)
