"""A changefeed that writes a bank into Iceberg tables of MariaDB's catalog, beside others who use the same tables."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from changefeed.errors import ChangefeedError
from changefeed.log.log import Log
from changefeed.objectstore.local import LocalStore
from changefeed.owner import driver
from changefeed.owner.driver import RunOptions
from changefeed.spec.parse import parse
from changefeed.verify.iceberg.report import verify
from changefeed.verify.result import RowsVerdict
from changefeed_devcluster.store.txn import TxnError
from changefeed_devcluster.workload.bank import Bank
from conftest import Upstream, wait_for
from integration_catalogs import PASSWORD, USER, mariadb, write_account
from integration_iceberg import changelog, replayed, state
from integration_inprocess import InProcessExecution, Seen, resource
from integration_maintenance import Maintained, Stops
from integration_processes import Nursery, Process, Say, nursery
from integration_spark_sql import SparkSql
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import make_url

SECRETS = "secrets"
_BETWEEN_S = 0.02


def drive(say: Say, resource: dict[str, Any], secrets_dir: str) -> None:
    """`changefeed run`, without Spark."""
    signal.alarm(0)
    options = RunOptions(metrics_port=0, secrets_dir=Path(secrets_dir))
    try:
        outcome = driver.run(parse(json.dumps(resource)), options, InProcessExecution(), Seen())
    except ChangefeedError as error:
        say(refused=str(error))
    else:
        say(ended=outcome.state)


@dataclass
class Fed:
    """A changefeed of `bank.*` that runs, and two readers of its tables."""

    upstream: Upstream
    folder: Path
    mode: str
    spark: SparkSql
    catalog: SqlCatalog
    lake: str
    nursery: Nursery
    resource: dict[str, Any]
    process: Process | None = None
    counts: Counter[str] = field(default_factory=Counter)
    quiet: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        self.process = self.nursery.start(
            f"{__name__}:drive", resource=self.resource, secrets_dir=str(self.folder / SECRETS)
        )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.start()
        self.counts["kills"] += 1

    def mend(self, at: Maintained, stops: Stops) -> None:
        """It stops and says why and of which table; then what it says is done, and it goes on."""
        assert self.process is not None
        said = self.process.end()["refused"]
        assert f"Table {at.qualified} " in said, said
        assert stops.why in said, said
        stops.mend(said)
        self.start()
        self.wait_until_passed()
        self.counts["stops"] += 1

    def verified(self) -> RowsVerdict:
        """It ends."""
        assert self.process is not None
        self.process.signal(signal.SIGTERM)
        assert self.process.end() == {"ended": "drained"}
        return asyncio.run(verify(parse(json.dumps(self.resource)), self.folder / SECRETS))

    def at(self, name: str, rng: random.Random) -> Maintained:
        return Maintained(self.spark, self.catalog, self.lake, "bank", name, rng, self.quiet)

    def checkpoint(self) -> int:
        return Log(LocalStore(self.folder / "state" / "default" / "test" / "local")).read().checkpoint_ts

    def wait_until_passed(self) -> None:
        now = self.upstream.tidb.now()

        def has_passed() -> bool:
            assert self.process is not None
            assert not _has_ended(self.process), self.process.end()
            return self.checkpoint() > now

        wait_for(has_passed, f"a checkpoint above {now}")

    def check(self, bank: Bank) -> None:
        """The upstream stands still: both readers find its rows, each change once."""
        self.wait_until_passed()
        for table in bank.tables:
            rows = self.upstream.tidb.snapshot(table, self.upstream.tidb.now()).values()
            there = {row["id"]: (row["owner"], row["balance"]) for row in rows}
            assert self.by_pyiceberg(table.info.name) == there, table.name
            assert self.by_spark(table.info.name) == there, table.name
        self.counts["checks"] += 1

    def by_pyiceberg(self, name: str) -> dict[int, tuple[str, int]]:
        table = self.catalog.load_table(("bank", name))
        if self.mode == "append":
            met = Counter((row["id"], row["_commit_ts"], row["_op"]) for row in changelog(table))
            assert not [change for change, count in met.items() if count > 1]
        rows = replayed(table, "id") if self.mode == "append" else state(table, "id")
        return {key: (row["owner"], row["balance"]) for key, row in rows.items()}

    def by_spark(self, name: str) -> dict[int, tuple[str, int]]:
        rows = f"{self.lake}.bank.{name}"
        if self.mode == "append":
            latest = "row_number() OVER (PARTITION BY id ORDER BY _commit_ts DESC, _op DESC)"
            rows = f"(SELECT * FROM (SELECT *, {latest} AS n FROM {rows}) WHERE n = 1 AND _op <> 'D')"
        found = self.spark(f"SELECT id, owner, balance FROM {rows}")
        assert len({row[0] for row in found}) == len(found), "a key twice"
        return {row[0]: (row[1], row[2]) for row in found}


@contextmanager
def fed(upstream: Upstream, folder: Path, mode: str, spark: SparkSql) -> Iterator[Fed]:
    lake = f"lake_{secrets.token_hex(4)}"  # Spark knows a name for as long as it lives
    (folder / SECRETS).mkdir()
    write_account(folder / SECRETS / "catalog")
    warehouse = (folder / "warehouse").as_uri()
    with mariadb(folder) as address, nursery() as processes:
        url = make_url(address).set(drivername="mysql+pymysql", username=USER, password=PASSWORD)
        catalog = {"uri": address, "name": lake, "credentials": {"secretRef": {"name": "catalog"}}}
        sink = {"iceberg": {"warehouse": warehouse, "catalog": catalog, "mode": mode, "flushInterval": "1s"}}
        spark.use(lake, address, warehouse)
        made = resource(
            upstream.cluster.pd_address,
            upstream.tidb.now(),
            folder,
            filter={"rules": ["bank.*"]},
            sink=sink,
            spark={"pullers": {"count": 1}},
        )
        with closing(SqlCatalog(lake, uri=url.render_as_string(hide_password=False))) as reader:
            started = Fed(upstream, folder, mode, spark, reader, lake, processes, made)
            try:
                yield started
            finally:
                if started.process is not None:
                    started.process.kill()


@contextmanager
def writing(bank: Bank, quiet: threading.Lock) -> Iterator[None]:
    """Money moves all the time, but for while `quiet` is held."""
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(_BETWEEN_S):
            with quiet, suppress(TxnError):  # somebody has resolved its lock
                bank.step()

    with ThreadPoolExecutor(1) as writer:
        moved = writer.submit(write)
        try:
            yield
        finally:
            stop.set()
            moved.result()


def _has_ended(process: Process) -> bool:
    try:
        return bool(psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
