"""The golden data: what other people's encoders made, and how a test asks for it.

`CHANGEFEED_CORPUS=DIR` reads another directory of the same making. Where there is none, nothing of it is tested, which
one line says; with CI=true that is an error (tests/unit/conftest.py).

A vector of a kind that no test asks for, or of a shape that a kind's tests don't know, is *not asked*. Of the data that
this project is developed with there must be none; of other data they are counted.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

OURS = (Path(__file__).parents[3] / "shared" / "corpus").resolve()
CORPUS = Path(os.environ.get("CHANGEFEED_CORPUS") or OURS).resolve()
_FILES = ("vectors.jsonl", "sink_vectors.jsonl")
_AS_IT_IS = ("json", "job")  # what a test hands on whole

asked_for: set[str] = set()  # ids of vectors


class UnknownShape(KeyError):
    """A test read what the vector does not have."""


class _Object(dict[str, Any]):
    def __missing__(self, member: str) -> Any:
        raise UnknownShape(f"no member {member!r}: {dict(self)}")


class _Array(list[Any]):
    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            raise UnknownShape(f"no object: {list(self)}")
        return super().__getitem__(key)

    def __getattr__(self, name: str) -> Any:
        raise UnknownShape(f"no object: {list(self)}")


class _Text(str):
    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            raise UnknownShape(f"no object: {self!s}")
        return super().__getitem__(key)


def lines(name: str) -> Iterator[Any]:
    """Yield the lines of one file; none where there is no such file."""
    if not (CORPUS / name).is_file():
        return
    with (CORPUS / name).open(encoding="utf-8") as text:
        yield from map(json.loads, text)


def vectors(kind: str) -> list[Any]:
    return [vector for vector in _all() if vector["kind"] == kind]


def each(*kinds: str, which: Callable[[Any], bool] = lambda vector: True) -> Any:
    """A test of each `vector` of these kinds; several tests may share a kind, `which` says how."""
    found = [vector for kind in kinds for vector in vectors(kind) if _is(which, vector)]
    asked_for.update(vector["id"] for vector in found)
    marks = pytest.mark.golden
    return pytest.mark.parametrize("vector", [pytest.param(v, id=v["id"], marks=marks(v["kind"])) for v in found])


def known(meanings: Mapping[str, Any], word: str) -> Any:
    """What a word of a vector means to a test."""
    if word not in meanings:
        raise UnknownShape(f"{word!r} is none of {sorted(meanings)}")
    return meanings[word]


def is_not_asked(error: BaseException | None, vector: Any) -> bool:
    """Whether a test ended by this error because the vector is not as it expects it, and not by what it tests.

    Never of the data that it was written for.
    """
    objects = all(isinstance(vector.get(part, {}), dict) for part in ("args", "expected"))
    unknown = isinstance(error, UnknownShape) or (not objects and isinstance(error, AttributeError | TypeError))
    return unknown and CORPUS != OURS


def untested() -> Counter[str]:
    """Vectors by kind that no test has asked for, once all tests are collected."""
    return Counter(vector["kind"] for vector in _all() if vector["id"] not in asked_for)


def _is(which: Callable[[Any], bool], vector: Any) -> bool:
    try:
        return bool(which(vector))
    except (UnknownShape, AttributeError, TypeError):
        return False


@cache
def _all() -> list[Any]:
    return [_shaped(vector) for file in _FILES for vector in lines(file)]


def _shaped(part: Any) -> Any:
    if isinstance(part, dict):
        return _Object({name: each if name in _AS_IT_IS else _shaped(each) for name, each in part.items()})
    if isinstance(part, list):
        return _Array(map(_shaped, part))
    return _Text(part) if isinstance(part, str) else part
