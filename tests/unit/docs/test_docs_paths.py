"""A module or folder that a document names, such as `planning/timeline.Timeline`, exists: its last parts at least."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CODE = (
    *("spark-apps", "operator", "devcluster", "bench", "tests", "docs", "examples", "images", "charts", "deploy"),
    "release",
)
#: What a document shows of a sink that a reader adds.
EXAMPLE = "mykind"
NAMED = re.compile(r"`([a-z_]\w*(?:/[a-z_]\w*)+)(?:\.\w+)*`")
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "design").glob("*.md")]


@cache
def ends() -> frozenset[str]:
    """The last parts of each path in the repository, without a suffix: any number of them."""
    paths = [path.relative_to(ROOT).with_suffix("") for folder in CODE for path in (ROOT / folder).rglob("*")]
    return frozenset("/".join(path.parts[n:]) for path in paths for n in range(len(path.parts)))


def missing(text: str) -> list[str]:
    """Names whose first part is a folder of ours, and which are nowhere below one of that name."""
    ours = {end for end in ends() if "/" not in end}
    named = [name for name in NAMED.findall(text) if EXAMPLE not in name and name.partition("/")[0] in ours]
    return [name for name in named if name not in ends()]


def test_modules_and_folders_that_documents_name_exist() -> None:
    found = [f"{file.relative_to(ROOT)}: {name}" for file in DOCUMENTS for name in missing(file.read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("`objectstore/local` and `objectstore/local.LocalStore`, of `spark-apps/changefeed/objectstore`", []),
        ("`objectstore/nowhere.Nothing`", ["objectstore/nowhere"]),
        ("of TiDB: `pkg/tablecodec`", []),
    ],
)
def test_what_is_nowhere_is_found(text: str, wrong: list[str]) -> None:
    assert missing(text) == wrong
