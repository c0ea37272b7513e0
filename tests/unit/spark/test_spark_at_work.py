"""When a worker of a task says that it works: not while it waits for the other one, not when it is stuck."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from changefeed.errors import Unavailable
from changefeed.spark import at_work
from changefeed.spark.at_work import AtWork
from changefeed.wire.owner import OwnerAddress

OWNER = OwnerAddress("127.0.0.1:1", 3, "ab", "the-token", b"the-certificate")
DEADLINE_S = 10.0


class Owner:
    """Counts what it is told; stands where the client to it would."""

    def __init__(self) -> None:
        self.told = threading.Semaphore(0)
        self.tasks: set[int] = set()
        self.away = False

    def __call__(self, _: OwnerAddress) -> Owner:
        return self

    def __enter__(self) -> Owner:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def working(self, task: int) -> None:
        self.tasks.add(task)
        self.told.release()
        if self.away:
            raise Unavailable("away")

    def hears(self) -> bool:
        """Three more words from now on, of which the first may have been on its way."""
        while self.told.acquire(blocking=False):
            pass
        return all(self.told.acquire(timeout=DEADLINE_S) for _ in range(3))

    def hears_nothing(self) -> bool:
        while self.told.acquire(timeout=0.3):
            pass  # one may have been on its way
        return not self.told.acquire(timeout=0.3)


@pytest.fixture
def owner(monkeypatch: pytest.MonkeyPatch) -> Owner:
    made = Owner()
    monkeypatch.setattr(at_work, "OwnerClient", made)
    monkeypatch.setattr(at_work, "SAY_EVERY_S", 0.01)
    return made


def test_it_says_so_while_it_makes_and_not_while_the_other_takes(owner: Owner) -> None:
    def slowly() -> Iterator[int]:
        assert owner.hears()
        yield 1
        assert owner.hears()

    with AtWork(OWNER, 0) as share:
        made = share.making(slowly())
        assert next(made) == 1
        assert owner.hears_nothing()
        assert list(made) == []
        assert owner.hears()
    assert owner.hears_nothing()
    assert owner.tasks == {0}


def test_it_says_so_while_it_works_on_what_it_took_and_not_while_it_waits(owner: Owner) -> None:
    def slowly() -> Iterator[int]:
        assert owner.hears_nothing()
        yield 1

    with AtWork(OWNER, 5) as share:
        for _ in share.taking(slowly()):
            assert owner.hears()
        assert owner.hears()


def test_an_owner_that_is_away_for_a_while_hears_of_it_later(owner: Owner) -> None:
    owner.away = True
    with AtWork(OWNER, 5):
        assert owner.hears()


def test_a_worker_that_is_stuck_in_one_step_says_nothing(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_work, "STUCK_S", 0.0)
    with AtWork(OWNER, 5):
        assert owner.hears_nothing()


def test_without_spark_there_is_nobody_to_tell(owner: Owner) -> None:
    with AtWork(OWNER, None):
        assert owner.hears_nothing()
