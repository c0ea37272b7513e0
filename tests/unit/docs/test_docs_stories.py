"""tests/STORIES.md lists all stories (tests/datadriven.py); `--rewrite` makes it."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import datadriven

TESTS = Path(__file__).parents[2]
PAGE = TESTS / "STORIES.md"
RULES = re.compile(r"\bRules? (\d+(?:(?:, | and )\d+)*)")
HEAD = """# Stories

What the cores decide, as transcripts: commands, `----`, and what came out. [datadriven.py](datadriven.py) runs them;
`pytest --rewrite` writes what came out into them, and makes this page. The test module of a story lists its commands.
Rules are those of [docs/design/rules.md](../docs/design/rules.md).
"""


def stories() -> list[Path]:
    return sorted(path for path in TESTS.glob("**/testdata/**/*.txt") if "\n----" in path.read_text())


def row(story: Path) -> str:
    subject = datadriven.subject(story)
    assert subject, f"{story} does not begin with a comment that says what it shows"
    rules = ", ".join(number for found in RULES.findall(subject) for number in re.findall(r"\d+", found))
    shown = re.sub(r"^Rules? [\d, and]+: ", "", subject).replace("|", "\\|").replace("<", "&lt;")
    return f"| [{story.stem}]({story.relative_to(TESTS)}) | {rules} | {shown[0].upper()}{shown[1:]} |\n"


def page() -> str:
    tables: dict[str, str] = defaultdict(str)
    for story in stories():
        tables[str(story.parent.relative_to(TESTS)).replace("/testdata", "")] += row(story)
    titled = (f"\n## {folder}\n\n| story | rules | what it shows |\n| --- | --- | --- |\n" for folder in tables)
    return HEAD + "".join(title + rows for title, rows in zip(titled, tables.values(), strict=True))


def test_the_page_lists_every_story(rewrite: bool) -> None:
    if rewrite:
        PAGE.write_text(page())
    assert PAGE.read_text() == page(), "`pytest tests/unit/docs/test_docs_stories.py --rewrite` makes it"
