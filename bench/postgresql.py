"""How fast rows of a real PostgreSQL are, and for how much CPU of ours: as of bench/throughput.py.

Rows have the four columns of pgbench's accounts, and one session inserts them, some hundreds in a transaction. `scan`:
they wait in the slot when the run starts, and it is as fast as it can; `written`: they are written while they are
watched; `copy`: they are there before the slot is, and are read as of its beginning.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import psutil
from cases import Case
from measured import ROOT, Run, changefeed_run, memory_in_use
from results import Result
from throughput import Once, compared, ended

sys.path.insert(0, str(ROOT / "tests" / "integration" / "support"))

from integration_postgresql import Postgresql, running

USER = PASSWORD = "bench"
TABLES = (
    "CREATE TABLE accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84))",
    "ALTER TABLE accounts REPLICA IDENTITY FULL",
    "CREATE PUBLICATION changefeed FOR ALL TABLES",
)
ROWS_OF_A_TRANSACTION = 500
#: Of a server that has this machine's memory: by default one has room for 128 MiB of pages and 1 GiB of WAL.
SERVER = ("-c", "shared_buffers=4GB", "-c", "max_wal_size=16GB")
_START_S, _WRITE_S = 120.0, 600.0
_SHORT_ROWS = 100_000  # of a test: it needs no more memory than there is at hand


def slot(case: Case, verify: bool) -> Result:
    return compared(case, _once(case, case.rows, False), _once(case, 2 * case.rows, verify))


@dataclass(frozen=True)
class _Bench:
    case: Case
    database: Postgresql
    folder: Path

    def run(self, **spec: Any) -> Any:
        """A run of its changefeed, which goes on where the one before has ended. `spec`: as of changefeed_run."""
        spec = reading(self.database, self.folder) | spec
        return changefeed_run(None, self.folder, self.case.storage, core=self.case.core, **spec)

    def write(self, rows: int) -> dict[str, Any]:
        """Commit so many; tell as bench/upstream.py does."""
        insert(self.database, rows)
        return {"ts": "", "rows": rows}

    def server_cpu_s(self) -> float:
        return server_cpu_s(self.database)


def insert(database: Postgresql, rows: int) -> None:
    """Commit so many rows of the table, in one session."""
    with database.connect() as connection:
        for first in range(1, rows + 1, ROWS_OF_A_TRANSACTION):
            last = min(first + ROWS_OF_A_TRANSACTION - 1, rows)
            series = f"generate_series({first}, {last}) n"
            connection.run(f"INSERT INTO accounts SELECT n, n % 100, n::bigint * 7919 % 1000003, n FROM {series}")


def server_cpu_s(database: Postgresql) -> float:
    """CPU seconds of the server's processes, those that have ended included."""
    first = psutil.Process(int((database.folder / "data" / "postmaster.pid").read_text().split()[0]))
    alive = sum(sum(process.cpu_times()[:2]) for process in first.children())
    return float(sum(first.cpu_times()[:4]) + alive)


def reading(database: Postgresql, folder: Path) -> dict[str, Any]:
    """What the resource of a changefeed in that folder has of the upstream. The Secret is put there, too."""
    for key, value in (("username", USER), ("password", PASSWORD)):
        path = folder / "secrets" / "reader" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value)
    reader = {"secretRef": {"name": "reader"}}
    upstream = {"host": "127.0.0.1", "port": database.port, "database": "postgres", "credentials": reader}
    return {"upstream": {"postgresql": upstream}, "filter": {"rules": ["public.*"]}}


def _once(case: Case, rows: int, verify: bool) -> Once:
    with (
        tempfile.TemporaryDirectory(prefix="changefeed-bench-") as name,
        running(USER, PASSWORD, options=SERVER, of="newest") as database,
        ExitStack() as held,
    ):
        database.query(*TABLES)
        if rows > _SHORT_ROWS:
            held.enter_context(memory_in_use())
        how = {"written": _written, "scan": _waiting, "copy": _copied}[case.how]
        once = how(_Bench(case, database, Path(name)), rows)
        return replace(once, verified=_is_whole(once.run, rows) if verify else None)


def _waiting(bench: _Bench, rows: int) -> Once:
    with bench.run() as run:  # it makes the slot
        _is_normal(run)
        run.drain()
    return _to_the_end(bench, bench.write(rows))


def _copied(bench: _Bench, rows: int) -> Once:
    return _to_the_end(bench, bench.write(rows), initialCopy=True)


def _to_the_end(bench: _Bench, end: dict[str, Any], **spec: Any) -> Once:
    """All rows are committed, and it ends behind the last one."""
    with bench.run(**spec) as run:
        served = bench.server_cpu_s()
        _is_normal(run)
        _all_published(run)
        served = bench.server_cpu_s() - served
        run.drain()
    assert run.meter.first_segment is not None, "rows have come"
    return ended(run, end, run.meter.first_segment, served)


def _written(bench: _Bench, rows: int) -> Once:
    with bench.run() as run:
        _is_normal(run)
        served, began = bench.server_cpu_s(), time.time()
        end = bench.write(rows)
        _all_published(run)
        served = bench.server_cpu_s() - served
        run.drain()
    return ended(run, end, began, served)


def _is_normal(run: Run) -> None:
    run.until(lambda: run.meter.metric("changefeed_owner_state_info", "Normal"), "it is Normal", _START_S)


def _all_published(run: Run) -> None:
    run.until_published(time.time() * 1000 + 1, "all rows are in the sink", _WRITE_S)
    run.meter.sample()


def _is_whole(run: Run, rows: int) -> bool:
    """Whether the files have each row once, as it was inserted."""
    columns = dict.fromkeys(("op", "table", "schema", "ts", "aid", "bid", "abalance", "filler"), "VARCHAR")
    query = (
        "SELECT count(*), count(DISTINCT aid), max(aid::int), bool_and(op = 'I' AND trim(filler) = aid) "
        "FROM read_csv($files, header = false, columns = $columns)"
    )
    files = [str(path) for path in run.data_files()]
    return duckdb.execute(query, {"files": files, "columns": columns}).fetchone() == (rows, rows, rows, True)
