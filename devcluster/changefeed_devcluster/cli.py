"""The command `changefeed-devcluster`: a development cluster as a process, and harm to a running one.

Standard output is for programs: one JSON line when the cluster is ready, one more when its workload has ended. Whatever
a person must know goes to standard error.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Parameter
from cyclopts.validators import Number

from . import certificates
from .cdc.subscriptions import SINK_QUOTA
from .certificates import Certificates
from .ddl.cli import ddl
from .frozen import FrozenHistory
from .harm import harm
from .ports import check_free
from .server import DevCluster
from .terminal import BAD_INPUT, Amount, CommandFailed, say
from .tidb.schema import DDL_JOB_TABLE
from .tidb.tidb import Tidb
from .workload import Workload
from .workload.bank import Bank
from .workload.ddl_storm import DdlStorm
from .workload.sysbench import Sysbench

_POLL_S = 0.1
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

app = App(name="changefeed-devcluster", help="A PD and TiKV stores in one process, with TiDB's data in them.")
app.command(harm)
app.command(ddl)
tls_app = App(name="tls", help="Rotate the certificates of `start --tls` while the cluster runs.")
app.command(tls_app)

_PORTS = 1 << 16
Port = Annotated[int, Parameter(validator=Number(gte=0, lt=_PORTS))]
Count = Annotated[int, Parameter(validator=Number(gte=1, lte=10_000_000))]
Few = Annotated[int, Parameter(validator=Number(gte=0, lte=10_000))]


@app.command
def start(
    *,
    stores: Count = 3,
    host: str = "127.0.0.1",
    port: Port = 0,
    store_port: Port = 0,
    data: Path | None = None,
    workload: Literal["none", "bank", "sysbench", "ddl-storm"] = "none",
    tables: Count = 2,
    regions: Count = 4,
    rows: Count | None = None,
    rate: Amount = 2000.0,
    hot: Few = 0,
    workload_seconds: Amount | None = None,
    frozen: Literal["scan", "live", "one"] | None = None,
    replay: bool = False,
    proposed_watermark: Few = 0,
    gate: bool = True,
    min_ts_interval: Annotated[float, Parameter(validator=Number(gt=0))] = 1.0,
    scan_speed_limit: Amount = 0.0,
    sink_quota: Annotated[int, Parameter(validator=Number(gt=0))] = SINK_QUOTA,
    tls: Path | None = None,
    tls_name: Annotated[list[str] | None, Parameter(negative="")] = None,
    tls_common_name: Annotated[list[str] | None, Parameter(negative="")] = None,
    tls_pd_common_name: Annotated[list[str] | None, Parameter(negative="")] = None,
    gc_barriers: bool = True,
) -> None:
    """Run a cluster until SIGINT or SIGTERM; SIGUSR1 ends the workload alone.

    Prints `{"pd", "cluster_id", "tables", "startTs"}` when ready. `startTs` is after the tables' DDLs and before the
    workload's first row; on a data folder that was used before it is now.

    Parameters
    ----------
    stores
        Number of TiKV stores.
    host
        IPv4 address of this machine to listen at. Without `tls` whoever reaches it reads and writes.
    port
        Port of PD; 0 takes a free one.
    store_port
        Port of the first store, the others have the next ones; 0 takes free ones.
    data
        Folder that keeps the cluster's data; without it nothing outlives the process.
    workload
        What writes: `bank` moves money between accounts, `sysbench` loads rows and then inserts and updates,
        `ddl-storm` alters the tables that it writes, by every DDL that TiDB has.
    tables
        Number of the workload's tables.
    regions
        Regions a table.
    rows
        Rows to load into each table (bank: 1,000; sysbench: 100,000; ddl-storm: 60).
    rate
        Rows a second after the load; 0 ends the workload after it.
    hot
        Sysbench: so many of the tables have half of the rows that come after the load; of the others the busiest has a
        hundred times as many as the quietest.
    workload_seconds
        End the workload after so long, loading included.
    frozen
        Sysbench's rows as a history encoded before the start and served at full speed; the tables take no writes. It
        is met as rows of a `scan`, all of them maybe of `one` transaction, or written `live` while the first subscriber
        of a region listens.
    replay
        Show the `data` folder of an earlier cluster as it was left, and write nothing to it: several clusters, at once
        or one after the other, serve the same history to the byte. `startTs` is that of the folder's first cluster, and
        the second line has the history's last ts.
    proposed_watermark
        So many of the stores have a mechanism that was proposed and that no TiKV has: large transactions do not hold
        resolved-ts back. `harm upgrade` gives it to more of them.
    gate
        The proposed watermarks count when all stores have them; with --no-gate each store's at once.
    min_ts_interval
        Seconds between two resolved-ts, as TiKV's cdc.min-ts-interval.
    scan_speed_limit
        Bytes a second of all scans of a store, as TiKV's cdc.incremental-fetch-speed-limit; 0: as fast as they can.
    sink_quota
        Bytes that may wait to be sent on all connections of a store, as TiKV's cdc.sink-memory-quota.
    tls
        Folder of certificates, made where there are none: speak TLS, and let in only who has one. DIR/client is what
        clients need, as a Kubernetes Secret has it: ca.crt, tls.crt, tls.key.
    tls_name
        Another host name or IP address in the cluster's certificate; `host`, 127.0.0.1 and localhost are always there.
    tls_common_name
        Let in only clients whose certificate has this common name; DIR/client's is changefeed. As with the real ones,
        PD refuses others in the handshake, a store refuses each call.
    tls_pd_common_name
        PD's own list, instead of `tls_common_name`.
    gc_barriers
        PD answers for safepoints as the newest one; with --no-gc-barriers, as those of up to 8.5, which tell every
        service the least safepoint of all.
    """
    arrived: SimpleQueue[int] = SimpleQueue()
    for number in (*_STOP_SIGNALS, signal.SIGUSR1):
        signal.signal(number, lambda number, _frame: arrived.put(number))
    history = _frozen(frozen, workload, data, rate)
    if replay and (data is None or workload != "none" or not (data / "journal").exists()):
        raise CommandFailed("--replay is for a --data folder that a cluster has written, without a --workload.")
    if tls is None and (tls_name or tls_common_name or tls_pd_common_name):
        raise CommandFailed("--tls-name, --tls-common-name and --tls-pd-common-name are for a cluster with --tls.")
    if store_port and store_port + stores > _PORTS:
        raise CommandFailed(f"--store-port {store_port} is too high for {stores} stores: there are {_PORTS} ports.")
    if proposed_watermark > stores:
        raise CommandFailed(
            f"--proposed-watermark {proposed_watermark} is more than the {stores} stores that there are."
        )
    try:
        secure = Certificates(tls, [host, "127.0.0.1", "localhost", *(tls_name or ())]) if tls else None
        cluster = DevCluster(
            stores=stores,
            data_dir=data,
            pd_port=port,
            store_port=store_port,
            frozen=history,
            replay=replay,
            host=host,
            certificates=secure,
            common_names=tls_common_name or (),
            pd_common_names=tls_pd_common_name,
            gc_barriers=gc_barriers,
            proposed_watermark=proposed_watermark,
            gated=gate,
            min_ts_interval=min_ts_interval,
            scan_speed_limit=scan_speed_limit,
            sink_quota=sink_quota,
        )
    except OSError as error:
        raise _cant_start(error) from error
    except ValueError as error:
        raise CommandFailed(f"The cluster can't start: {error}") from error
    try:
        tidb = Tidb(cluster)
        tidb.bootstrap()
        work = _workload(tidb, workload, tables, regions, rows, hot)
        start_ts = cluster.first_start_ts if replay else tidb.now()
        cluster.note_start(start_ts)
        frozen_rows = work.freeze(history) if history and isinstance(work, Sysbench) else 0
        _open(cluster, host, [port, *(range(store_port, store_port + stores) if store_port else ())])
        say(
            pd=cluster.pd_address,
            cluster_id=str(cluster.cluster_id),
            tables=sorted(name for name in tidb.tables if name != f"mysql.{DDL_JOB_TABLE}"),
            startTs=str(start_ts),
        )
        if history:
            say(workload="stopped", ts=str(tidb.now()), rows=frozen_rows)
        elif replay:
            say(workload="stopped", ts=str(cluster.history_ts), rows=0)
        _serve(tidb, None if history else work, rate, workload_seconds, arrived)
    finally:
        cluster.stop()


@tls_app.command
def rotate(folder: Path) -> None:
    """Make a new CA, trusted beside the old one, and a certificate of it for the cluster.

    PD reads its CAs when it starts: run `harm restart-pd`, then `tls retire`.
    """
    _turned(folder, certificates.rotate)


@tls_app.command
def retire(folder: Path) -> None:
    """Make a certificate of the newest CA for the client, and trust that CA only.

    `harm restart-pd` lets PD know, and `harm cut` breaks the stores' connections that were made with older ones.
    """
    _turned(folder, certificates.retire)


def _turned(folder: Path, turn: Callable[[Path], None]) -> None:
    try:
        turn(folder)
    except OSError as error:
        raise CommandFailed(f"{folder} is no folder that `start --tls` made: {error.strerror}") from error
    say(tls=str(folder))


def _frozen(how: str | None, workload: str, data: Path | None, rate: float) -> FrozenHistory | None:
    if how is None:
        return None
    if workload != "sysbench" or data is not None or rate > 0:
        raise CommandFailed("--frozen is for --workload sysbench with --rate 0, and not kept in a --data folder.")
    return FrozenHistory(live=how == "live", one=how == "one")


def _open(cluster: DevCluster, host: str, ports: Sequence[int]) -> None:
    try:
        for port in ports:
            check_free(host, port)
        cluster.start()
    except OSError as error:
        raise _cant_start(error) from error


def _cant_start(error: OSError) -> CommandFailed:
    where = f": {error.filename}" if error.filename else ""
    return CommandFailed(f"The cluster can't start: {error.strerror or error}{where}")


def _workload(tidb: Tidb, name: str, tables: int, regions: int, rows: int | None, hot: int) -> Workload | None:
    """The workload with its tables made."""
    if name == "none":
        return None
    try:
        work: Workload
        if name == "bank":
            work = Bank(tidb, tables, regions, 1000 if rows is None else rows)
        elif name == "ddl-storm":
            work = DdlStorm(tidb, tables, rows=60 if rows is None else rows, seed=tidb.now())
        else:
            work = Sysbench(tidb, tables, regions, 100_000 if rows is None else rows, hot=hot)
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
                    say(workload="stopped", ts=str(tidb.now()), rows=running.result())
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit codes: 0 done, 2 bad input, 69 no cluster at that address. `arguments`: default is the process's."""
    try:
        app(sys.argv[1:] if arguments is None else list(arguments), exit_on_error=False, result_action="return_value")
    except CycloptsError:
        sys.exit(BAD_INPUT)
    except CommandFailed as failure:
        sys.stderr.write(f"{failure}\n")
        sys.exit(failure.exit_code)
