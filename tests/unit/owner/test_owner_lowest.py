from __future__ import annotations

from collections import Counter

import owner_segments as s
from changefeed.owner.planning.lowest import Lowest
from hypothesis import given
from hypothesis import strategies as st

KEYS, NUMBERS = st.integers(0, 4), st.integers(0, 20)


@s.STEADY
@given(st.lists(st.tuples(st.sampled_from(["told", "rises", "is out", "forgotten", "asked"]), KEYS, NUMBERS)))
def test_it_is_the_lowest_whatever_the_order(events: list[tuple[str, int, int]]) -> None:
    numbers: dict[int, int] = {}
    lowest = Lowest(numbers.get)
    for event, key, number in events:
        if event == "told":
            numbers[key] = number
            lowest.may_be(key, number)
        elif event == "rises" and key in numbers:
            numbers[key] += number
        elif event == "is out":
            numbers.pop(key, None)
        elif event == "forgotten":
            numbers.pop(key, None)
            lowest.forget(key)
        elif event == "asked":
            assert lowest.get() == min(numbers.values(), default=None)
    assert lowest.get() == min(numbers.values(), default=None)


def test_what_can_not_be_the_lowest_is_not_looked_at() -> None:
    numbers, asked = {key: 100 + key for key in range(1000)}, Counter[int]()

    def number_of(key: int) -> int:
        asked[key] += 1
        return numbers[key]

    lowest = Lowest(number_of)
    for key, number in numbers.items():
        lowest.may_be(key, number)
    for _ in range(1000):
        numbers[0] += 1
        lowest.get()
    assert numbers[0] == 1100
    assert asked.total() <= 1000 + 2 * 1000, "one that rises, and those that it passes"
