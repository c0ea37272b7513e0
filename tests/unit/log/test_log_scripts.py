"""The log told by testdata/*.txt: drivers on one store, and what the others do while one is inside a call.

    claim DRIVER | append DRIVER [N] | fold DRIVER | read [READER]
    at DRIVER CALL NUMBER: COMMAND; ...    what happens right before the driver's next such call takes effect
    unknown DRIVER CALL NUMBER             that call's outcome is not known: nothing was written
    unknown-written DRIVER CALL NUMBER     the same, but it was
    dies DRIVER CALL NUMBER                it is killed before that call
    objects                                what is in the store
    fresh                                  another store

CALL is create, get or delete; NUMBER that of a record, or `snapshot-N`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import datadriven
import owner_records as made
import pytest
from changefeed.errors import ChangefeedError
from changefeed.log.log import Log
from owner_faulty_store import Fault, MemoryStore

STORIES = sorted((Path(__file__).parent / "testdata").glob("*.txt"))


class Killed(BaseException):
    pass


class World:
    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._logs: dict[str, Log] = {}
        self._plans: dict[tuple[str, str], list[str]] = {}  # of driver and call: commands, or a fault
        self._said: list[str] = []

    def run(self, command: str) -> str:
        self._said = []
        self._do(command)
        return "\n".join(self._said)

    def _do(self, command: str) -> None:
        name, _, rest = command.partition(" ")
        try:
            self._said += list(getattr(self, "do_" + name.replace("-", "_"))(rest) or ())
        except ChangefeedError as error:
            self._said.append(f"{rest.split()[0]}: {type(error).__name__}: {error.message}")
        except Killed:
            self._said.append(f"{rest.split()[0]} is killed")
            del self._logs[rest.split()[0]]

    def _log(self, driver: str) -> Log:
        if driver not in self._logs:
            store = MemoryStore(self._objects, lambda call, path: self._before(driver, call, path))
            self._logs[driver] = Log(store, sleep=lambda _: None)
        return self._logs[driver]

    def _before(self, driver: str, call: str, path: str) -> Fault:
        what = f"{call} {_short(path)}"
        planned = self._plans.pop((driver, what), None)
        if planned is None:
            return ""
        self._said.append(f"{driver} is about to {what}")
        if planned == ["dies"]:
            raise Killed
        if planned[0] in ("unknown", "unknown-written"):
            return planned[0]
        for command in planned:
            self._do(command)
        self._said.append(f"{driver} goes on")
        return ""

    def do_claim(self, driver: str) -> Iterator[str]:
        log = self._log(driver)
        if log.read().n == 0:
            log.append(made.start(driver))
        state = log.claim_epoch(lambda state: made.epoch(state, driver))
        yield f"{driver} is epoch {state.epoch.number}, by record {state.n}"

    def do_append(self, words: str) -> Iterator[str]:
        driver, _, times = words.partition(" ")
        log = self._log(driver)
        for _ in range(int(times or 1)):
            log.append(made.next_record(log.state))
        yield f"{driver} is at record {log.state.n}"

    def do_fold(self, driver: str) -> Iterator[str]:
        log = self._log(driver)
        log.fold(log.state)
        yield f"{driver} has folded up to {log.state.n}"

    def do_read(self, reader: str) -> Iterator[str]:
        state = self._log(reader or "reader").read()
        yield f"{reader or 'reader'}: record {state.n}, epoch {state.epoch.number} of {state.epoch.nonce}"

    def do_at(self, words: str) -> None:
        where, _, commands = words.partition(": ")
        driver, _, call = where.partition(" ")
        self._plans[driver, call] = commands.split("; ")

    def do_unknown(self, words: str) -> None:
        driver, _, call = words.partition(" ")
        self._plans[driver, call] = ["unknown"]

    def do_unknown_written(self, words: str) -> None:
        driver, _, call = words.partition(" ")
        self._plans[driver, call] = ["unknown-written"]

    def do_dies(self, words: str) -> None:
        driver, _, call = words.partition(" ")
        self._plans[driver, call] = ["dies"]

    def do_objects(self, _: str) -> Iterator[str]:
        yield " ".join(map(_short, sorted(self._objects)))

    def do_fresh(self, _: str) -> None:
        self.__init__()  # type: ignore[misc]


def _short(path: str) -> str:
    """`6` or `snapshot-6`."""
    name = path.removeprefix("log/").removesuffix(".json")
    kind, _, number = name.rpartition("-")
    return f"{kind}-{int(number)}" if kind else number.lstrip("0") or number


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_story(story: Path, rewrite: bool) -> None:
    datadriven.play(story, datadriven.each(World().run), rewrite)
