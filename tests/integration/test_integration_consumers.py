"""docs/reference/consumers.md: the readers that the project itself uses still make of files and tables what it says."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "consumers"))

from consumers import FORMATS, OWN, lake_in, read
from consumers_page import lines
from consumers_reading import CSV_LF

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "consumers.md"


async def test_the_page_says_what_readers_read(tmp_path: Path) -> None:
    lake = await lake_in(tmp_path, [of for of in FORMATS if of != CSV_LF])  # which Spark alone reads
    page = PAGE.read_text().splitlines()
    for tool in OWN:
        found = read(tool, lake, tmp_path)
        said = [line for line in page if line.startswith(f"| {found.name} |")]
        assert said == lines(found), f"{found.name}: run make consumers"
