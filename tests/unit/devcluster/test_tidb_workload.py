"""The workloads keep what they promise: the bank its sum, sysbench its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count, groupby
from pathlib import Path
from threading import Event

import pytest
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.tidb import Tidb
from changefeed_devcluster.workload import RowRate
from changefeed_devcluster.workload.bank import Bank
from changefeed_devcluster.workload.ddl_storm import KINDS, DdlStorm
from changefeed_devcluster.workload.sysbench import Sysbench


@pytest.fixture
def tidb() -> Iterator[Tidb]:
    cluster = DevCluster()
    tidb = Tidb(cluster)
    tidb.bootstrap()
    yield tidb
    cluster.stop()


def test_the_banks_total_is_the_same_at_every_commit_ts(tidb: Tidb) -> None:
    bank = Bank(tidb, tables=3, accounts=20, seed=5)
    bank.create()
    before = tidb.now()
    loaded = bank.load(Event())
    written = sum(bank.step() for _ in range(400))
    changes = sorted(
        (change for table in bank.tables for change in tidb.history(table, before, tidb.now())),
        key=lambda change: change.commit_ts,
    )
    assert (loaded, len(changes)) == (60, loaded + written)
    for commit_ts, rows in groupby(changes, lambda change: change.commit_ts):
        moved = sum(
            (change.row["balance"] if change.row else 0) - (change.old_row["balance"] if change.old_row else 0)
            for change in rows
        )
        assert moved == 0, f"the transaction committed at {commit_ts} moved {moved}"
    assert {"insert", "update", "delete"} == {change.op for change in changes[60:]}
    assert any(change.row and change.row["owner"] is None for change in changes)


def test_the_bank_rolls_back_some_transactions_and_commits_some_in_one_phase(tidb: Tidb) -> None:
    bank = Bank(tidb, accounts=20)
    bank.create()
    bank.load(Event())
    kinds: Counter[str] = Counter()
    tidb.store.observe(lambda change: kinds.update([change.kind.name]))
    for _ in range(300):
        bank.step()
    assert kinds.keys() == {"PREWRITE", "COMMIT", "ROLLBACK", "ONE_PC"}


def test_a_bank_goes_on_over_a_restarted_folder(tmp_path: Path) -> None:
    cluster = DevCluster(data_dir=tmp_path)
    tidb = Tidb(cluster)
    tidb.bootstrap()
    bank = Bank(tidb, accounts=8, seed=3)
    assert bank.create()
    bank.load(Event())
    for _ in range(200):
        bank.step()
    cluster.stop()

    cluster = DevCluster(data_dir=tmp_path)
    tidb = Tidb(cluster)
    tidb.bootstrap()
    bank = Bank(tidb, accounts=8, seed=4)
    assert not bank.create()
    assert bank.load(Event()) == 0
    for _ in range(200):
        bank.step()
    balances = [row["balance"] for table in bank.tables for row in tidb.snapshot(table, tidb.now()).values()]
    cluster.stop()
    assert sum(balances) == 0


def test_a_bank_stops_when_told(tidb: Tidb) -> None:
    bank = Bank(tidb, accounts=8)
    bank.create()
    stop = Event()
    bank.load(stop)
    before = tidb.now()
    tidb.store.observe(lambda _: stop.set())
    assert bank.run(stop) == sum(len(tidb.history(table, before, tidb.now())) for table in bank.tables) == 2


def test_sysbench_loads_the_same_rows_whatever_the_batches(tidb: Tidb) -> None:
    loads = []
    for batch in (1000, 3000):
        sysbench = Sysbench(tidb, rows=2500, batch=batch)
        assert sysbench.create()
        assert sysbench.load(Event()) == 2500
        assert sysbench.load(Event()) == 0
        loads.append(tidb.snapshot(sysbench.tables[0], tidb.now()))
        tidb.drop_table(sysbench.tables[0])
    assert loads[0] == loads[1]
    assert list(loads[0]) == list(range(1, 2501))
    row = loads[0][2500]
    assert (len(row["c"]), row["c"].count("-"), len(row["pad"]), 1 <= row["k"] <= 2500) == (119, 9, 59, True)
    assert len({row["c"] for row in loads[0].values()}) == 2500


def test_sysbench_goes_on_after_the_last_row(tidb: Tidb) -> None:
    sysbench = Sysbench(tidb, rows=1000)
    sysbench.create()
    stop = Event()
    sysbench.load(stop)
    tidb.store.observe(lambda _: stop.set())
    assert sysbench.run(stop, rate=1000) == 3
    assert max(tidb.snapshot(sysbench.tables[0], tidb.now())) == 1001


def test_hot_tables_have_half_of_what_sysbench_writes(tidb: Tidb) -> None:
    sysbench = Sysbench(tidb, tables=6, regions=1, rows=10, hot=2)
    sysbench.create()
    stop = Event()
    sysbench.load(stop)
    before, commits = tidb.now(), count()
    tidb.store.observe(lambda _: stop.set() if next(commits) >= 600 else None)
    sysbench.run(stop, rate=1e9)
    changes = [len(tidb.history(table, before, tidb.now())) for table in sysbench.tables]
    assert sum(changes[:2]) == pytest.approx(sum(changes) / 2, rel=0.2)
    assert changes[2] < changes[5] / 5


def test_a_pace_lets_a_stopped_loop_go_at_once() -> None:
    stop = Event()
    stop.set()
    RowRate(0.001, stop).keep(1)


@pytest.mark.parametrize("metadata_lock", [True, False])
def test_a_storm_runs_every_kind_of_ddl_and_knows_what_stands_in_the_store(tidb: Tidb, metadata_lock: bool) -> None:
    storm = DdlStorm(tidb, seed=8, metadata_lock=metadata_lock)
    assert storm.create()
    rows = storm.load(Event()) + sum(storm.step() for _ in range(8000))
    storm.settle()
    assert storm.done.keys() == {kind.name for kind in KINDS}
    assert rows > 8000
    again = Tidb(tidb.cluster)
    again.read_catalog()
    assert again.tables == tidb.tables
    assert again.databases == tidb.databases


def test_the_same_seed_does_the_same_ddls() -> None:
    counts = []
    for _ in range(2):
        cluster = DevCluster()
        tidb = Tidb(cluster)
        tidb.bootstrap()
        storm = DdlStorm(tidb, seed=5, limit=50)
        storm.create()
        while storm.done.total() < 50:
            storm.step()
        counts.append((storm.done, sorted(tidb.tables)))
        cluster.stop()
    assert counts[0] == counts[1]
