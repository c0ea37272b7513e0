"""What the documents name must exist: tests, modules, targets, links."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted(
    [ROOT / "README.md", ROOT / "tests" / "faults.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").rglob("*.md")]
)
TEST = re.compile(r"`((?:unit|simulation|integration|cluster)/[\w/]+\.py)::([\w*]+)`")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
MODULE = re.compile(r"`([a-z_]+)((?:/[a-z_0-9]+)+)(?:\.py|\.[A-Za-z]+)?`")
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


@pytest.mark.parametrize("document", sorted((ROOT / "docs" / "design").glob("*.md")), ids=named)
def test_every_module_that_the_design_names_exists(document: Path) -> None:
    """Those of the product: other paths are those of its sources."""
    product = ROOT / "spark-apps" / "changefeed"
    modules = [folder + rest for folder, rest in MODULE.findall(document.read_text()) if (product / folder).is_dir()]
    assert modules
    assert not [
        name for name in modules if not any((product / f"{name}{end}").exists() for end in ("", ".py", ".proto"))
    ]


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_target_of_make_exists(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(TARGET.findall(document.read_text())) <= targets


def test_a_guarantee_names_tests() -> None:
    assert len(TEST.findall((ROOT / "docs" / "guarantees.md").read_text())) > 50


def test_each_of_the_29_rules_names_tests() -> None:
    text = (ROOT / "docs" / "design" / "rules.md").read_text()
    rules = dict(re.findall(r"^## Rule (\d+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert list(rules) == [str(number) for number in range(1, 30)]
    assert not [number for number, rule in rules.items() if not TEST.search(rule)]


def table_below(document: Path, heading: str) -> list[list[str]]:
    section = re.split(r"^##+ ", document.read_text().split(f"# {heading}\n")[1], flags=re.MULTILINE)[0]
    return [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][2:]


def test_each_fault_of_a_cluster_names_tests() -> None:
    faults = table_below(ROOT / "docs" / "operator" / "monitoring.md", "Faults")
    tests = table_below(ROOT / "tests" / "faults.md", "Which tests show which fault")
    assert [fault for fault, *_ in faults] == [fault for fault, _ in tests]
    existing = {file.name for file in (ROOT / "tests").rglob("*.*")}
    named = {name for _, names in tests for name in re.findall(r"`([\w.]+)`", names)}
    assert not {name for name in named if name not in existing and f"{name}.py" not in existing}
