"""A data folder served again as it was left: the same history to the byte, however often and beside each other."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest
from changefeed_devcluster.journal import Journal, JournalRecord
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.store.txn import Mutation, Op
from changefeed_devcluster.tidb.tidb import Tidb
from changefeed_devcluster.workload.bank import Bank
from devcluster_feed import Feed

History = dict[tuple[int, int, int], list[bytes]]


def written(folder: Path) -> int:
    """A folder with a bank's history, splits, and a transaction that nobody ended. Gives the start ts."""
    cluster = DevCluster(data_dir=folder)
    tidb = Tidb(cluster)
    tidb.bootstrap()
    bank = Bank(tidb, accounts=20, regions=3)
    bank.create()
    cluster.note_start(tidb.now())
    bank.load(Event())
    for _ in range(100):
        bank.step()
    cluster.hold_lock(b"zzz", ttl_ms=0)
    cluster.stop()
    return cluster.first_start_ts


def history(cluster: DevCluster, after_ts: int) -> History:
    """Region, version and leader → its rows in the order of the scan, as they came over the wire."""
    found: History = {}
    for region in cluster.regions.all():
        with Feed(cluster, region.leader_store) as feed:
            feed.register(region, checkpoint_ts=after_ts)
            rows = [row.SerializeToString(deterministic=True) for row in feed.until_initialized()]
            found[region.id, region.version, region.leader_store] = rows
    return found


def test_replays_serve_the_same_history_and_leave_the_folder_alone(tmp_path: Path) -> None:
    start_ts = written(tmp_path)
    with DevCluster(data_dir=tmp_path) as cluster:
        expected = history(cluster, start_ts)
    folder = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with DevCluster(data_dir=tmp_path, replay=True) as one, DevCluster(data_dir=tmp_path, replay=True) as other:
        assert one.first_start_ts == other.first_start_ts == start_ts
        assert one.cluster_id == other.cluster_id
        assert start_ts < one.history_ts == other.history_ts < min(one.oracle.next(), other.oracle.next())
        assert history(one, start_ts) == expected
        Tidb(one).bootstrap()
        one.store.one_pc([Mutation(Op.PUT, b"new", b"v")], one.oracle.next())
        one.split(b"n")
        assert history(other, start_ts) == expected
    with DevCluster(data_dir=tmp_path, replay=True) as again:
        assert history(again, start_ts) == expected
    assert sum(map(len, expected.values())) > 100
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == folder


def test_the_history_ends_with_its_last_commit(tmp_path: Path) -> None:
    cluster = DevCluster(data_dir=tmp_path)
    commit_ts = cluster.store.one_pc([Mutation(Op.PUT, b"k", b"v")], cluster.oracle.next(), cluster.oracle.next())
    cluster.stop()
    replayed = DevCluster(data_dir=tmp_path, replay=True)
    replayed.stop()
    assert replayed.history_ts == commit_ts


def test_the_first_start_is_kept(tmp_path: Path) -> None:
    cluster = DevCluster(data_dir=tmp_path)
    cluster.note_start(5)
    cluster.note_start(7)
    cluster.stop()
    again = DevCluster(data_dir=tmp_path)
    again.note_start(9)
    again.stop()
    assert (cluster.first_start_ts, again.first_start_ts) == (5, 5)


def test_a_frozen_journal_keeps_its_torn_tail_and_takes_no_record(tmp_path: Path) -> None:
    DevCluster(data_dir=tmp_path).stop()
    path = tmp_path / "journal"
    path.write_bytes(path.read_bytes() + b"torn")
    before = path.read_bytes()
    journal = Journal(tmp_path, frozen=True)
    kinds = [kind for kind, _ in journal.replay()]
    journal.append(JournalRecord.CLUSTER, DevCluster().regions.all()[0].message)
    journal.close()
    assert kinds
    assert path.read_bytes() == before


def test_a_folder_that_is_written_to_is_not_replayed(tmp_path: Path) -> None:
    with DevCluster(data_dir=tmp_path), pytest.raises(OSError, match="in use"):
        DevCluster(data_dir=tmp_path, replay=True)
    with pytest.raises(OSError, match="No such file"):
        DevCluster(data_dir=tmp_path / "none", replay=True)
