"""How late rows of a real PostgreSQL are, as of bench/steady.py: 16 tables are updated, a row in each transaction.

`verified`: each update has come to the sink once, by their number.
"""

from __future__ import annotations

import math
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from cases import Case
from changefeed_devcluster.workload import RowRate
from measured import changefeed_run
from postgresql import PASSWORD, SERVER, USER, Postgresql, reading, running, server_cpu_s
from readers import Reader
from results import Result
from steady import result, sink_of, watched

_LOAD = "INSERT INTO {} SELECT n, n % 100, 0, n FROM generate_series(1, {}) n"
_UPDATE = "UPDATE {} SET abalance = abalance + 1 WHERE aid = CAST(:aid AS int)"


class Updates:
    """Updates rows of all tables by turns."""

    def __init__(self, case: Case, database: Postgresql, threads: ThreadPoolExecutor) -> None:
        self._case, self._database, self._threads = case, database, threads
        self._names = [f"accounts{number + 1}" for number in range(case.tables)]
        self._rows = max(1, case.rows // case.tables)  # of a table
        self.end = threading.Event()
        self._writing: Future[int] | None = None

    def load(self) -> None:
        for name in self._names:
            self._database.query(
                f"CREATE TABLE {name} (aid int PRIMARY KEY, bid int, abalance int, filler char(84))",
                f"ALTER TABLE {name} REPLICA IDENTITY FULL",
                _LOAD.format(name, self._rows),
            )
        self._database.query("CREATE PUBLICATION changefeed FOR ALL TABLES")

    def cpu_s(self) -> float:
        return server_cpu_s(self._database)

    def begin_workload(self) -> None:
        self._writing = self._threads.submit(self._write)

    def end_workload(self) -> dict[str, int]:
        """Tell how many there were."""
        self.end.set()
        assert self._writing is not None, "it has begun"
        return {"rows": self._writing.result()}

    def _write(self) -> int:
        pace, written = RowRate(self._case.rate, self.end), 0
        with self._database.connect() as connection:
            updates = [connection.prepare(_UPDATE.format(name)) for name in self._names]
            while not self.end.is_set():
                updates[written % len(updates)].run(aid=1 + written // len(updates) % self._rows)
                written += 1
                pace.keep(1)
        return written


@contextmanager
def _updates(case: Case) -> Iterator[tuple[Postgresql, Updates]]:
    with running(USER, PASSWORD, options=SERVER, of="newest") as database, ThreadPoolExecutor(1, "writer") as threads:
        updates = Updates(case, database, threads)
        updates.load()
        try:
            yield database, updates
        finally:
            updates.end.set()


def slot_lag(case: Case, verify: bool) -> Result:
    """One run, from its start to its drain, with the figures of the time in which it was watched."""
    with (
        tempfile.TemporaryDirectory(prefix="changefeed-bench-") as name,
        sink_of(case, Path(name)) as sink,
        _updates(case) as (database, updates),
    ):
        spec = reading(database, Path(name)) | sink.spec
        with changefeed_run(None, Path(name), case.storage, location=sink.location, mode=case.mode, **spec) as run:
            seen = watched(case, run, updates, sink.reader(run))
            seen.watch.until_caught_up()
            run.drain()
        verified = _arrived(seen.watch.reader) == updates.end_workload()["rows"] if verify else None
        return result(case, run, seen, verified)


def _arrived(reader: Reader) -> int:
    return sum(len(each.committed) for each in reader.arrivals(0, math.inf).values())
