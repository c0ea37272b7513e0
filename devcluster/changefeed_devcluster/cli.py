"""The command `changefeed-devcluster`: a development cluster as a process, and harm to a running one.

Standard output is for programs: one JSON line when the cluster is ready, one more when its workload has ended. Whatever
a person must know goes to standard error.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event
from typing import Annotated, Any, Literal

import grpc
from cyclopts import App, CycloptsError, Parameter
from cyclopts.validators import Number

from . import keys
from .schema import DDL_JOB_TABLE
from .server import HARM_METHOD, DevCluster
from .tidb import Tidb
from .workload import Workload
from .workload.bank import Bank
from .workload.sysbench import Sysbench

BAD_INPUT = 2
UNAVAILABLE = 69
_POLL_S = 0.1
_HARM_S = 10.0
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

app = App(name="changefeed-devcluster", help="A PD and TiKV stores in one process, with TiDB's data in them.")
harm = App(name="harm", help="Disturb a running development cluster.")
app.command(harm)

Port = Annotated[int, Parameter(validator=Number(gte=0, lte=65535))]
Count = Annotated[int, Parameter(validator=Number(gte=1, lte=10_000_000))]
Amount = Annotated[float, Parameter(validator=Number(gte=0))]
Pd = Annotated[str, Parameter(help="The cluster's address, as `start` printed it.")]


class CommandFailed(Exception):
    """A message of one line for the person at the terminal, and the exit code."""

    def __init__(self, message: str, exit_code: int = BAD_INPUT) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@app.command
def start(
    *,
    stores: Count = 3,
    port: Port = 0,
    data: Path | None = None,
    workload: Literal["none", "bank", "sysbench"] = "none",
    tables: Count = 2,
    regions: Count = 4,
    rows: Count | None = None,
    rate: Amount = 2000.0,
    workload_seconds: Amount | None = None,
) -> None:
    """Run a cluster until SIGINT or SIGTERM; SIGUSR1 ends the workload alone.

    Prints `{"pd", "cluster_id", "tables", "startTs"}` when ready. `startTs` is after the tables' DDLs and before the
    workload's first row; on a data folder that was used before it is now.

    Parameters
    ----------
    stores
        Number of TiKV stores.
    port
        Port of PD on 127.0.0.1; 0 takes a free one.
    data
        Folder that keeps the cluster's data; without it nothing outlives the process.
    workload
        What writes: `bank` moves money between accounts, `sysbench` loads rows and then inserts and updates.
    tables
        Number of the workload's tables.
    regions
        Regions a table.
    rows
        Rows to load into each table (bank: 1,000; sysbench: 100,000).
    rate
        Rows a second after the load; 0 ends the workload after it.
    workload_seconds
        End the workload after so long, loading included.
    """
    arrived: SimpleQueue[int] = SimpleQueue()
    for number in (*_STOP_SIGNALS, signal.SIGUSR1):
        signal.signal(number, lambda number, _frame: arrived.put(number))
    cluster = _open(stores, port, data)
    try:
        tidb = Tidb(cluster)
        tidb.bootstrap()
        work = _workload(tidb, workload, tables, regions, rows)
        _say(
            pd=cluster.pd_address,
            cluster_id=str(cluster.cluster_id),
            tables=sorted(name for name in tidb.tables if name != f"mysql.{DDL_JOB_TABLE}"),
            startTs=str(tidb.now()),
        )
        _serve(tidb, work, rate, workload_seconds, arrived)
    finally:
        cluster.stop()


def _open(stores: int, port: int, data: Path | None) -> DevCluster:
    try:
        _check_free(port)
        return DevCluster(stores=stores, data_dir=data, pd_port=port).start()
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        raise CommandFailed(f"The cluster can't start: {error.strerror or error}{where}") from error
    except ValueError as error:
        raise CommandFailed(f"The cluster can't start: {error}") from error


def _check_free(port: int) -> None:
    """Raises OSError for a busy port, before gRPC tells the terminal of it in words of its own."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise OSError(
                error.errno, f"port {port} of 127.0.0.1 is in use or not allowed, take another one"
            ) from error


def _workload(tidb: Tidb, name: str, tables: int, regions: int, rows: int | None) -> Workload | None:
    """The workload with its tables made."""
    if name == "none":
        return None
    try:
        work: Workload
        if name == "bank":
            work = Bank(tidb, tables, regions, 1000 if rows is None else rows)
        else:
            work = Sysbench(tidb, tables, regions, 100_000 if rows is None else rows)
    except ValueError as error:
        raise CommandFailed(str(error)) from error
    work.create()
    return work


def _serve(tidb: Tidb, work: Workload | None, rate: float, seconds: float | None, arrived: SimpleQueue[int]) -> None:
    """Until a stop signal comes; the workload has a thread of its own meanwhile."""
    stop = Event()
    deadline = None if seconds is None else time.monotonic() + seconds
    with ThreadPoolExecutor(1, "workload") as pool:
        try:
            running: Future[int] | None = pool.submit(_work, work, stop, rate) if work else None
            while True:
                number = _next_signal(arrived)
                if number in _STOP_SIGNALS:
                    return
                if number == signal.SIGUSR1 or (deadline is not None and time.monotonic() >= deadline):
                    stop.set()
                if running is not None and running.done():
                    _say(workload="stopped", ts=str(tidb.now()), rows=running.result())
                    running = None
        finally:
            stop.set()


def _work(work: Workload, stop: Event, rate: float) -> int:
    rows = work.load(stop)
    return rows + (work.run(stop, rate) if rate > 0 else 0)


def _next_signal(arrived: SimpleQueue[int]) -> int | None:
    try:
        return arrived.get(timeout=_POLL_S)
    except Empty:
        return None


def _say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


# --- harm ---


@harm.command
def regions(*, pd: Pd) -> None:
    """List the regions: id, borders as hex of raw keys, version, leader store."""
    _say(**_harm(pd, "regions"))


@harm.command
def split(*, pd: Pd, key: str | None = None) -> None:
    """Split a region at a raw key (hex); without one, a table's region with the most handles in its middle."""
    _say(**_harm(pd, "split", key=key or widest_middle(_harm(pd, "regions")["regions"])))


@harm.command
def transfer(*, pd: Pd, region: int, store: int) -> None:
    """Move a region's leadership to another store."""
    _say(**_harm(pd, "transfer", region=region, store=store))


@harm.command
def cut(*, pd: Pd, store: int | None = None) -> None:
    """Break the change data streams of a store, or of all."""
    _say(**_harm(pd, "cut", store=store))


@harm.command
def stall(*, pd: Pd, seconds: Amount, store: int | None = None) -> None:
    """Hold back the change data of a store, or of all, for a while."""
    _say(**_harm(pd, "stall", seconds=seconds, store=store))


def _harm(pd: str, action: str, **arguments: Any) -> dict[str, Any]:
    body = json.dumps({"action": action, **arguments}).encode()
    with grpc.insecure_channel(pd) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(HARM_METHOD)
        try:
            answer: dict[str, Any] = json.loads(call(body, timeout=_HARM_S))
        except grpc.RpcError as error:
            raise CommandFailed(
                f"No development cluster answers at {pd}: is it running? Its first output line names the address.",
                UNAVAILABLE,
            ) from error
    if not answer.pop("ok"):
        raise CommandFailed(str(answer["error"]))
    return answer


def widest_middle(found: list[dict[str, Any]]) -> str:
    """The hex key in the middle of the region that spans the most handles of one table, from its two border keys."""
    prefix_length = len(keys.record_prefix(0))
    middles = []
    for region in found:
        start, end = bytes.fromhex(region["start"]), bytes.fromhex(region["end"])
        if len(start) == len(end) == prefix_length + 8 and start[:prefix_length] == end[:prefix_length]:
            first, last = keys.handle_of(start), keys.handle_of(end)
            middle = keys.encode_int((first + last) // 2)
            middles.append((last - first, (start[:prefix_length] + middle).hex()))
    width, key = max(middles, default=(0, ""))
    if width < 2:
        raise CommandFailed("No region lies between two rows of one table: say where to split with --key.")
    return key


def main() -> None:
    """Exit codes: 0 done, 2 bad input, 69 no cluster at that address."""
    try:
        app(exit_on_error=False, result_action="return_value")
    except CycloptsError:
        sys.exit(BAD_INPUT)
    except CommandFailed as failure:
        sys.stderr.write(f"{failure}\n")
        sys.exit(failure.exit_code)
