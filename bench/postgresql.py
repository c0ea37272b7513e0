"""How fast rows of a real PostgreSQL are, and for how much CPU of ours: as of bench/throughput.py.

Rows have the four columns of pgbench's accounts and are inserted, some hundreds in a transaction. `scan`: they wait in
the slot when the run starts, and it is as fast as it can; `written`: they are written while they are watched.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import psutil
from cases import Case
from measured import ROOT, Run, changefeed_run
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
_START_S, _WRITE_S = 120.0, 600.0


def slot(case: Case, verify: bool) -> Result:
    return compared(case, _once(case, case.rows, False), _once(case, 2 * case.rows, verify))


@dataclass(frozen=True)
class _Bench:
    case: Case
    database: Postgresql
    folder: Path

    def run(self) -> Any:
        """A run of its changefeed, which goes on where the one before has ended."""
        for key, value in (("username", USER), ("password", PASSWORD)):
            path = self.folder / "secrets" / "reader" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(value)
        reader = {"secretRef": {"name": "reader"}}
        upstream = {"host": "127.0.0.1", "port": self.database.port, "database": "postgres", "credentials": reader}
        spec: dict[str, Any] = {"upstream": {"postgresql": upstream}, "filter": {"rules": ["public.*"]}}
        return changefeed_run(None, self.folder, self.case.storage, core=self.case.core, **spec)

    def write(self, rows: int) -> dict[str, Any]:
        """Commit so many; tell as bench/upstream.py does."""
        with self.database.connect() as connection:
            for first in range(1, rows + 1, ROWS_OF_A_TRANSACTION):
                last = min(first + ROWS_OF_A_TRANSACTION - 1, rows)
                series = f"generate_series({first}, {last}) n"
                connection.run(f"INSERT INTO accounts SELECT n, n % 100, n::bigint * 7919 % 1000003, n FROM {series}")
        return {"ts": "", "rows": rows}

    def server_cpu_s(self) -> float:
        """CPU seconds of the server's processes that live."""
        first = psutil.Process(int((self.database.folder / "data" / "postmaster.pid").read_text().split()[0]))
        return float(sum(sum(process.cpu_times()[:2]) for process in (first, *first.children())))


def _once(case: Case, rows: int, verify: bool) -> Once:
    with (
        tempfile.TemporaryDirectory(prefix="changefeed-bench-") as name,
        running(USER, PASSWORD, of="newest") as database,
    ):
        database.query(*TABLES)
        bench = _Bench(case, database, Path(name))
        once = (_written if case.how == "written" else _waiting)(bench, rows)
        return replace(once, verified=_is_whole(once.run, rows) if verify else None)


def _waiting(bench: _Bench, rows: int) -> Once:
    with bench.run() as run:  # it makes the slot
        _is_normal(run)
        run.drain()
    end = bench.write(rows)
    with bench.run() as run:
        served = bench.server_cpu_s()
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
