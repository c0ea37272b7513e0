"""`alive.json`: a second driver is told about the first, by PD's time, and an older one learns that it is fenced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from changefeed.errors import Conflict, Fenced, OutcomeUnknown, StateInUse, Transient
from changefeed.objectstore.local import LocalStore
from changefeed.owner.alive import ALIVE, Alive

NOW_MS = 1_800_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "state")


def said(store: LocalStore) -> dict[str, object]:
    content: dict[str, object] = json.loads(store.get(ALIVE).body)
    return content


def test_a_young_word_refuses_a_second_driver(store: LocalStore) -> None:
    Alive(store).check(NOW_MS)  # nobody was ever there
    Alive(store).refresh(4, NOW_MS)
    with pytest.raises(Conflict, match=r"runs already: process \d+ on .*, epoch 4, was alive 12 s ago") as caught:
        Alive(store).check(NOW_MS + 12_000)
    assert "in 3 s" in caught.value.next_step
    assert "--take-over" in caught.value.next_step
    Alive(store).check(NOW_MS + 15_000)


def test_a_driver_that_has_ended_does_not_refuse(store: LocalStore) -> None:
    alive = Alive(store)
    alive.end()
    assert store.list() == [], "it never began"
    alive.refresh(1, NOW_MS)
    alive.refresh(1, NOW_MS + 5_000)
    with pytest.raises(Conflict):
        Alive(store).check(NOW_MS + 6_000)
    alive.end()
    Alive(store).check(NOW_MS + 6_000)


def test_the_driver_of_another_resource_is_not_taken_over(store: LocalStore) -> None:
    """Two Changefeeds with one spec.state.id: the second waits, although the operator tells it to take over."""
    alive = Alive(store, "A", "shop/orders")
    alive.refresh(4, NOW_MS)
    second = Alive(store, "B", "sales/orders")
    with pytest.raises(StateInUse, match=r"Changefeed shop/orders, uid A, runs .* was alive 59 s ago") as caught:
        second.check(NOW_MS + 59_000, take_over=True)
    assert caught.value.exit_code == 69, "it is tried again: the other one may be on its way out"
    assert "Delete that one" in caught.value.next_step
    Alive(store, "A").check(NOW_MS, take_over=True)
    second.check(NOW_MS + 60_000)
    alive.end()
    second.check(NOW_MS + 1, take_over=True)


def test_rule_6_a_newer_driver_is_noticed_and_left_alone(store: LocalStore) -> None:
    old, new = Alive(store), Alive(store)
    old.refresh(1, NOW_MS)
    new.refresh(2, NOW_MS + 1)
    with pytest.raises(Fenced, match=r"Epoch 2 of the changefeed runs, .*; this driver is 1"):
        old.refresh(1, NOW_MS + 2)
    old.end()
    assert (said(store)["epoch"], said(store)["ended"]) == (2, False)
    new.refresh(2, NOW_MS + 3)


def test_a_zombie_that_came_between_is_overwritten(store: LocalStore) -> None:
    old, new = Alive(store), Alive(store)
    new.refresh(2, NOW_MS)
    store.delete(ALIVE)
    old.refresh(1, NOW_MS + 1)
    new.refresh(2, NOW_MS + 2)
    assert said(store)["epoch"] == 2


@pytest.mark.parametrize("body", [b"", b"[]", b'{"v":2}', b'{"v":1,"epoch":"x"}'])
def test_what_nobody_of_us_wrote_means_nothing(store: LocalStore, body: bytes) -> None:
    store.create(ALIVE, body)
    alive = Alive(store)
    alive.check(NOW_MS)
    alive.refresh(1, NOW_MS)
    assert said(store)["epoch"] == 1


@pytest.mark.parametrize("error", [OutcomeUnknown("perhaps"), Transient("later")])
@pytest.mark.parametrize("written", [True, False])
def test_a_failed_refresh_is_made_good_by_the_next(tmp_path: Path, error: Exception, written: bool) -> None:
    class Failing(LocalStore):
        failing = False

        def swap(self, path: str, body: bytes, etag: str | None) -> str:
            if not self.failing or written:
                new = super().swap(path, body, etag)
            if self.failing:
                raise error
            return new

    store = Failing(tmp_path)
    alive = Alive(store)
    alive.refresh(3, NOW_MS)
    store.failing = True
    alive.refresh(3, NOW_MS + 5_000)
    store.failing = False
    alive.refresh(3, NOW_MS + 10_000)
    assert said(store)["pdMs"] == str(NOW_MS + 10_000)
