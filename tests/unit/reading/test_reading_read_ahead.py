"""Files are fetched side by side, within a bound, and come in their order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from changefeed.errors import NotFound
from changefeed.objectstore import Object
from changefeed.objectstore.local import LocalStore
from changefeed.reading.layout.files import DirectoryFiles
from changefeed.reading.layout.read_ahead import AHEAD_BYTES, AT_ONCE, read_ahead


class Watched(LocalStore):
    """Nothing is in it; `fetched` in the order in which they were asked for. `get_one`: what a get does."""

    def __init__(self, root: Path, get_one: Callable[[str], object] = str) -> None:
        super().__init__(root)
        self._get_one = get_one
        self.fetched: list[str] = []

    def get(self, path: str) -> Object:
        self.fetched.append(path)
        self._get_one(path)
        return Object(path.encode(), "")


def directory(name: str, sizes: list[int]) -> DirectoryFiles:
    paths = [f"{name}/CDC{number:06}.csv" for number in range(1, len(sizes) + 1)]
    files = dict(enumerate(paths, 1))
    return DirectoryFiles(name, len(sizes), files=files, sizes=dict(zip(paths, sizes, strict=True)))


def test_so_many_small_files_are_fetched_at_the_same_moment_and_come_in_their_order(tmp_path: Path) -> None:
    together = threading.Barrier(AT_ONCE)
    store = Watched(tmp_path, lambda _: together.wait(timeout=30))
    directories = [directory("a", [100] * AT_ONCE), directory("b", [100] * AT_ONCE)]

    found = [(path, each.body.decode()) for path, each in read_ahead(store, directories)]

    assert found == [(path, path) for each in directories for path in each.readable]


@pytest.mark.parametrize("size", [AHEAD_BYTES // 2, AHEAD_BYTES + 1])
def test_large_files_wait_until_those_before_them_are_done_with(tmp_path: Path, size: int) -> None:
    store = Watched(tmp_path)
    for number, _ in enumerate(read_ahead(store, [directory("a", [size] * 6)]), 1):
        held = number + 1 if 2 * size <= AHEAD_BYTES else number  # those done with, this one, and what fits beside it
        assert len(store.fetched) <= min(held, 6)


def test_a_file_that_is_gone_is_told_at_its_turn(tmp_path: Path) -> None:
    def get(path: str) -> None:
        if path == "a/CDC000003.csv":
            raise NotFound(f"There is no {path}.")

    files = read_ahead(Watched(tmp_path, get), [directory("a", [100] * 5)])

    assert [next(files)[0], next(files)[0]] == ["a/CDC000001.csv", "a/CDC000002.csv"]
    with pytest.raises(NotFound, match="CDC000003"):
        next(files)
