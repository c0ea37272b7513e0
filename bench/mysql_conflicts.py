"""What the order of rows that share keys costs the MySQL sink, by the DAG and by union sets.

    bench/mysql_conflicts.py --port 3306 --rows 100000

First the detectors alone: workers write all that they were given before the next rows come. Then end to end into the
server, which may be filled (user root, no password; database `conflictbench` is made anew), behind a proxy that holds
back each of its answers. A row has two keys. With the sets each worker has the keys of its own unwritten rows; a row
that meets those of two waits until all is written, and so does what comes behind it.
"""

from __future__ import annotations

import argparse
import queue
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from changefeed.model.position import OP_INSERT, OP_UPDATE
from changefeed.objectstore.patience import Patience
from changefeed.schema import table_info as ti
from changefeed.schema.sql_type import SqlType
from changefeed.sink.contract import Claim, EntryId
from changefeed.sink.mysql.order import schedule
from changefeed.sink.mysql.order.conflicts import Conflicts, Given, Hashes, Nodes
from changefeed.sink.mysql.rows.changes import Changes
from changefeed.sink.mysql.server import MysqlServer, Session
from changefeed.sink.mysql.sink import MysqlSink, Options

_CHUNK, _WORKERS = 16384, 4
_DELAY_S = 0.0005
_PAIRS = 5
_CREATE = (
    b"DROP DATABASE IF EXISTS conflictbench",
    b"CREATE DATABASE conflictbench",
    b"CREATE TABLE conflictbench.t (id BIGINT PRIMARY KEY, u BIGINT NOT NULL UNIQUE, c CHAR(120) NOT NULL)",
)


class UnionSets:
    """In the place of Conflicts."""

    def __init__(self, workers: int, enough: float = 0) -> None:
        self._held: list[set[int]] = [set() for _ in range(workers)]
        self._loads = [0] * workers
        self._worker: dict[int, int] = {}
        self._waiting: deque[list[int]] = deque()  # the keys of each row
        self._added, self._turn, self._is_stalled = 0, 0, False
        self.stalls = 0

    def add(self, count: int, nodes: Nodes, hashes: Hashes) -> list[Given]:
        keys: list[list[int]] = [[] for _ in range(count)]
        for node, key in zip(nodes.tolist(), hashes.tolist(), strict=True):
            keys[node].append(key)
        self._waiting.extend(keys)
        self._added += count
        return self._give()

    def written(self, nodes: Nodes) -> list[Given]:
        for node in nodes.tolist():
            worker = self._worker.pop(node)
            self._loads[worker] -= 1
            if not self._loads[worker]:
                self._held[worker].clear()
        return self._give()

    def _give(self) -> list[Given]:
        given: list[list[int]] = [[] for _ in self._held]
        while self._waiting and not (self._is_stalled and any(self._loads)):
            keys = self._waiting[0]
            meets = [worker for worker, own in enumerate(self._held) if not own.isdisjoint(keys)]
            self._is_stalled = len(meets) > 1
            if self._is_stalled:
                self.stalls += 1
                continue
            self._turn += 1
            worker = meets[0] if meets else self._turn % len(self._held)
            node = self._added - len(self._waiting)
            self._waiting.popleft()
            self._held[worker].update(keys)
            self._loads[worker] += 1
            self._worker[node] = worker
            given[worker].append(node)
        return [Given(worker, np.array(nodes)) for worker, nodes in enumerate(given) if nodes]


Detector = Callable[[int], Conflicts | UnionSets]


def _workloads(rows: int) -> dict[str, np.ndarray]:
    """Give each row two keys, in three ways."""
    chosen = np.random.default_rng(5)
    return {
        "no conflicts": np.arange(2 * rows, dtype=np.uint64).reshape(rows, 2),
        "sysbench: ids of 100,000": chosen.integers(0, 100_000, (rows, 2), np.uint64),
        "hot: half of 10 keys": np.where(
            chosen.random((rows, 2)) < 0.5, chosen.integers(0, 10, (rows, 2)), chosen.integers(0, 1 << 40, (rows, 2))
        ).astype(np.uint64),
    }


def _detect(chunks: list[np.ndarray]) -> None:
    conflicts = Conflicts(_WORKERS)
    for hashes in chunks:
        nodes = np.repeat(np.arange(len(hashes)), hashes.shape[1])
        given = conflicts.add(len(hashes), nodes, hashes.reshape(-1))
        while given:
            given = [more for each in given for more in conflicts.written(each.nodes)]


def _detect_by_sets(chunks: list[np.ndarray]) -> int:
    """The least that sets can cost: nothing but the keys, which all are written at the end of a chunk.

    Say how often all had to be written before the next row could be given out.
    """
    held: list[set[int]] = [set() for _ in range(_WORKERS)]
    stalls, turn = 0, 0
    for hashes in chunks:
        for row in hashes.tolist():
            meets = [worker for worker, own in enumerate(held) if not own.isdisjoint(row)]
            if len(meets) > 1:
                stalls += 1
                for own in held:
                    own.clear()
            turn += 1
            held[meets[0] if len(meets) == 1 else turn % _WORKERS].update(row)
        for own in held:
            own.clear()
    return stalls


def _least_cpu(call: Callable[[], object]) -> float:
    found = []
    for _ in range(_PAIRS):
        begun = time.process_time()
        call()
        found.append(time.process_time() - begun)
    return min(found)


def _detectors(rows: int) -> None:
    for name, keys in _workloads(rows).items():
        chunks = np.array_split(keys, max(1, rows // _CHUNK))
        by_dag, by_sets = _least_cpu(partial(_detect, chunks)), _least_cpu(partial(_detect_by_sets, chunks))
        sys.stdout.write(
            f"{name:<26} DAG {rows / by_dag:>10,.0f} rows/s, sets {rows / by_sets:>10,.0f}: {by_sets / by_dag:.2f}x; "
            f"with the sets all waited {_detect_by_sets(chunks):,} times\n"
        )


def _table() -> ti.TableInfo:
    def column(number: int, name: str, tp: int, flag: int = 0) -> dict[str, object]:
        kind = {"Tp": tp, "Flag": flag | ti.FLAG_NOT_NULL, "Charset": "utf8mb4", "Collate": "utf8mb4_bin"}
        return {"id": number, "name": name, "offset": number, "type": kind, "state": ti.STATE_PUBLIC}

    columns = [
        column(0, "id", SqlType.BIGINT, ti.FLAG_PRI_KEY),
        column(1, "u", SqlType.BIGINT),
        column(2, "c", SqlType.CHAR),
    ]
    unique = {"id": 1, "idx_name": "u", "idx_cols": [{"name": "u", "length": -1}], "is_unique": True}
    info = {"id": 1, "name": "t", "cols": columns, "index_info": [unique | {"state": ti.STATE_PUBLIC}]}
    return ti.parse_table_info(info | {"pk_is_handle": True, "state": ti.STATE_PUBLIC}, "conflictbench")


def _history(keys: np.ndarray) -> tuple[list[tuple[int, int, int | None]], dict[int, int]]:
    """Changes that give row id the value u: (id, u, its u before); who has it gets another. And all rows then."""
    rows: dict[int, int] = {}
    holder: dict[int, int] = {}
    changes: list[tuple[int, int, int | None]] = []

    def change(id_: int, u: int) -> None:
        before = rows.get(id_)
        if before is not None:
            del holder[before]
        changes.append((id_, u, before))
        rows[id_], holder[u] = u, id_

    for number, (id_, u) in enumerate(keys.tolist()):
        if rows.get(id_) == u:
            continue
        if (other := holder.get(u)) is not None:
            change(other, (1 << 41) + number)
        change(id_, u)
    return changes, rows


def _chunks(changes: list[tuple[int, int, int | None]]) -> list[Changes]:
    found, table = [], _table()
    for first in range(0, len(changes), _CHUNK):
        some = changes[first : first + _CHUNK]
        ids, after, before = ([change[place] for change in some] for place in range(3))
        had = [old is not None for old in before]
        text = pa.array([f"{id_:0119d}" for id_ in ids])
        ts = np.arange(first + 1, first + len(some) + 1).astype(np.uint64)
        op = np.where(had, OP_UPDATE, OP_INSERT).astype(np.uint8)
        old = [id_ if there else None for id_, there in zip(ids, had, strict=True)]
        shown = [pa.array(ids, pa.int64()), pa.array(after, pa.int64()), text]
        was = [pa.array(old, pa.int64()), pa.array(before, pa.int64()), pa.nulls(len(some), pa.string())]
        found.append(Changes(table, table.output_columns, op, ts, ts, shown, was))
    return found


def _write(server: MysqlServer, chunks: list[Changes], detector: Detector) -> tuple[float, float]:
    """Seconds and seconds of CPU."""
    with patch.object(schedule, "Conflicts", detector):
        sink = MysqlSink(server, Options(_WORKERS, progress_database="conflictbench"), Patience())
    claim = Claim("bench", 1, 1, "n", 1)
    sink.claim(claim)
    begun, cpu = time.perf_counter(), time.process_time()
    sink.write(claim, EntryId(1, 0), 1, chunks)
    spent = time.perf_counter() - begun, time.process_time() - cpu
    sink.close()
    return spent


def _end_to_end(port: int, rows: int, pairs: int) -> None:
    direct = Session(MysqlServer("127.0.0.1", port, "root", ""))
    detectors: dict[str, Detector] = {"DAG": Conflicts, "sets": UnionSets}
    for name, keys in _workloads(rows).items():
        changes, after = _history(keys)
        chunks = _chunks(changes)
        found: dict[str, list[tuple[float, float]]] = {which: [] for which in detectors}
        for _ in range(pairs):
            for which, detector in detectors.items():
                direct.run(_CREATE)
                with _delayed(port) as delayed:
                    found[which].append(_write(MysqlServer("127.0.0.1", delayed, "root", ""), chunks, detector))
                there = {int(id_): int(u) for id_, u in direct.rows(b"SELECT id, u FROM conflictbench.t")}
                if there != after:
                    sys.exit(f"{which}, {name}: {len(there)} rows are not the {len(after)} that there should be.")
        seconds, cpu = ({which: np.median([run[n] for run in found[which]]) for which in found} for n in (0, 1))
        told = ", ".join(
            f"{which} {len(changes) / seconds[which]:>8,.0f} rows/s ({1e6 * cpu[which] / len(changes):.2f} CPU-s/M)"
            for which in detectors
        )
        sys.stdout.write(f"{name:<26} {told}: {seconds['sets'] / seconds['DAG']:.2f}x\n")
        sys.stdout.flush()
    direct.close()


@contextmanager
def _delayed(port: int) -> Iterator[int]:
    """A port that leads to the server, by a process of its own whose answers come later."""
    command = [sys.executable, __file__, f"--port={port}", "--delay"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdout is not None
        yield int(proxy.stdout.readline())
        proxy.terminate()


def _serve_delayed(port: int) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    while True:
        client, _ = listener.accept()
        server = socket.create_connection(("127.0.0.1", port))
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        for work in (
            partial(_receive, client, server.sendall),
            partial(_receive, server, lambda data, answers=answers: answers.put((time.monotonic(), data))),
            partial(_send_late, answers, client),
        ):
            threading.Thread(target=work, daemon=True).start()


def _receive(source: socket.socket, then: Callable[[bytes], object]) -> None:
    while data := source.recv(1 << 18):
        then(data)
    then(b"")


def _send_late(answers: queue.SimpleQueue[tuple[float, bytes]], client: socket.socket) -> None:
    while True:
        came, data = answers.get()
        if not data:
            return
        time.sleep(max(0.0, came + _DELAY_S - time.monotonic()))
        client.sendall(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, help="of the server; without it, the detectors alone")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--pairs", type=int, default=3, help="runs of each, by turns, whose medians are printed")
    parser.add_argument("--delay", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.delay:
        _serve_delayed(given.port)
        return
    _detectors(given.rows)
    if given.port is not None:
        sys.stdout.write(f"end to end, {_WORKERS} workers, each answer {1e3 * _DELAY_S} ms later:\n")
        _end_to_end(given.port, given.rows, given.pairs)


if __name__ == "__main__":
    main()
