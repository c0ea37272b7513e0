"""The minimum of many numbers that mostly rise. Cost depends on how many could be the minimum."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Lowest:
    """Numbers by their keys. One may rise unseen and is asked for when it could be the lowest; a fall must be told.

    `number_of(key)`: what it is now; None: it is out.
    """

    def __init__(self, number_of: Callable[[int], int | None]) -> None:
        self._number_of = number_of
        self._at_least: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []  # (at least, key); one that differs from the above is void

    def may_be(self, key: int, number: int) -> None:
        """The key's number is no lower than `number`."""
        if key not in self._at_least or number < self._at_least[key]:
            self._at_least[key] = number
            heapq.heappush(self._heap, (number, key))

    def forget(self, key: int) -> None:
        self._at_least.pop(key, None)

    def get(self) -> int | None:
        """None when all are out."""
        while self._heap:
            at_least, key = self._heap[0]
            number = self._number_of(key) if self._at_least.get(key) == at_least else None
            if number == at_least:
                return number
            heapq.heappop(self._heap)
            if self._at_least.get(key) == at_least:
                self.forget(key)
                if number is not None:
                    self.may_be(key, number)
        return None
