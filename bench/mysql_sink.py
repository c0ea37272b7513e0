"""How many rows the MySQL sink writes, a second and a second of its own CPU.

    bench/mysql_sink.py --port 3306 --rows 100000

The server is one that may be filled: user root, no password; database `sinkbench` is made anew. The floor is the client
library alone, with REPLACEs of as many rows whose text was made before.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
from changefeed.model.position import OP_INSERT
from changefeed.objectstore.patience import Patience
from changefeed.schema import table_info as ti
from changefeed.schema.sql_type import SqlType
from changefeed.sink.contract import Claim, EntryId
from changefeed.sink.mysql.rows.changes import Changes
from changefeed.sink.mysql.rows.keys import TableKeys
from changefeed.sink.mysql.rows.statements import ChunkStatements
from changefeed.sink.mysql.server import MysqlServer, Session
from changefeed.sink.mysql.sink import MysqlSink, Options

_CREATE = (
    b"DROP DATABASE IF EXISTS sinkbench",
    b"CREATE DATABASE sinkbench",
    b"CREATE TABLE sinkbench.t (id INT PRIMARY KEY, k INT NOT NULL, c CHAR(120) NOT NULL, pad CHAR(60) NOT NULL, "
    b"KEY (k))",
)
_BATCH, _CHUNK, _WORKERS = 256, 16384, 4


def _table() -> ti.TableInfo:
    kinds = {
        "id": (SqlType.INT, ti.FLAG_PRI_KEY),
        "k": (SqlType.INT, 0),
        "c": (SqlType.CHAR, 0),
        "pad": (SqlType.CHAR, 0),
    }
    cols = [
        {
            "id": index,
            "name": name,
            "offset": index,
            "type": {"Tp": tp, "Flag": flag | ti.FLAG_NOT_NULL, "Charset": "utf8mb4", "Collate": "utf8mb4_bin"},
            "state": ti.STATE_PUBLIC,
        }
        for index, (name, (tp, flag)) in enumerate(kinds.items())
    ]
    info = {"id": 1, "name": "t", "cols": cols, "pk_is_handle": True, "state": ti.STATE_PUBLIC}
    return ti.parse_table_info(info, "sinkbench")


def _chunk(first: int, count: int) -> Changes:
    table, ids = _table(), np.arange(first, first + count)
    texts = [pa.array([f"{n:0{width}d}" for n in ids.tolist()]) for width in (119, 59)]
    shown = [pa.array(ids), pa.array(ids * 7 % 100_003), *texts]
    ts = (ids + 1).astype(np.uint64)
    before = [pa.nulls(count, values.type) for values in shown]
    return Changes(table, table.output_columns, np.full(count, OP_INSERT, np.uint8), ts, ts, shown, before)


def _measure(what: str, rows: int, call: Callable[[], object]) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    sys.stdout.write(f"{what:<34} {rows / wall:>10,.0f} rows/s {rows / cpu:>12,.0f} rows per CPU second\n")


def _server(port: int, rows: int) -> None:
    server = MysqlServer("127.0.0.1", port, "root", "")
    session = Session(server)
    chunks = [_chunk(first, min(_CHUNK, rows - first)) for first in range(0, rows, _CHUNK)]
    keys = TableKeys.of(_table())

    def empty() -> None:
        session.run(_CREATE)

    floor = []
    for chunk in chunks:
        statements = ChunkStatements(keys, chunk, np.zeros(len(chunk), np.bool_), True)
        parts = np.array_split(np.arange(len(chunk)), max(1, len(chunk) // _BATCH))
        floor += [statements.of(part) for part in parts]

    def write_floor() -> None:
        for statements in floor:
            session.run([b"BEGIN", *statements])
            session.commit()

    def write(workers: int, database: str | None) -> None:
        sink = MysqlSink(server, Options(workers, progress_database=database), Patience())
        claim = Claim("bench", 1, 1, "n", 1)
        sink.claim(claim)
        sink.write(claim, EntryId(1, 0), 1, chunks)
        sink.close()

    for _ in range(2):  # by turns
        empty()
        _measure("floor: REPLACE, 1 connection", rows, write_floor)
        for workers in (1, _WORKERS):
            empty()
            _measure(f"sink, {workers} workers", rows, partial(write, workers, "sinkbench"))
        empty()
        _measure(f"sink, {_WORKERS} workers, no progress table", rows, lambda: write(_WORKERS, None))
    session.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rows", type=int, default=100_000)
    arguments = parser.parse_args()
    _server(arguments.port, arguments.rows)


if __name__ == "__main__":
    main()
