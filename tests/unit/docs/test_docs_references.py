"""A reference in code or a document, such as `docs/design/tikv.md, Region errors`, names a section that exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = (
    *("bench", "charts", "deploy", "devcluster", "docs", "examples", "images", "operator", "release", "spark-apps"),
    "tests",
)
FILES = frozenset({".md", ".proto", ".py", ".sh", ".toml", ".txt", ".yaml"})
REFERENCE = re.compile(r"(?<![\w/.-])(docs/[\w/-]+\.md)")
#: A line's end inside a reference, with what begins the next line of a comment.
BREAK = re.compile(r"[ \t]*\n[ \t]*(?:#:?|//)?[ \t]*")
#: Documents that nobody has who has this repository.
ELSEWHERE = re.compile(
    r"\b(?:DESIGN|INTERFACES|CORRECTNESS)\.md|\btikv-wire\b|\bticdc-compatibility\b|\bsource[ -]design"
    r"|\bfacts(?:/[\w-]+\.md|,? \d+\.\d|, \w+ \d+\.\d)",
    re.IGNORECASE,
)
THEY_ARE_NAMED_IN = (Path(__file__), ROOT / "docs" / "design" / "README.md")


def texts() -> Iterator[Path]:
    below = chain.from_iterable((ROOT / folder).rglob("*") for folder in FOLDERS)
    return (file for file in chain(ROOT.iterdir(), below) if file.suffix in FILES and file.is_file())


TEXTS = sorted(file for file in texts() if file not in THEY_ARE_NAMED_IN)


@cache
def sections(document: Path) -> tuple[str, ...]:
    """Headings, each also without what it has in parentheses; the longest first."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return tuple(sorted({*headings, *(heading.split(" (")[0] for heading in headings)}, key=len, reverse=True))


def section_at(document: Path, text: str) -> str:
    """What `text` begins with, if it is a comma and a section of the document."""
    return next((f", {name}" for name in sections(document) if re.match(rf", {re.escape(name)}(?!\w)", text)), "")


def unresolved(text: str) -> Iterator[str]:
    """References that lead nowhere. A document may be followed by a section, or by several, with commas between."""
    text = BREAK.sub(" ", text)
    for reference in REFERENCE.finditer(text):
        document, rest = ROOT / reference[1], text[reference.end() : reference.end() + 200]
        if not document.exists():
            yield reference[1]
            continue
        while section := section_at(document, rest):
            rest = rest[len(section) :]
        if re.match(", [A-Z]", rest):
            yield f"{reference[1]}{rest[:40]}"


def test_references_in_code_and_documents_lead_somewhere() -> None:
    found = [f"{file.relative_to(ROOT)}: {where}" for file in TEXTS for where in unresolved(file.read_text())]
    assert not found, "\n".join(found)


def test_no_reference_is_to_a_document_outside_the_repository() -> None:
    found = [f"{file.relative_to(ROOT)}: {word}" for file in TEXTS for word in ELSEWHERE.findall(file.read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("kind", "document", "heading"),
    [("rule", "design/rules.md", r"## Rule (\d+)"), ("promise", "guarantees.md", r"### (\d+)\. ")],
)
def test_rules_and_promises_have_a_section(kind: str, document: str, heading: str) -> None:
    known = re.findall(f"^{heading}", (ROOT / "docs" / document).read_text(), re.MULTILINE)
    named = re.compile(rf"\b{kind}s?\s(\d+)", re.IGNORECASE)
    found = [f"{file.relative_to(ROOT)}: {kind} {n}" for file in TEXTS for n in named.findall(file.read_text())]
    assert not [what for what in found if what.rpartition(" ")[2] not in known]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("(docs/design/tikv.md, Region errors) and docs/guarantees.md.", []),
        ("# see docs/design/tikv.md, Region\n#   errors; docs/design/tidb.md, DDL jobs, Job contents.", []),
        ("docs/architecture.md, Verify: docs/design/rules.md, Rule 2", []),
        ("docs/design/nowhere.md", ["docs/design/nowhere.md"]),
        ("docs/design/tikv.md, Region terrors", ["docs/design/tikv.md, Region terrors"]),
        ("docs/design/tikv.md, Rows, Nothing", ["docs/design/tikv.md, Nothing"]),
        ("docs/design/rules.md, Rule 30", ["docs/design/rules.md, Rule 30"]),
        ("https://github.com/pingcap/tidb/blob/master/docs/design/any.md", []),
    ],
)
def test_what_leads_nowhere_is_found(text: str, wrong: list[str]) -> None:
    assert list(unresolved(text)) == wrong
