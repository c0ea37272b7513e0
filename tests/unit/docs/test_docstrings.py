"""A docstring's first sentence has a subject and a verb, or names the thing: it is no piece of a sentence."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
CODE = ("spark-apps", "devcluster", "operator", "tests", "bench", "examples", "images", "deploy", "release")


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each string that stands alone, as those of attributes do too."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def test_no_docstring_begins_in_the_middle_of_a_sentence() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for folder in CODE
        for file in (ROOT / folder).rglob("*.py")
        for line, text in docstrings(ast.parse(file.read_text()))
        if text.startswith("Of ")
    ]
    assert not found, "say what it is, or what it does:\n" + "\n".join(sorted(found))
