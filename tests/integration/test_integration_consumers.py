"""docs/reference/consumers.md: readers still make of what is written what it says; of files and tables, those that the
project itself uses.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from consumers import FORMATS, OWN, lake_in, read
from consumers_page import lines
from consumers_reading import CSV_LF
from consumers_topics_page import topics_section
from integration_java import FETCH_S

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "consumers.md"


async def test_the_page_says_what_readers_read(tmp_path: Path) -> None:
    lake = await lake_in(tmp_path, [of for of in FORMATS if of != CSV_LF])  # which Spark alone reads
    page = PAGE.read_text().splitlines()
    for tool in OWN:
        found = read(tool, lake, tmp_path)
        said = [line for line in page if line.startswith(f"| {found.name} |")]
        assert said == lines(found), f"{found.name}: run make consumers"


@pytest.mark.timeout(FETCH_S + 120)
def test_the_page_says_what_readers_of_topics_read(tmp_path: Path) -> None:
    _, title, said = PAGE.read_text().partition("\n## Kafka topics\n")
    assert title + said == topics_section(tmp_path), "run make consumers"
