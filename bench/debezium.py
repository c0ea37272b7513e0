"""What rows of a PostgreSQL cost here and with Debezium's embedded engine: the same rows, in turns, on one machine.

    bench/debezium.py --pairs 5
    bench/debezium.py --pairs 2 --more        adds to the pairs that the report has

Ours is the case postgresql-csv-scan (bench/postgresql.py). Debezium's engine also finds its rows waiting in a slot. It
writes each change as a line of JSON without a schema into one file, batch by batch, until all are there: no Kafka, no
fsync. Of both: CPU seconds of all their processes at the margin, of a run of 2N rows minus one of N; rows/s from the
first that is written to the last; peak memory without mapped files. Prints a line for each and writes
bench/out/postgresql_debezium.json (docs/design/layouts.md, Benchmark results).
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import psutil
from cases import CASES
from measured import ROOT, memory_in_use, runs_of, write_report
from meter import Meter
from postgresql import PASSWORD, SERVER, TABLES, USER, insert, slot

sys.path.insert(0, str(ROOT / "tests" / "integration" / "support"))

from integration_debezium_reader import NEW_SLOT, PUBLICATION, VERSION, DebeziumReader, debezium_reader
from integration_postgresql import Postgresql, running

CASE = CASES["postgresql-csv-scan"]
ROWS = 2_000_000
#: The best of those tried: batches of 20,480 changes, one thread that renders instead of one a core, and the serial and
#: the parallel collector instead of G1 took as much CPU or more. A batch and a queue are as by default.
JAVA = ("-Xmx1g",)
SETTINGS = {"max_batch_size": "2048", "max_queue_size": "8192"}
_LAST = "done"
_POLL_S = 0.05
_NO_PORT = 9  # it has no metrics


@dataclass(frozen=True)
class Once:
    """One run of Debezium's. `wall_s`: from its first change in the file to the last; `memory`: bytes."""

    rows: int
    cpu_s: float
    wall_s: float
    bytes_out: int
    memory: int
    verified: bool


def ours(rows: int) -> dict[str, Any]:
    found = slot(CASE.sized(rows, None), verify=True)
    assert found.marginal is not None
    return {
        "name": "changefeed",
        "verified": found.verified,
        "rows": found.rows,
        "rows_per_s": found.rows_per_s,
        "cpu_s_per_mrow": found.marginal["cpu_s_per_mrow"],
        "cpu_s_per_mrow_with_start": found.cpu_s_per_mrow,
        "peak_memory_bytes": found.peak_memory_bytes["own"] + found.peak_memory_bytes["shared"],
        "bytes_out": found.bytes_out,
        "wall_s": found.wall_s,
    }


def theirs(rows: int, reader: DebeziumReader) -> dict[str, Any]:
    half, whole = (_once(reader, count) for count in (rows, 2 * rows))
    return {
        "name": f"debezium {VERSION}",
        "verified": half.verified and whole.verified,
        "rows": whole.rows,
        "rows_per_s": round(whole.rows / whole.wall_s),
        "cpu_s_per_mrow": round((whole.cpu_s - half.cpu_s) / (whole.rows - half.rows) * 1e6, 2),
        "cpu_s_per_mrow_with_start": round(whole.cpu_s / whole.rows * 1e6, 2),
        "peak_memory_bytes": whole.memory,
        "bytes_out": whole.bytes_out,
        "wall_s": round(whole.wall_s, 3),
        "settings": {name.replace("_", "."): value for name, value in SETTINGS.items()} | {"java": " ".join(JAVA)},
    }


def _once(reader: DebeziumReader, rows: int) -> Once:
    with (
        tempfile.TemporaryDirectory(prefix="changefeed-bench-") as name,
        running(USER, PASSWORD, options=SERVER, of="newest") as database,
        memory_in_use(),
    ):
        publication = f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES"
        database.query(*TABLES, f"CREATE TABLE {_LAST} (id int PRIMARY KEY)", publication, NEW_SLOT)
        _write(database, rows)
        return _read(reader, database, Path(name), rows)


def _write(database: Postgresql, rows: int) -> None:
    """As of bench/postgresql.py, and a row by which the reader ends."""
    insert(database, rows)
    with database.connect() as connection:
        connection.run(f"INSERT INTO {_LAST} VALUES (1)")


def _read(reader: DebeziumReader, database: Postgresql, folder: Path, rows: int) -> Once:
    before, began = _cpu_of_ended(), None
    changes = folder / "changes"
    with reader.start(database, folder, _LAST, JAVA, **SETTINGS) as process:
        meter = Meter(psutil.Process(process.pid), _NO_PORT, first_segment=0.0)
        sampler = threading.Thread(target=meter.run)
        sampler.start()
        try:
            while process.poll() is None:
                if began is None and changes.exists() and changes.stat().st_size:
                    began = time.time()
                time.sleep(_POLL_S)
        finally:
            meter.done.set()
            sampler.join()
    if process.returncode or began is None:
        raise SystemExit(f"Debezium ended with {process.returncode}:\n{(folder / 'log').read_text()}")
    written = changes.stat()
    return Once(
        rows=rows,
        cpu_s=_cpu_of_ended() - before,
        wall_s=written.st_mtime - began,
        bytes_out=written.st_size,
        memory=meter.peak_memory.kept,
        verified=_is_whole(changes, rows),
    )


def _cpu_of_ended() -> float:
    """CPU seconds of processes that this one has started and that have ended; the server is none of them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _is_whole(changes: Path, rows: int) -> bool:
    """Whether the file has each row once, as it was inserted."""
    query = (
        "SELECT count(*), count(DISTINCT after.aid), max(after.aid), "
        "bool_and(op = 'c' AND trim(after.filler) = after.aid) "
        "FROM read_json($file, format = 'newline_delimited', columns = $columns) WHERE after.aid IS NOT NULL"
    )
    columns = {"op": "VARCHAR", "after": "STRUCT(aid BIGINT, filler VARCHAR)"}
    found = duckdb.execute(query, {"file": str(changes), "columns": columns}).fetchone()
    return found == (rows, rows, rows, True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--pairs", type=int, default=5)
    arguments.add_argument("--more", action="store_true", help="keep the pairs that the report has")
    arguments.add_argument("--rows", type=int, default=ROWS, help="N")
    arguments.add_argument("--out", type=Path, default=ROOT / "bench" / "out" / "postgresql_debezium.json")
    given = arguments.parse_args()
    runs = runs_of(given.out) if given.more else []
    with tempfile.TemporaryDirectory() as name:
        reader = debezium_reader(Path(name))
        for _ in range(given.pairs):
            for found in (ours(given.rows), theirs(given.rows, reader)):
                runs.append(found)
                sys.stdout.write(json.dumps(found) + "\n")
            write_report(given.out, runs)


if __name__ == "__main__":
    main()
