"""O2: what listings of a sink may never show."""

from __future__ import annotations

from changefeed.reading.layout.files import PublishedFiles
from changefeed.verify.storage.finality import Finality
from hypothesis import given
from hypothesis import strategies as st


def see(*steps: tuple[int, dict[str, int], dict[str, int | None]]) -> list[list[str]]:
    """Return what is wrong with each listing (checkpoint, sizes by path, lowest commit ts by path)."""
    finality = Finality()
    return [finality.see(PublishedFiles(checkpoint, files), lowest) for checkpoint, files, lowest in steps]


def test_a_sink_that_grows() -> None:
    assert (
        see(
            (0, {}, {}),
            (0, {"a": 1}, {"a": 3}),
            (5, {"a": 1, "b": 2}, {"b": 4}),  # 4 was there when 5 was read: it is no later listing
            (5, {"a": 1, "b": 2, "c": 9}, {"c": 6}),
            (9, {"a": 1, "b": 2, "c": 9, "d": 0}, {"d": None}),
        )
        == [[]] * 5
    )


def test_o2_a_row_at_or_below_a_published_checkpoint_that_comes_later() -> None:
    *_, found = see((5, {"a": 1}, {}), (7, {"a": 1, "b": 2}, {"b": 5}))
    assert found == ["b appeared with a row of commit ts 5, after checkpoint 5 was published."]
    assert see((5, {}, {}), (9, {"b": 2}, {"b": 6})) == [[], []]


def test_o2_a_checkpoint_that_goes_back() -> None:
    assert see((5, {}, {}), (4, {}, {}), (5, {}, {})) == [
        [],
        ["`metadata` went back from checkpoint 5 to 4."],
        [],
    ]
    assert see((5, {}, {}), (0, {}, {}))[1] == ["`metadata` went back from checkpoint 5 to none."]


def test_o2_the_highest_checkpoint_counts_also_after_it_went_back() -> None:
    *_, found = see((5, {}, {}), (4, {}, {}), (5, {"b": 1}, {"b": 5}))
    assert found == ["b appeared with a row of commit ts 5, after checkpoint 5 was published."]


def test_o2_what_was_published_stays_as_it_is() -> None:
    *_, found = see((5, {"a": 1, "b": 1}, {}), (5, {"a": 2}, {}))
    assert found == ["a was published with 1 bytes, and has 2 now.", "b was published but no longer is."]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), max_size=12))
def test_it_agrees_with_the_plain_statement_of_the_promise(steps: list[tuple[int, int]]) -> None:
    """Each step publishes one file with one row, then a checkpoint."""
    files: dict[str, int] = {}
    finality = Finality()
    late = back = 0
    seen = 0
    for number, (checkpoint, ts) in enumerate(steps):
        files[str(number)] = 1
        problems = finality.see(PublishedFiles(checkpoint, dict(files)), {str(number): ts})
        late += sum("appeared" in problem for problem in problems)
        back += sum("went back" in problem for problem in problems)
        seen = max(seen, checkpoint)
    highest = [max((step[0] for step in steps[:n]), default=0) for n in range(len(steps))]
    assert late == sum(ts <= highest[n] for n, (_, ts) in enumerate(steps))
    assert back == sum(checkpoint < highest[n] for n, (checkpoint, _) in enumerate(steps))
