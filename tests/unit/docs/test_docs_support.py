"""docs/support.md names the versions that the tests run, and is up to date."""

from __future__ import annotations

from pathlib import Path

import pytest
import support_page
from support_page import PinNotFound, locked, page, pin

PAGE = Path(__file__).parents[3] / "docs" / "support.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run `make generate`"


def test_a_version_that_is_raised_changes_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    before = page()
    pinned = locked("pyspark")
    read = support_page.text_of

    def raised(file: str) -> str:
        return read(file).replace(f"pyspark=={pinned}", "pyspark==99.0.1")

    monkeypatch.setattr(support_page, "text_of", raised)
    assert page() == before.replace(f"| {pinned} |", "| 99.0.1 |") != before


def test_a_version_that_has_moved_is_missed() -> None:
    with pytest.raises(PinNotFound, match=r"pyproject\.toml has no \^nothing: say in support_page\.py"):
        pin("pyproject.toml", "^nothing")
