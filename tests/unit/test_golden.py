"""How the golden data is asked for: what no test knows is counted, by kind, and ends nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import golden
import pytest

VECTORS: list[dict[str, Any]] = [
    {"id": "1", "kind": "sum", "args": {"left": 1, "right": 2}, "expected": {"text": "3"}},
    {"id": "2", "kind": "sum", "args": {"terms": [{"text": "1"}]}, "expected": ["3"]},
    {"id": "3", "kind": "sum", "args": None, "expected": "3"},
    {"id": "4", "kind": "new", "expected": None},
    {"id": "5", "kind": "new", "args": {"json": {"a": {}}}, "expected": {}},
]


@pytest.fixture
def vectors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Vectors of a directory that is not the one the tests were written for."""
    shaped = [golden._shaped(vector) for vector in VECTORS]
    monkeypatch.setattr(golden, "_all", lambda: shaped)
    monkeypatch.setattr(golden, "asked_for", set())
    monkeypatch.setattr(golden, "CORPUS", tmp_path)
    return shaped


def asked(*kinds: str, **which: Any) -> list[str]:
    return [parameters.id for parameters in golden.each(*kinds, **which).args[1]]


@pytest.mark.parametrize(
    "which",
    [
        lambda vector: vector["args"]["left"] == 1,
        lambda vector: vector["expected"].get("text") == "3",
        lambda vector: vector["expected"]["text"],
    ],
)
def test_what_the_choice_does_not_know_is_not_asked_and_counted_by_kind(vectors: list[Any], which: Any) -> None:
    assert asked("sum", which=which) == ["1"]
    assert golden.untested() == {"sum": 2, "new": 2}


def read(*path: str | int) -> Any:
    def reads(vector: Any) -> Any:
        for member in path:
            vector = vector[member]
        return vector

    return reads


@pytest.mark.parametrize(
    ("number", "reads"),
    [
        (0, read("args", "sum")),
        (0, read("input_hex")),
        (0, read("expected", "text", "of")),
        (1, read("args", "terms", 0, "value")),
        (1, read("args", "terms", "value")),
        (1, read("expected", "text")),
        (1, lambda vector: vector["expected"].items()),
        (2, read("args", "left")),
        (2, lambda vector: vector["args"].get("left")),
        (2, read("expected", "text")),
        (2, lambda vector: vector["expected"].values()),
        (3, read("args")),
        (3, read("expected", "text")),
        (0, lambda vector: golden.known({"a": 1}, vector["expected"]["text"])),
    ],
)
def test_a_test_that_reads_what_is_not_there_has_not_asked(
    vectors: list[Any], monkeypatch: pytest.MonkeyPatch, number: int, reads: Any
) -> None:
    with pytest.raises((KeyError, TypeError, AttributeError)) as caught:
        reads(vectors[number])
    assert golden.is_not_asked(caught.value, vectors[number])
    monkeypatch.setattr(golden, "OURS", golden.CORPUS)
    assert not golden.is_not_asked(caught.value, vectors[number])


@pytest.mark.parametrize("error", [AssertionError(), KeyError("sum"), TypeError(), ValueError(), None])
def test_a_test_that_fails_has_asked(vectors: list[Any], error: Exception | None) -> None:
    assert not golden.is_not_asked(error, vectors[0])


def test_what_a_test_hands_on_whole_is_as_it_was(vectors: list[Any]) -> None:
    assert type(vectors[4]["args"]["json"]) is dict


def test_a_file_that_is_not_there_has_no_lines(vectors: list[Any]) -> None:
    assert not list(golden.lines("rows.jsonl"))
