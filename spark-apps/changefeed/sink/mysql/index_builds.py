"""Index builds that run in the server while rows continue, as in TiCDC: on a large table they take hours.

The intent is recorded in our table `ddls` before a build starts, so a driver that finds one continues it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from changefeed.schema.ddl.actions import Action
from changefeed.sink.contract import Ddl, FirstFailure
from changefeed.sink.mysql.ddl_record import DdlId, Subject


@dataclass(frozen=True)
class Build:
    """`look`: of the table before it. `statements`: what builds it, with what the session must be set to first."""

    ddl: DdlId
    table: Subject
    look: str
    statements: tuple[bytes, ...]

    def to_json(self) -> bytes:
        """What `from_json` needs beside what the row of `ddls` says."""
        statements = [statement.decode() for statement in self.statements]
        return json.dumps([self.table.database, self.table.table, statements]).encode()

    @classmethod
    def from_json(cls, ddl: DdlId, look: str, text: bytes) -> Build:
        database, table, statements = json.loads(text)
        return cls(ddl, Subject(database, table), look, tuple(each.encode() for each in statements))


def is_build(ddl: Ddl) -> bool:
    """Whether it only adds indexes that refuse no row: what comes after it need not wait."""
    known = {index.id for table in ddl.before.values() for index in table.indexes}
    new = [index for table in ddl.tables.values() for index in table.indexes if index.id not in known]
    is_adding = ddl.change is not None and ddl.change.type == Action.ADD_INDEX
    return is_adding and bool(new) and not any(index.is_unique for index in new)


class IndexBuilds:
    """Those that are under way, each in a thread of its own. One caller at a time."""

    def __init__(self, build: Callable[[Build], None]) -> None:
        """`build` returns when the index stands."""
        self._build = build
        self._threads: dict[Build, threading.Thread] = {}
        self._failure = FirstFailure(lambda error: None)

    def start(self, build: Build) -> None:
        self.check()
        thread = threading.Thread(target=self._run, args=(build,), name=f"index-{build.ddl.job}", daemon=True)
        self._threads[build] = thread
        thread.start()

    def check(self) -> None:
        """Raises why one has failed."""
        self._failure.check()

    def wait_for(self, subjects: Iterable[Subject]) -> None:
        """Those of a table that a DDL concerns come first; all, if it concerns several, or a database."""
        concerned = set(subjects)
        is_one = len(concerned) == 1 and all(subject.table is not None for subject in concerned)
        for build, thread in list(self._threads.items()):
            if build.table in concerned or not is_one:
                thread.join()
                del self._threads[build]
        self.check()

    def _run(self, build: Build) -> None:
        try:
            self._build(build)
        except BaseException as error:  # noqa: BLE001 - `check` raises it
            self._failure.set(error)
