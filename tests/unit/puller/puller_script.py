"""Scripts of the form `command, input lines, ----, expected output, empty line`, one file a story.

REWRITE=1 writes what came out into the files instead of comparing it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

TESTDATA = Path(__file__).parent / "testdata"


def scripts(folder: str) -> list[Path]:
    return sorted((TESTDATA / folder).glob("*.txt"))


def run(script: Path, command: Callable[[str, list[str]], list[str]]) -> None:
    """Run each block through `command(name and arguments, input lines) -> output lines`."""
    out = []
    text = script.read_text()
    for block in text.strip().split("\n\n"):
        asked, _, _ = block.partition("\n----")
        comments = [line for line in asked.splitlines() if line.startswith("#")]
        lines = [line for line in asked.splitlines() if not line.startswith("#")]
        if not lines:
            out.append("\n".join(comments))
            continue
        result = command(lines[0], lines[1:])
        out.append("\n".join([*comments, *lines, "----", *result]))
    rewritten = "\n\n".join(out) + "\n"
    if os.environ.get("REWRITE"):
        script.write_text(rewritten)
    assert rewritten == text
