"""Which transactions are decided, by arrays; the join that finds them, and the pairs that need none."""

from __future__ import annotations

import numpy as np
from changefeed.upstream.tikv.matching.fates import Fates
from changefeed.upstream.tikv.matching.pairs import pairs, twins
from hypothesis import given
from hypothesis import strategies as st

NUMBERS = st.lists(st.sampled_from([0, 1, 2, 7, 2**64 - 1]), max_size=12)


@given(NUMBERS, NUMBERS)
def test_pairs_are_all_equal_elements_in_order_of_the_left(left: list[int], right: list[int]) -> None:
    i, j = pairs(np.array(left, np.uint64), np.array(right, np.uint64))
    found = list(zip(i.tolist(), j.tolist(), strict=True))
    assert found == [(i, j) for i, a in enumerate(left) for j, b in enumerate(right) if a == b]


@given(NUMBERS)
def test_twins_are_two_equal_hashes_and_no_third_in_order_of_the_first(numbers: list[int]) -> None:
    hashes = [number * 0x9E3779B97F4A7C15 % 2**64 for number in numbers]  # apart in their high bits
    first, second = twins(np.array(hashes, np.uint64))
    where = [[i for i, other in enumerate(hashes) if other == each] for each in dict.fromkeys(hashes)]
    assert list(zip(first.tolist(), second.tolist(), strict=True)) == [tuple(each) for each in where if len(each) == 2]


def u64(*values: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array(values, np.uint64)


def test_a_transaction_is_known_in_the_registrations_in_which_it_was_seen() -> None:
    fates = Fates()
    fates.learn(np.array([0, 0, 1]), u64(10, 10, 10), u64(15, 15, 15))
    fates.learn(np.array([0, 2]), u64(20, 10), u64(25, 15))
    assert len(fates) == 4
    assert fates.of(np.array([0, 1, 3, 0, 1]), u64(10, 10, 10, 20, 20)).tolist() == [15, 15, 0, 25, 0]


def test_it_is_forgotten_when_its_region_is_resolved_to_beyond_it_or_given_up() -> None:
    fates = Fates()
    fates.learn(np.array([0, 1, 2]), u64(10, 10, 10), u64(15, 15, 15))
    fates.forget(u64(15, 14, 0), np.array([True, True, False]))
    assert fates.of(np.array([0, 1, 2]), u64(10, 10, 10)).tolist() == [0, 15, 0]


def test_a_scan_of_many_chunks_leaves_few_parts() -> None:
    """Each is looked at when a resolved-ts rises."""
    fates = Fates()
    for chunk in range(1000):
        fates.learn(np.array([0]), u64(chunk), u64(chunk + 1))
    assert len(fates) == 1000
    assert len(fates._parts) <= 10
