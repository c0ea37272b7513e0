"""How much memory a puller needs for one large transaction of a real PostgreSQL, and how long it takes.

    bench/postgresql_transaction.py --rows 5000000

The puller is a process of its own, alone, with the environment that Spark's Python workers have, which says how memory
is kept; the owner is a stand-in. Rows have four columns, as pgbench's accounts. `inserted`: the transaction inserts
them; `changed`: it then updates all of them, so each row's two changes are as far apart as they can be. Prints a line
of figures for each and writes bench/out/postgresql_transaction.json (docs/design/layouts.md, Benchmark results).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from changefeed.eventstore.run_folder import RunFolder
from changefeed.objectstore import Location
from changefeed.puller.task import Limits, PullerTask
from changefeed.spark.settings import LaptopDeployment, worker_environment
from changefeed.upstream.postgresql.database import PostgresqlDatabase
from changefeed.upstream.postgresql.server import PostgresqlServer
from changefeed.upstream.postgresql.slot.lease import SlotLease
from changefeed.wire import owner_pb2
from large_transaction import memory
from measured import ROOT, write_report

sys.path.insert(0, str(ROOT / "tests" / "integration" / "support"))

from integration_postgresql import reached, running

SLOT, PUBLICATION = "bench", "changefeed"
TABLE = "CREATE TABLE accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84))"
INSERT = "INSERT INTO accounts SELECT n, n % 100, 0, '' FROM generate_series(1, {}) n"
UPDATE = "UPDATE accounts SET abalance = aid"
SHAPES = {"inserted": [INSERT], "changed": [INSERT, UPDATE]}


class Owner:
    """Subscribes the table, hears every segment at once, and ends when `rows` are there and all is resolved."""

    def __init__(self, table: int, start_ts: int, rows: int) -> None:
        self._commands: asyncio.Queue[owner_pb2.Command | None] = asyncio.Queue()
        asked = owner_pb2.Subscribe(sub_id=1, span_id=table, start_key=b"", end_key=b"", start_ts=start_ts)
        self._commands.put_nowait(owner_pb2.Command(subscribe=asked))
        self._wanted = rows
        self.rows = self.segments = self.idle_rss = 0

    def __aiter__(self) -> Owner:
        return self

    async def __anext__(self) -> owner_pb2.Command:
        command = await self._commands.get()
        if command is None:
            raise StopAsyncIteration
        self.idle_rss = self.idle_rss or memory()["VmRSS"]
        return command

    async def write(self, report: owner_pb2.Report) -> None:
        for segment in report.segments:
            self.rows += sum(span.rows for span in segment.spans)
            self.segments += 1
            self._commands.put_nowait(owner_pb2.Command(heard=owner_pb2.Heard(segment=segment.seq)))
        if self.rows >= self._wanted and report.resolved:
            self._commands.put_nowait(None)


def pull(server: PostgresqlServer, table: int, start_ts: int, rows: int, folder: Path, answers: Any) -> None:
    """The measured process."""

    async def run() -> None:
        owner = Owner(table, start_ts, rows)
        run_folder = RunFolder(Location(folder.as_uri()), 1, "ab")
        feed = PostgresqlDatabase(server, SLOT, PUBLICATION, 1).feed
        task = PullerTask(0, "puller-0-0", feed, run_folder, Limits())
        began = time.monotonic()
        await task.run(owner)  # type: ignore[arg-type]
        wall_s, cpu_s = time.monotonic() - began, time.process_time()
        found = {"rows": owner.rows, "segments": owner.segments, "idle_rss_mib": owner.idle_rss}
        answers.send({**found, "peak_rss_mib": memory()["VmHWM"], "cpu_s": round(cpu_s, 1), "wall_s": round(wall_s, 1)})

    asyncio.run(run())


def measure(shape: str, rows: int) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="changefeed-bench-"))
    here, there = multiprocessing.Pipe()
    try:
        with running("bench", "bench", of="newest") as database:
            database.query(TABLE, "ALTER TABLE accounts REPLICA IDENTITY FULL")
            database.query(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
            start_ts = asyncio.run(SlotLease(reached(database), SLOT, SLOT).begin())
            database.query("BEGIN", *(statement.format(rows) for statement in SHAPES[shape]), "COMMIT")
            ((table, size),) = database.query("SELECT 'accounts'::regclass::oid::bigint, pg_relation_size('accounts')")
            puller = multiprocessing.get_context("spawn").Process(
                target=pull, args=(reached(database), table, start_ts, rows, folder, there)
            )
            with patch.dict(os.environ, worker_environment(LaptopDeployment("local[2]").settings(folder))):
                puller.start()
            there.close()
            answer = here.recv()
            puller.join()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    name = f"postgresql-transaction-{shape}"
    return {"name": name, "verified": answer["rows"] == rows, "sent_rows": rows, "bytes": size, **answer}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rows", type=int, default=5_000_000)
    arguments.add_argument("--shape", action="append", choices=SHAPES, help="default: all")
    arguments.add_argument("--out", type=Path, default=ROOT / "bench" / "out" / "postgresql_transaction.json")
    given = arguments.parse_args()
    runs = []
    for shape in given.shape or SHAPES:
        runs.append(measure(shape, given.rows))
        sys.stdout.write(json.dumps(runs[-1]) + "\n")
    write_report(given.out, runs)


if __name__ == "__main__":
    main()
