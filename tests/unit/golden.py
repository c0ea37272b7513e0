"""The golden data: what other people's encoders made, and how a test asks for it.

`CHANGEFEED_CORPUS=DIR` reads another directory of the same making. Where there is none, nothing of it is tested, which
one line says; with CI=true that is an error (tests/unit/conftest.py).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

CORPUS = Path(os.environ.get("CHANGEFEED_CORPUS") or Path(__file__).parents[3] / "shared" / "corpus").resolve()
_FILES = ("vectors.jsonl", "sink_vectors.jsonl")

asked_for: set[str] = set()  # ids of vectors


def lines(name: str) -> Iterator[Any]:
    """Of one file; none where there is no golden data."""
    if not CORPUS.is_dir():
        return
    with (CORPUS / name).open(encoding="utf-8") as text:
        yield from map(json.loads, text)


def vectors(kind: str) -> list[Any]:
    return [vector for vector in _all() if vector["kind"] == kind]


def each(*kinds: str, which: Callable[[Any], bool] = lambda vector: True) -> Any:
    """A test of each `vector` of these kinds; several tests may share a kind, `which` says how."""
    found = [vector for kind in kinds for vector in vectors(kind) if which(vector)]
    asked_for.update(vector["id"] for vector in found)
    marks = pytest.mark.golden
    return pytest.mark.parametrize("vector", [pytest.param(v, id=v["id"], marks=marks(v["kind"])) for v in found])


def untested() -> Counter[str]:
    """Vectors by kind that no test has asked for, once all tests are collected."""
    return Counter(vector["kind"] for vector in _all() if vector["id"] not in asked_for)


@cache
def _all() -> list[Any]:
    return [vector for file in _FILES for vector in lines(file)]
