"""The upstream of a bench run, a program like `changefeed-devcluster start`: a development cluster with wanted rows.

Prints `{"pd", "startTs"}` when ready, and `{"ts", "rows"}` when all rows are committed: at once for rows that are made
beforehand, else when the writer has ended; once more when that of `--busy` has. A writer starts at SIGUSR2, that of
`--busy` by itself, and ends at SIGUSR1; SIGTERM ends the program. With `--large` the writer has a large transaction
beside it, which prints `{"large"}`, its start ts, once it is open, and `{"commitTs", "rows", "requests"}` at its end.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from changefeed_devcluster import frozen
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from changefeed_devcluster.tidb.tidb import Tidb
from changefeed_devcluster.workload import RowRate

DATABASE = "sbtest"
Array = npt.NDArray[Any]
#: (numbers of rows) -> an array a column but the id; the same for the same numbers.
Values = Callable[[npt.NDArray[np.int64]], list[Array]]

_TEXTS = 65_521  # a prime: rows that are near one another have different texts
_LOAD_ROWS = 5_000  # a transaction
_BUSY_ROWS = 10_000
_POLL_S = 0.05  # signals are handled in between
_LARGE_REGIONS, _LARGE_HANDLES = 8, 80_000
_HEARTBEAT_S = 0.5
_VERSION = 7_919  # from the number of a row to that of what an update makes of it


@dataclass(frozen=True)
class Shape:
    """What rows look like. `transaction`: rows of one; `updates`: rows that exist are changed, else new ones come."""

    columns: tuple[NewColumn, ...]
    values: Values
    transaction: int = 128
    updates: bool = False


def _texts(width: int, seed: int) -> Array:
    """Digits with dashes, as sysbench has them."""
    texts = np.random.default_rng(seed).integers(ord("0"), ord("9") + 1, (_TEXTS, width), np.uint8)
    texts[:, 11::12] = ord("-")
    return texts


def _integers(numbers: npt.NDArray[np.int64], column: int) -> npt.NDArray[np.int64]:
    """Spread over what a signed INT holds."""
    mixed = (numbers * 2_654_435_761 + column * 40_503) % (1 << 32)
    return mixed - (1 << 31)


def _values(integers: int, widths: Sequence[int]) -> Values:
    """So many integers, then texts of these widths."""
    pools = [_texts(width, seed) for seed, width in enumerate(widths)]

    def values(numbers: npt.NDArray[np.int64]) -> list[Array]:
        whole: list[Array] = [_integers(numbers, column) for column in range(integers)]
        return whole + [pool[(numbers + 31 * column) % _TEXTS] for column, pool in enumerate(pools)]

    return values


def shape_of(name: str) -> Shape:
    sysbench = (NewColumn("k", "int", default=0), NewColumn("c", "char(120)", default=""), NewColumn("pad", "char(60)"))
    match name:
        case "insert":
            return Shape(sysbench, _values(1, (119, 59)))
        case "update":
            return Shape(sysbench, _values(1, (119, 59)), updates=True)
        case "small":
            return Shape(sysbench, _values(1, (119, 59)), transaction=2)
        case "wide":
            columns = [NewColumn(f"i{n}", "int") for n in range(20)] + [
                NewColumn(f"s{n}", "varchar(16)") for n in range(19)
            ]
            return Shape(tuple(columns), _values(20, (16,) * 19))
        case "kilobyte":
            return Shape((NewColumn("c", "varchar(1000)"),), _values(0, (1000,)))
    raise ValueError(f"no shape {name}: one of {', '.join(SHAPES)}")


SHAPES = ("insert", "update", "small", "wide", "kilobyte")


class Upstream:
    """Tables of one shape, each with handles 1..`rows` over `regions`; `names`: what they are called."""

    def __init__(self, tidb: Tidb, shape: Shape, names: Sequence[str], regions: int, rows: int) -> None:
        self._tidb = tidb
        self._shape = shape
        self._regions = regions
        self._rows = rows
        columns = (NewColumn("id", "bigint"), *shape.columns)
        self._tables = [tidb.create_table(DATABASE, name, columns, regions=regions, handles=rows) for name in names]

    def load(self) -> int:
        """All rows as they are before the first update; gives their number."""
        for table in self._tables:
            for first in range(1, self._rows + 1, _LOAD_ROWS):
                self._write(table, first, min(_LOAD_ROWS, self._rows + 1 - first), 0)
        return self._rows * len(self._tables)

    def update(self) -> int:
        """Each row once; gives their number."""
        for first in range(1, self._rows + 1, self._shape.transaction):
            for table in self._tables:
                self._write(table, first, min(self._shape.transaction, self._rows + 1 - first), 1)
        return self._rows * len(self._tables)

    def freeze(self, history: frozen.FrozenHistory) -> int:
        """All rows as a frozen history; gives their number."""
        runs: list[tuple[int, int, int, frozen.RowSource]] = []
        borders = [1 + number * self._rows // self._regions for number in range(self._regions + 1)]
        for number, table in enumerate(self._tables):
            ids = [column.id for column in table.info.columns if column.name != table.pk]
            source = partial(self._columns, ids, number)
            runs += [(table.id, low, high - 1, source) for low, high in pairwise(borders) if low < high]
        self._tidb.raise_to(history.add(runs, self._tidb.now()))
        return self._rows * len(self._tables)

    def _columns(self, ids: Sequence[int], table: int, first: int, count: int) -> frozen.Columns:
        numbers = np.arange(first, first + count, dtype=np.int64) + table * _VERSION
        return list(zip(ids, self._shape.values(numbers), strict=True))

    def write(self, stop: threading.Event, rate: float, rows: int | None) -> int:
        """Updates of rows that were loaded, in the tables and regions by turns, `rate` a second; gives their number.

        `rows`: how many in all, None for until `stop`. A thousand transactions a second at most, without two phases.
        """
        size = min(max(1, round(rate / 1000)), self._shape.transaction)
        steps = -(-self._rows // self._regions // size) or 1
        pace = RowRate(rate, stop)
        written = turn = 0
        while not stop.is_set() and (rows is None or written < rows):
            table = self._tables[turn % len(self._tables)]
            region, step = (turn // len(self._tables)) % self._regions, turn // len(self._tables) // self._regions
            low = region * self._rows // self._regions
            high = (region + 1) * self._rows // self._regions
            first = low + 1 + step % steps * size
            count = min(size, high + 1 - first)
            turn += 1
            if count > 0:
                self._write(table, first, count, 1 + step // steps)
                written += count
                pace.keep(count)
        return written

    def _write(self, table: NamedTable, first: int, count: int, version: int) -> None:
        handles = np.arange(first, first + count, dtype=np.int64)
        names = [column.name for column in self._shape.columns]
        values = self._shape.values(handles + version * _VERSION)
        self._tidb.bulk_insert(table, handles, list(zip(names, values, strict=True)))


class Large:
    """A large transaction over eight regions of a table of its own, `ledger`."""

    def __init__(self, cluster: DevCluster, tidb: Tidb) -> None:
        self._cluster, self._tidb = cluster, tidb
        columns = (NewColumn("id", "bigint"), NewColumn("n", "int"))
        self._table = tidb.create_table(DATABASE, "ledger", columns, regions=_LARGE_REGIONS, handles=_LARGE_HANDLES)

    def run(self, seconds: float, upgrade: bool, stop: threading.Event) -> None:
        """Open for so long; every half second it flushes rows to all regions and lives on, then it commits.

        `upgrade`: half-way all stores are made new.
        """
        large, turn = self._tidb.begin_large(), 0
        began = time.monotonic()
        while (gone := time.monotonic() - began) < seconds and not stop.is_set():
            for first in range(0, _LARGE_HANDLES, _LARGE_HANDLES // _LARGE_REGIONS):
                large.insert(self._table, {"id": first + turn, "n": turn})
            large.flush()
            large.heartbeat()
            if not turn:
                _say(large=str(large.start_ts))
            turn += 1
            if upgrade and gone >= seconds / 2:
                self._cluster.upgrade()
                upgrade = False
            stop.wait(_HEARTBEAT_S)
        requests = self._cluster.watermarks.statuses.requests.total()
        _say(commitTs=str(large.commit()), rows=turn * _LARGE_REGIONS, requests=requests)


def serve(given: argparse.Namespace) -> None:
    stop, begin, end = _signalled(signal.SIGTERM, signal.SIGINT), _signalled(signal.SIGUSR2), _signalled(signal.SIGUSR1)
    shape = shape_of(given.shape)
    is_frozen = given.how != "written" and not shape.updates
    frozen.TXN_ROWS = shape.transaction  # of all frozen histories of a process: this one has one
    served = {how: given.how == how for how in ("live", "one")}
    history = frozen.FrozenHistory(**served, read=given.how == "copy") if is_frozen else None
    settings = {"proposed_watermark": given.proposed_watermark, "min_ts_interval": given.min_ts_interval}
    with DevCluster(frozen=history, **settings) as cluster, ThreadPoolExecutor(1, "large") as beside:
        tidb = Tidb(cluster)
        tidb.bootstrap()
        tidb.create_database(DATABASE)
        names = [f"sbtest{number + 1}" for number in range(given.tables)]
        upstream = Upstream(tidb, shape, names, given.regions, given.rows)
        busy = Upstream(tidb, shape_of("update"), ["busy"], 1, _BUSY_ROWS) if given.busy else None
        large = Large(cluster, tidb) if given.large else None
        if busy is not None:
            busy.load()
        if history is None:
            upstream.load()
        start_ts = tidb.now()
        cluster.note_start(start_ts)
        if given.how == "written":
            _say(pd=cluster.pd_address, startTs=str(start_ts))
            _wait(begin, stop)
            if stop.is_set():
                return  # nobody wanted any rows
            failed = threading.Event()
            opened = beside.submit(large.run, given.large, given.upgrade, stop) if large else None
            if opened is not None:
                opened.add_done_callback(lambda done: failed.set() if done.exception() else None)
            rows = _written(upstream, given.rate, given.write_rows, (end, stop, failed))
            if opened is not None and failed.is_set():
                opened.result()  # raises: this program ends, which whoever waits for its next line sees
        else:
            rows = upstream.freeze(history) if history else upstream.update()
            _say(pd=cluster.pd_address, startTs=str(start_ts))
        _say(ts=str(tidb.now()), rows=rows)
        if busy is not None:
            _say(ts=str(tidb.now()), rows=_written(busy, given.busy, None, (end, stop)))
        _wait(stop)


def _signalled(*numbers: int) -> threading.Event:
    """Is set by these signals."""
    event = threading.Event()
    for number in numbers:
        signal.signal(number, lambda _number, _frame: event.set())
    return event


def _written(upstream: Upstream, rate: float, rows: int | None, ends: Sequence[threading.Event]) -> int:
    """Say how many rows a writer with a thread of its own has written when it is done, or told to end."""
    told = threading.Event()
    with ThreadPoolExecutor(1, "writer") as pool:
        writing = pool.submit(upstream.write, told, rate, rows)
        while not writing.done() and not any(event.is_set() for event in ends):
            told.wait(_POLL_S)
        told.set()
        return writing.result()


def _wait(*events: threading.Event) -> None:
    """For the first of them."""
    while not any(event.is_set() for event in events):
        events[0].wait(_POLL_S)


def _say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--shape", choices=SHAPES, required=True)
    arguments.add_argument("--how", choices=("scan", "live", "one", "copy", "written"), required=True)
    arguments.add_argument("--tables", type=int, required=True)
    arguments.add_argument("--regions", type=int, required=True, help="of each table")
    arguments.add_argument("--rows", type=int, required=True, help="of each table")
    arguments.add_argument("--rate", type=float, default=1e9, help="written: rows a second")
    arguments.add_argument("--write-rows", type=int, help="written: how many; default: until SIGUSR1")
    arguments.add_argument("--busy", type=float, default=0.0, help="rows a second in one more table, until SIGUSR1")
    arguments.add_argument("--proposed-watermark", type=int, default=0, help="as of changefeed-devcluster start")
    arguments.add_argument("--min-ts-interval", type=float, default=1.0, help="as of changefeed-devcluster start")
    arguments.add_argument("--large", type=float, default=0.0, help="written: seconds of a large transaction")
    arguments.add_argument("--upgrade", action="store_true", help="all stores are new when half of these are over")
    serve(arguments.parse_args())


if __name__ == "__main__":
    main()
