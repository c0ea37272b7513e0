"""Stories: what is done to a core, and what came out, in testdata/*.txt.

    # A sentence that says what is shown. Rule 17.
    puller 0
    ----
    puller 0: subscribe 1: span 1 after 100

Blank lines part a story into blocks: commands, `----`, and what they print. A line that begins with `#` is a comment;
those at the beginning say what the story is about, and are its line in tests/STORIES.md.

`pytest --rewrite` writes what came out into the stories instead of comparing it. Look at the diff.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path


def play(story: Path, run: Callable[[list[str]], Iterable[str]], rewrite: bool) -> None:
    """Run each block's commands through `run`, which gives the lines that they print."""
    told = story.read_text()
    blocks = []
    for block in told.strip().split("\n\n"):
        asked = block.partition("\n----")[0].splitlines()
        commands = [line for line in asked if not line.startswith("#")]
        blocks.append("\n".join([*asked, "----", *run(commands)] if commands else asked))
    came_out = "\n\n".join(blocks) + "\n"
    if rewrite:
        story.write_text(came_out)
    assert came_out == story.read_text(), f"{story.name} goes another way"


def each(command: Callable[[str], str | None]) -> Callable[[list[str]], Iterable[str]]:
    """For stories in which every line is a command."""

    def run(commands: list[str]) -> Iterable[str]:
        return [line for one in commands for line in (command(one) or "").splitlines()]

    return run


def subject(story: Path) -> str:
    """What it is about: its first comment."""
    lines = []
    for line in story.read_text().splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines)
