"""Which seed finds which mutation: found.json, and the table of bench/results/mutations.md that is made of it.

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
DOCUMENT = Path(__file__).parents[2] / "bench" / "results" / "mutations.md"


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


_HEAD = """# Which seed finds which mutation

Made by `make mutations`, not by hand. Each row takes one mechanism out of the code, by an edit of a few words, and
names a seed of the [simulation](../../docs/simulation.md#the-proof-that-it-is-awake) that then breaks a promise; a
dash: none of the seeds that were tried. `make test` runs each of these seeds again. The last column says whether unit
tests also catch the mutation.

"""
_STORIES = """
## What has to come together

Some mutations break a promise only after a rare chain of events, which the simulated worlds are made to produce:

"""
_COLUMNS = (
    "| core | what is taken out | rule | seed | what it breaks | unit tests |\n| --- | --- | --- | --- | --- | --- |\n"
)
