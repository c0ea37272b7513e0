"""What the documents name must exist: tests, modules, targets, links."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
TEST = re.compile(r"`((?:unit|simulation|integration|cluster)/[\w/]+\.py)::([\w*]+)`")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
TARGET = re.compile(r"`make ([a-z-]+)")


def named(document: Path) -> str:
    return str(document.relative_to(ROOT))


def anchors(document: Path) -> set[str]:
    """As a forge makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_test_that_a_document_names_exists(document: Path) -> None:
    for path, pattern in TEST.findall(document.read_text()):
        file = ROOT / "tests" / path
        assert file.exists(), path
        found = re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
        assert any(fnmatchcase(name, pattern) for name in found), f"{path}::{pattern}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_link_leads_somewhere(document: Path) -> None:
    for path, anchor in LINK.findall(document.read_text()):
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), path
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), f"{path}#{anchor}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_target_of_make_exists(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(TARGET.findall(document.read_text())) <= targets


def test_a_guarantee_names_tests() -> None:
    assert len(TEST.findall((ROOT / "docs" / "guarantees.md").read_text())) > 50
