"""A store that fails is waited for, whoever waits says so, and all waiting ends."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from changefeed.errors import (
    AlreadyExists,
    ChangefeedError,
    Fenced,
    NeedsHuman,
    NotFound,
    OutcomeUnknown,
    OutputConflict,
    Refused,
    Transient,
    Unavailable,
)
from changefeed.objectstore.patience import REQUESTS, Patience, Tally


def failing(*failures: Exception) -> Callable[[], int]:
    """Fails so often, then gives 7."""
    left = list(failures)

    def attempt() -> int:
        if left:
            raise left.pop(0)
        return 7

    return attempt


@pytest.mark.parametrize("kind", [OutcomeUnknown, Refused, Transient, Unavailable])
def test_what_may_pass_is_tried_again_and_told(kind: type[ChangefeedError]) -> None:
    slept: list[float] = []
    told: list[str | bool] = []
    patience = Patience(sleep=slept.append, failed=lambda error: told.append(error.message), works=told.append)
    assert patience.call("lake", failing()) == 7
    again: list[int] = []
    assert patience.call("lake", failing(kind("a"), kind("b")), lambda: again.append(1)) == 7
    assert told == [True, "a", "b", False]
    assert slept == [0.05, 0.1]
    assert again == [1, 1]


@pytest.mark.parametrize("kind", [AlreadyExists, Fenced, NeedsHuman, NotFound, OutputConflict])
def test_what_cannot_pass_is_raised_at_once(kind: type[ChangefeedError]) -> None:
    with pytest.raises(kind):
        Patience(sleep=lambda _: pytest.fail("it waits")).call("lake", failing(kind("no")))


def _answered(error: ChangefeedError, answered: bool) -> ChangefeedError:
    error.answered = answered
    return error


def test_requests_are_counted_by_how_they_end() -> None:
    tally = Tally()
    patience = Patience(20.0, sleep=lambda _: None, count=tally.add)
    away, badly = (_answered(Transient("x"), answered) for answered in (False, True))
    patience.call("lake", failing(away, badly, badly, Refused("no"), OutcomeUnknown("?")))
    for kind in (NotFound, AlreadyExists):
        with pytest.raises(kind):
            patience.call("lake", failing(kind("as it may be")))
    with pytest.raises(NeedsHuman):
        patience.call("lake", failing(_answered(NeedsHuman("400"), True)))
    counted = {label: times for (name, label), times in tally.take().items() if name == REQUESTS}
    assert counted == {"ok": 3, "away": 1, "refused": 4, "failed": 1}
    assert not tally.take()


@pytest.mark.parametrize("answered", [None, False, True])
def test_who_gives_up_still_says_whether_the_store_had_answered(answered: bool | None) -> None:
    error = Transient("503")
    error.answered = answered
    with pytest.raises(Unavailable) as caught:
        Patience(1.0, lambda _: None).call("The log", failing(*[error] * 99))
    assert caught.value.answered is answered


def test_it_gives_up_after_its_time_and_says_why() -> None:
    slept: list[float] = []
    patience = Patience(20.0, slept.append)
    with pytest.raises(Unavailable, match=r"^The log has failed for 20 s\. 503") as caught:
        patience.call("The log", failing(*[Transient("503")] * 99))
    assert caught.value.exit_code == 69
    assert 20 <= sum(slept) < 25
    assert max(slept) == 5.0
    with pytest.raises(Unavailable):  # of each call anew
        patience.call("The log", failing(*[Transient("503")] * 99))
    assert 40 <= sum(slept) < 50


def test_whoever_is_told_may_end_the_waiting() -> None:
    def failed(error: ChangefeedError) -> None:
        raise Fenced("The owner is gone.") from error

    with pytest.raises(Fenced):
        Patience(failed=failed).call("lake", failing(Transient("503")))


def test_nothing_is_waited_for_at_the_end() -> None:
    ending = threading.Event()
    tried = threading.Event()
    patience = Patience(float("inf"), failed=lambda _: tried.set(), ending=ending)
    found: list[Exception] = []

    def wait() -> None:
        try:
            patience.call("lake", failing(*[Transient("503")] * 999))
        except Unavailable as error:
            found.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert tried.wait(10.0)
    ending.set()
    thread.join(10.0)
    assert [str(error) for error in found] == ["The run is ending. The next start resumes from the checkpoint."]
