from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from changefeed.errors import NeedsHuman, ProtocolViolation, Refused, Transient
from changefeed.model.tso import compose
from changefeed.upstream.tikv.client.kv import Snapshot
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.wire import errorpb_pb2, metapb_pb2
from changefeed.wire import kvrpcpb_pb2 as kv
from upstream_fake import CLUSTER, FakeCluster, region

READ_TS = compose(900)
LOCK_TS = compose(500)  # the fake's clock stands at 1000 ms


def replies(*answers: Any) -> Callable[[Any], Any]:
    """One after the other; the last one for ever."""
    left = list(answers)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


def lock(key: bytes = b"k", ttl: int = 10_000, primary: bytes = b"p") -> kv.LockInfo:
    return kv.LockInfo(primary_lock=primary, lock_version=LOCK_TS, key=key, lock_ttl=ttl)


def blocked(by: kv.LockInfo) -> kv.GetResponse:
    return kv.GetResponse(error=kv.KeyError(locked=by))


def calls(cluster: FakeCluster, method: str) -> list[Any]:
    return [request for name, request in cluster.kv_calls if name == method]


async def test_get(pd: PdClient, cluster: FakeCluster) -> None:
    cluster.kv["KvGet"] = replies(kv.GetResponse(value=b""), kv.GetResponse(not_found=True))
    snapshot = Snapshot(pd, READ_TS)
    assert await snapshot.get(b"k") == b""
    assert await snapshot.get(b"k") is None
    (request, _) = calls(cluster, "KvGet")
    assert (request.key, request.version) == (b"k", READ_TS)
    assert request.context == kv.Context(
        region_id=1,
        region_epoch=metapb_pb2.RegionEpoch(conf_ver=1, version=1),
        peer=metapb_pb2.Peer(id=10, store_id=1),
        cluster_id=CLUSTER,
        request_origin=kv.RequestOriginTiDB,
    )
    assert len(cluster.scans) == 1  # the region is remembered


def a_store(data: dict[bytes, bytes]) -> Callable[[kv.ScanRequest], kv.ScanResponse]:
    def scan(request: kv.ScanRequest) -> kv.ScanResponse:
        keys = [k for k in sorted(data) if request.start_key <= k and (not request.end_key or k < request.end_key)]
        return kv.ScanResponse(pairs=[kv.KvPair(key=k, value=data[k]) for k in keys[: request.limit]])

    return scan


@pytest.mark.parametrize("batch", [1, 2, 3, 256])
@pytest.mark.parametrize(("start", "end"), [(b"", b""), (b"a", b"e"), (b"b", b"b\0"), (b"c", b"c"), (b"x", b"")])
async def test_scan_goes_through_all_regions(
    pd: PdClient, cluster: FakeCluster, batch: int, start: bytes, end: bytes
) -> None:
    data = {key: b"v" + key for key in (b"a", b"b", b"bb", b"c", b"d", b"e", b"f")}
    cluster.regions = [[region(1, b"", b"b"), region(2, b"b", b"d"), region(3, b"d", b"")]]
    cluster.kv["KvScan"] = a_store(data)
    found = [pair async for pair in Snapshot(pd, READ_TS).scan(start, end, batch)]
    assert found == [(k, data[k]) for k in sorted(data) if start <= k and (not end or k < end)]
    for request in calls(cluster, "KvScan"):  # each is clipped to its region
        low, high = {1: (b"", b"b"), 2: (b"b", b"d"), 3: (b"d", b"")}[request.context.region_id]
        assert request.start_key >= low
        assert not high or b"" < request.end_key <= high


def region_error(**field: Any) -> kv.GetResponse:
    return kv.GetResponse(region_error=errorpb_pb2.Error(**field))


@pytest.mark.parametrize(
    ("error", "relocates", "asks_store"),
    [
        ({"epoch_not_match": errorpb_pb2.EpochNotMatch()}, True, False),
        ({"region_not_found": errorpb_pb2.RegionNotFound(region_id=1)}, True, False),
        ({"key_not_in_region": errorpb_pb2.KeyNotInRegion()}, True, False),
        ({"not_leader": errorpb_pb2.NotLeader(region_id=1)}, True, False),
        ({"not_leader": errorpb_pb2.NotLeader(leader=metapb_pb2.Peer(id=77, store_id=2))}, False, True),
        ({"store_not_match": errorpb_pb2.StoreNotMatch()}, True, True),
        ({"stale_command": errorpb_pb2.StaleCommand()}, False, False),
        ({"server_is_busy": errorpb_pb2.ServerIsBusy(backoff_ms=1)}, False, False),
        ({"message": "Deadline is exceeded"}, True, False),
    ],
)
async def test_region_errors(
    pd: PdClient, cluster: FakeCluster, error: dict[str, Any], relocates: bool, asks_store: bool
) -> None:
    cluster.kv["KvGet"] = replies(region_error(**error), kv.GetResponse(value=b"v"))
    assert await Snapshot(pd, READ_TS).get(b"k") == b"v"
    assert len(cluster.scans) == 1 + relocates
    assert cluster.store_asks == 1 + asks_store
    if "not_leader" in error and not relocates:
        assert calls(cluster, "KvGet")[1].context.peer == metapb_pb2.Peer(id=77, store_id=2)


async def test_a_region_error_that_stays_is_transient(pd: PdClient, cluster: FakeCluster) -> None:
    cluster.kv["KvScan"] = replies(
        kv.ScanResponse(region_error=errorpb_pb2.Error(epoch_not_match=errorpb_pb2.EpochNotMatch()))
    )
    with pytest.raises(Transient, match=r"Scanning \[61, 62\) at \d+ did not .* region 1: epoch_not_match"):
        async for _ in Snapshot(pd, READ_TS, patience=0.1).scan(b"a", b"b"):
            pass


async def test_a_split_during_a_scan_loses_nothing(pd: PdClient, cluster: FakeCluster) -> None:
    data = dict.fromkeys((b"a", b"b", b"c", b"d"), b"v")
    cluster.regions = [[region(1, b"", b"")], [region(1, b"", b"c", version=2), region(2, b"c", b"", version=2)]]
    scan = a_store(data)

    def after_split(request: kv.ScanRequest) -> kv.ScanResponse:
        if request.context.region_epoch.version == 1 and request.start_key > b"":
            return kv.ScanResponse(region_error=errorpb_pb2.Error(epoch_not_match=errorpb_pb2.EpochNotMatch()))
        return scan(request)

    cluster.kv["KvScan"] = after_split
    assert [key async for key, _ in Snapshot(pd, READ_TS).scan(b"", b"", 1)] == sorted(data)


async def test_rule_29_a_flashback_is_loud(pd: PdClient, cluster: FakeCluster) -> None:
    cluster.kv["KvGet"] = replies(region_error(FlashbackInProgress=errorpb_pb2.FlashbackInProgress()))
    with pytest.raises(NeedsHuman, match="FLASHBACK"):
        await Snapshot(pd, READ_TS).get(b"k")


async def test_a_store_that_is_down_is_looked_up_again(pd: PdClient, cluster: FakeCluster) -> None:
    calls_left = [1]

    def down_once(_: Any) -> kv.GetResponse:
        if calls_left.pop() if calls_left else 0:
            raise OSError("dead")
        return kv.GetResponse(value=b"v")

    cluster.kv["KvGet"] = down_once
    assert await Snapshot(pd, READ_TS).get(b"k") == b"v"
    assert (cluster.store_asks, len(cluster.scans)) == (2, 2)


async def test_a_living_transaction_is_waited_for(pd: PdClient, cluster: FakeCluster) -> None:
    cluster.kv["KvGet"] = replies(blocked(lock()), blocked(lock()), kv.GetResponse(value=b"new"))
    cluster.kv["KvCheckTxnStatus"] = replies(kv.CheckTxnStatusResponse(lock_ttl=10_000))
    assert await Snapshot(pd, READ_TS).get(b"k") == b"new"
    first, _ = calls(cluster, "KvCheckTxnStatus")
    assert (first.primary_key, first.lock_ts, first.caller_start_ts) == (b"p", LOCK_TS, READ_TS)
    assert (first.rollback_if_not_exist, first.verify_is_primary) == (False, True)
    assert first.current_ts >= compose(1000)
    assert calls(cluster, "KvResolveLock") == []


async def test_a_lock_that_stays_is_transient(pd: PdClient, cluster: FakeCluster) -> None:
    cluster.kv["KvGet"] = replies(blocked(lock()))
    cluster.kv["KvCheckTxnStatus"] = replies(kv.CheckTxnStatusResponse(lock_ttl=10_000))
    with pytest.raises(Transient, match=f"Reading key 6b .* is locked by transaction {LOCK_TS}"):
        await Snapshot(pd, READ_TS, patience=0.1).get(b"k")


async def test_a_pushed_transaction_is_read_past(pd: PdClient, cluster: FakeCluster) -> None:
    cluster.kv["KvGet"] = lambda request: (
        kv.GetResponse(value=b"old") if list(request.context.resolved_locks) == [LOCK_TS] else blocked(lock())
    )
    cluster.kv["KvCheckTxnStatus"] = replies(kv.CheckTxnStatusResponse(lock_ttl=1, action=kv.MinCommitTSPushed))
    assert await Snapshot(pd, READ_TS).get(b"k") == b"old"


async def test_a_server_that_keeps_a_pushed_lock_does_not_spin(pd: PdClient, cluster: FakeCluster) -> None:
    cluster.kv["KvGet"] = replies(blocked(lock()))
    cluster.kv["KvCheckTxnStatus"] = replies(kv.CheckTxnStatusResponse(lock_ttl=1, action=kv.MinCommitTSPushed))
    with pytest.raises(Transient, match="is locked"):
        await Snapshot(pd, READ_TS, patience=0.1).get(b"k")


@pytest.mark.parametrize("commit_ts", [0, compose(700)])
@pytest.mark.parametrize("ttl", [0, 400])
async def test_a_dead_transaction_is_finished(pd: PdClient, cluster: FakeCluster, commit_ts: int, ttl: int) -> None:
    cluster.kv["KvGet"] = replies(blocked(lock(ttl=ttl)), kv.GetResponse(value=b"v"))
    cluster.kv["KvCheckTxnStatus"] = replies(kv.CheckTxnStatusResponse(commit_version=commit_ts))
    cluster.kv["KvResolveLock"] = replies(kv.ResolveLockResponse())
    assert await Snapshot(pd, READ_TS).get(b"k") == b"v"
    (check,) = calls(cluster, "KvCheckTxnStatus")
    assert check.rollback_if_not_exist
    assert (check.current_ts == (1 << 64) - 1) == (ttl == 0)
    (finish,) = calls(cluster, "KvResolveLock")
    assert (finish.start_version, finish.commit_version, list(finish.keys)) == (LOCK_TS, commit_ts, [b"k"])


async def test_a_transaction_without_a_trace_is_waited_for_until_its_ttl(pd: PdClient, cluster: FakeCluster) -> None:
    not_found = kv.CheckTxnStatusResponse(error=kv.KeyError(txn_not_found=kv.TxnNotFound(start_ts=LOCK_TS)))
    cluster.kv["KvGet"] = replies(blocked(lock()), kv.GetResponse(value=b"v"))
    cluster.kv["KvCheckTxnStatus"] = replies(not_found)
    assert await Snapshot(pd, READ_TS).get(b"k") == b"v"
    assert calls(cluster, "KvResolveLock") == []


def async_lock(key: bytes, min_commit_ts: int, use_async_commit: bool = True) -> kv.LockInfo:
    return kv.LockInfo(
        primary_lock=b"p",
        lock_version=LOCK_TS,
        key=key,
        lock_ttl=400,
        use_async_commit=use_async_commit,
        min_commit_ts=min_commit_ts,
        secondaries=[b"k", b"s"] if key == b"p" else [],
    )


@pytest.mark.parametrize(
    ("secondaries", "fate"),
    [
        ([{"locks": [async_lock(b"k", LOCK_TS + 1)]}, {"locks": [async_lock(b"s", LOCK_TS + 3)]}], LOCK_TS + 3),
        ([{"locks": [async_lock(b"k", LOCK_TS + 1)]}, {"commit_ts": LOCK_TS + 5}], LOCK_TS + 5),
        ([{"locks": [async_lock(b"k", LOCK_TS + 1)]}, {}], 0),
    ],
)
async def test_an_expired_async_commit_is_decided_by_all_its_keys(
    pd: PdClient, cluster: FakeCluster, secondaries: list[dict[str, Any]], fate: int
) -> None:
    cluster.kv["KvGet"] = replies(blocked(async_lock(b"k", LOCK_TS + 1)), kv.GetResponse(value=b"v"))
    cluster.kv["KvCheckTxnStatus"] = replies(
        kv.CheckTxnStatusResponse(lock_ttl=400, lock_info=async_lock(b"p", LOCK_TS + 2))
    )
    cluster.kv["KvCheckSecondaryLocks"] = replies(*(kv.CheckSecondaryLocksResponse(**answer) for answer in secondaries))
    cluster.kv["KvResolveLock"] = replies(kv.ResolveLockResponse())
    assert await Snapshot(pd, READ_TS).get(b"k") == b"v"
    assert [list(request.keys) for request in calls(cluster, "KvCheckSecondaryLocks")] == [[b"k"], [b"s"]]
    assert calls(cluster, "KvResolveLock")[0].commit_version == fate


async def test_a_transaction_that_fell_back_from_async_commit_is_decided_by_its_primary(
    pd: PdClient, cluster: FakeCluster
) -> None:
    cluster.kv["KvGet"] = replies(blocked(async_lock(b"k", LOCK_TS + 1)), kv.GetResponse(value=b"v"))
    cluster.kv["KvCheckTxnStatus"] = lambda request: (
        kv.CheckTxnStatusResponse(action=kv.TTLExpireRollback)
        if request.force_sync_commit
        else kv.CheckTxnStatusResponse(lock_ttl=400, lock_info=async_lock(b"p", LOCK_TS + 2))
    )
    fallen_back = async_lock(b"k", 0, use_async_commit=False)
    cluster.kv["KvCheckSecondaryLocks"] = replies(kv.CheckSecondaryLocksResponse(locks=[fallen_back]))
    cluster.kv["KvResolveLock"] = replies(kv.ResolveLockResponse())
    assert await Snapshot(pd, READ_TS).get(b"k") == b"v"
    assert calls(cluster, "KvResolveLock")[0].commit_version == 0


async def test_a_living_async_commit_is_left_alone(pd: PdClient, cluster: FakeCluster) -> None:
    primary = async_lock(b"p", LOCK_TS + 2)
    cluster.kv["KvGet"] = replies(blocked(async_lock(b"k", LOCK_TS + 1)), kv.GetResponse(value=b"v"))
    cluster.kv["KvCheckTxnStatus"] = replies(kv.CheckTxnStatusResponse(lock_ttl=20_000, lock_info=primary))
    assert await Snapshot(pd, READ_TS).get(b"k") == b"v"
    assert calls(cluster, "KvCheckSecondaryLocks") == []
    assert calls(cluster, "KvResolveLock") == []


@pytest.mark.parametrize("whole_call", [True, False])
async def test_a_scan_goes_on_behind_a_lock(pd: PdClient, cluster: FakeCluster, whole_call: bool) -> None:
    scan, resolved = a_store({b"a": b"1", b"c": b"3"}), [False]

    def with_lock(request: kv.ScanRequest) -> kv.ScanResponse:
        if resolved[0]:
            return scan(request)
        error = kv.KeyError(locked=lock(b"b", ttl=0))
        if whole_call:
            return kv.ScanResponse(error=error)
        return kv.ScanResponse(pairs=[kv.KvPair(key=b"a", value=b"1"), kv.KvPair(error=error), kv.KvPair(key=b"c")])

    def resolve(_: kv.ResolveLockRequest) -> kv.ResolveLockResponse:
        resolved[0] = True
        return kv.ResolveLockResponse()

    cluster.kv.update(KvScan=with_lock, KvResolveLock=resolve)
    cluster.kv["KvCheckTxnStatus"] = replies(kv.CheckTxnStatusResponse())
    assert [pair async for pair in Snapshot(pd, READ_TS).scan(b"", b"")] == [(b"a", b"1"), (b"c", b"3")]
    assert calls(cluster, "KvScan")[-1].start_key == (b"" if whole_call else b"a\0")


async def test_rows_that_became_too_wide_for_one_answer_are_asked_for_in_smaller_parts(
    pd: PdClient, cluster: FakeCluster
) -> None:
    data = {b"%03d" % number: b"v" for number in range(100)}
    scan = a_store(data)

    def up_to_64(request: kv.ScanRequest) -> kv.ScanResponse:
        if request.limit > 64:
            raise OSError("too large")
        return scan(request)

    cluster.kv["KvScan"] = up_to_64
    pages = [keys.to_pylist() async for keys, _ in Snapshot(pd, READ_TS).columns(b"", b"")]
    assert [key for page in pages for key in page] == sorted(data)
    assert [request.limit for request in calls(cluster, "KvScan")][:3] == [256, 128, 64]


async def test_another_key_error_is_no_answer(pd: PdClient, cluster: FakeCluster) -> None:
    cluster.kv["KvGet"] = replies(kv.GetResponse(error=kv.KeyError(abort="corrupt")))
    with pytest.raises(ProtocolViolation, match="corrupt"):
        await Snapshot(pd, READ_TS).get(b"k")


async def test_a_store_that_does_not_allow_our_common_name_says_so_at_once(pd: PdClient, cluster: FakeCluster) -> None:
    """PD allows it, the handshake succeeds, and each call fails: trying again can't help."""
    why = 'x509_common_name from peer is stranger, cert_allowed_cn: {"tidb", "tikv"}'
    cluster.kept_out = f"Common name check fail, reason: {why}"
    with pytest.raises(Refused) as caught:
        await Snapshot(pd, READ_TS).get(b"k")
    assert (
        caught.value.message
        == f"Store 1 at {cluster.address} does not let us in: Common name check fail, reason: {why}."
    )
    assert "security.cert-allowed-cn of TiKV" in caught.value.next_step
    assert len(cluster.kv_calls) == 1
