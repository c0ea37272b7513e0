"""Which rows a subscriber is sent, in which order: the change data core, driven step by step.

See docs/design/tikv.md, Order of rows.
"""

from __future__ import annotations

from changefeed.wire import cdcpb_pb2 as cdcpb
from changefeed_devcluster.cdc.events import group_rows, varint
from changefeed_devcluster.codec import encode_bytes
from changefeed_devcluster.store.txn import Mutation, Op, TxnStatusAction
from devcluster_rig import Rig, entries, put

Row = cdcpb.Event.Row
PREWRITE, COMMIT, ROLLBACK, COMMITTED, INITIALIZED = 1, 2, 3, 4, 5


def test_live_rows_say_what_the_protocol_says() -> None:
    rig = Rig()
    rig.store.one_pc([put("a", "1"), put("b", "1")], 10)
    rig.subscribe()
    rig.store.prewrite([put("a", "2"), Mutation(Op.DELETE, b"b"), Mutation(Op.LOCK, b"c")], b"a", 20, txn_source=3)
    rig.store.commit([b"a", b"b", b"c"], 20, 30)
    rig.store.one_pc([Mutation(Op.LOCK, b"c")], 35)
    rig.store.one_pc([put("a", "3")], 40)
    rig.store.prewrite([put("a", "4")], b"a", 50)
    rig.store.rollback([b"a"], 50)
    region_id = rig.regions.all()[0].id
    events = rig.events()
    assert {(event.region_id, event.request_id) for event in events} == {(region_id, 1)}
    assert entries(events) == [
        Row(start_ts=20, type="PREWRITE", op_type="PUT", key=b"a", value=b"2", old_value=b"1", txn_source=3),
        Row(start_ts=20, type="PREWRITE", op_type="DELETE", key=b"b", old_value=b"1", txn_source=3),
        Row(start_ts=20, commit_ts=30, type="COMMIT", op_type="PUT", key=b"a", value=b"2", txn_source=3),
        Row(start_ts=20, commit_ts=30, type="COMMIT", op_type="DELETE", key=b"b", txn_source=3),
        Row(),
        Row(),
        Row(start_ts=40, commit_ts=41, type="COMMITTED", op_type="PUT", key=b"a", value=b"3", old_value=b"2"),
        Row(start_ts=50, type="PREWRITE", op_type="PUT", key=b"a", value=b"4", old_value=b"3"),
        Row(start_ts=50, type="ROLLBACK", key=b"a", value=b"p"),
    ]


def test_a_commit_has_a_value_of_up_to_255_bytes() -> None:
    rig = Rig()
    rig.subscribe()
    rig.store.prewrite([put("a", "x" * 255), put("b", "x" * 256)], b"a", 10)
    rig.store.commit([b"a", b"b"], 10, 20)
    assert [len(row.value) for row in entries(rig.events())] == [255, 256, 255, 0]


def test_a_key_that_was_only_locked_is_committed_as_an_empty_row_to_who_hears_of_the_whole_region() -> None:
    rig = Rig()
    rig.subscribe(request_id=1)
    rig.subscribe(request_id=2, start_key=encode_bytes(b"b"))
    rig.store.prewrite([put("c", "1"), Mutation(Op.LOCK, b"d")], b"c", 10)
    rig.store.commit([b"c", b"d"], 10, 20)
    rig.store.prewrite([Mutation(Op.LOCK, b"d")], b"d", 30)
    rig.store.commit([b"d"], 30, 40)
    rig.store.prewrite([Mutation(Op.LOCK, b"d")], b"d", 50)
    rig.store.rollback([b"d"], 50)
    told = [(event.request_id, [(row.type, row.key) for row in event.entries.entries]) for event in rig.events()]
    assert [kinds for request, kinds in told if request == 1] == [
        [(PREWRITE, b"c")],
        [(COMMIT, b"c"), (0, b"")],
        [(0, b"")],
        [(ROLLBACK, b"d")],
    ]
    assert [kinds for request, kinds in told if request == 2] == [
        [(PREWRITE, b"c")],
        [(COMMIT, b"c")],
        [(ROLLBACK, b"d")],
    ]
    rig.run_scan(rig.register(request_id=3))
    assert rig.rows() == [(COMMITTED, "c", "1"), (INITIALIZED, "", "")]


def test_a_protected_rollback_says_so() -> None:
    rig = Rig()
    overlapped = rig.store.one_pc([put("o", "1")], 5)
    rig.subscribe()
    rig.store.prewrite([put("a", "1"), put("b", "1")], b"a", 10, ttl_ms=0)
    rig.store.rollback([b"a", b"b", b"never"], 10)
    rig.store.flush([put("c", "1"), put("d", "1")], b"c", 20, 1)
    rig.store.resolve_lock(20, 0)
    rig.store.pessimistic_lock([b"e", b"f"], b"e", 30, 30)
    rig.store.rollback([b"e", b"f"], 30)
    rig.store.check_txn_status(b"g", 40, 50, rollback_if_not_exist=True)
    rig.store.check_secondary_locks([b"h"], 41)
    rig.store.cleanup(b"i", 42, 0)
    rig.store.rollback([b"o"], overlapped)
    status = rig.store.check_txn_status(b"o", overlapped, overlapped + 1, rollback_if_not_exist=True)
    assert status.action is TxnStatusAction.LOCK_NOT_EXIST_ROLLBACK
    told = {row.key: row.value for row in entries(rig.events()) if row.type == ROLLBACK}
    assert {key for key, value in told.items() if value == b"p"} == {b"a", b"c", b"d", b"e", b"g", b"h", b"i"}
    assert {key for key, value in told.items() if not value} == {b"b", b"f", b"never", b"o"}


def test_a_heartbeat_and_a_push_of_min_commit_ts_repeat_what_the_lock_holds_of_the_primary() -> None:
    rig = Rig()
    rig.store.one_pc([put("d", "0")], 1)
    rig.subscribe()
    for mutations in ([put("s", "short"), put("other", "x")], [put("l", "x" * 256)]):
        rig.store.prewrite(mutations, mutations[0].key, 10, min_commit_ts=11)
    rig.store.prewrite([Mutation(Op.DELETE, b"d")], b"d", 10, min_commit_ts=11)
    rig.store.prewrite([Mutation(Op.LOCK, b"k")], b"k", 10, min_commit_ts=11)
    rig.store.flush([put("f", "flushed")], b"f", 10, 1)
    rig.drain()
    for key in (b"s", b"l", b"d", b"k", b"f"):
        rig.store.txn_heart_beat(key, 10, 5000)
        rig.store.txn_heart_beat(key, 10, 4000)
    rig.store.txn_heart_beat(b"f", 10, 0, 100)
    for key in (b"s", b"l", b"d"):
        for caller in (20, 15):
            rig.store.check_txn_status(key, 10, 30, caller_start_ts=caller)
    copies = [(row.type, row.key, row.value, row.old_value) for row in entries(rig.events())]
    assert copies == [
        (PREWRITE, b"s", b"short", b""),
        (PREWRITE, b"d", b"", b"0"),
        (PREWRITE, b"f", b"flushed", b""),
        (PREWRITE, b"f", b"flushed", b""),
        (PREWRITE, b"s", b"short", b""),
        (PREWRITE, b"d", b"", b"0"),
    ]


def test_initialized_is_the_last_row_of_the_last_event_of_a_scan() -> None:
    rig = Rig()
    rig.store.one_pc([put(f"k{number:05}", "v") for number in range(2048)], 10)
    rig.run_scan(rig.register())
    counts = [len(event.entries.entries) for event in rig.events()]
    assert counts == [1024, 1025]


def test_scan_shows_the_lock_then_versions_newest_first_and_initialized_last() -> None:
    rig = Rig()
    rig.store.one_pc([put("a", "1"), put("b", "1")], 10)
    rig.store.one_pc([put("a", "2")], 20)
    rig.store.one_pc([Mutation(Op.DELETE, b"a")], 30)
    rig.store.prewrite([put("a", "4"), put("new", "5"), Mutation(Op.LOCK, b"b")], b"a", 40)
    subscription = rig.register(checkpoint_ts=11)
    rig.run_scan(subscription)
    assert entries(rig.events()) == [
        Row(start_ts=40, type="PREWRITE", op_type="PUT", key=b"a", value=b"4"),
        Row(start_ts=30, commit_ts=31, type="COMMITTED", op_type="DELETE", key=b"a", old_value=b"2"),
        Row(start_ts=20, commit_ts=21, type="COMMITTED", op_type="PUT", key=b"a", value=b"2", old_value=b"1"),
        Row(start_ts=40, type="PREWRITE", op_type="PUT", key=b"new", value=b"5"),
        Row(type="INITIALIZED"),
    ]


def test_an_empty_scan_still_ends_with_initialized() -> None:
    rig = Rig()
    rig.run_scan(rig.register())
    assert rig.rows() == [(INITIALIZED, "", "")]


def test_a_live_commit_may_come_before_the_prewrite_of_the_scan() -> None:
    rig = Rig()
    rig.store.prewrite([put("a", "1")], b"a", 10)
    subscription = rig.register()
    snapshot = rig.subscriptions.attach(subscription)
    assert snapshot is not None
    rig.store.commit([b"a"], 10, 20)
    rig.store.one_pc([put("b", "2")], 30)
    list(rig.subscriptions.scan(subscription, snapshot))
    assert rig.rows() == [(COMMIT, "a", "1"), (COMMITTED, "b", "2"), (PREWRITE, "a", "1"), (INITIALIZED, "", "")]


def test_live_rows_interleave_with_a_long_scan() -> None:
    rig = Rig()
    rig.store.one_pc([put(f"k{number:05}", "v") for number in range(3000)], 10)
    subscription = rig.register()
    snapshot = rig.subscriptions.attach(subscription)
    assert snapshot is not None
    steps = rig.subscriptions.scan(subscription, snapshot)
    next(steps)
    next(steps)
    rig.store.one_pc([put("k02999", "late")], 20)
    list(steps)
    rows = rig.rows()
    late = rows.index((COMMITTED, "k02999", "late"))
    assert 0 < late < rows.index((COMMITTED, "k02999", "v"))
    assert len(rows) == 3002
    assert rows[-1][0] == INITIALIZED


def test_a_long_scan_keeps_key_order_and_holds_resolved_ts_to_its_end() -> None:
    rig = Rig()
    rig.store.one_pc([put(f"k{number:05}", "v") for number in range(3000)], 10)
    rig.store.prewrite([put("k02500", "new"), put("s", "new")], b"k02500", 20)
    subscription = rig.register()
    snapshot = rig.subscriptions.attach(subscription)
    assert snapshot is not None
    steps = rig.subscriptions.scan(subscription, snapshot)
    next(steps)
    next(steps)
    keys = [row[1] for row in rig.rows()]
    assert rig.resolved() == []
    list(steps)
    rows = rig.rows()
    keys += [row[1] for row in rows[:-1]]
    assert keys == sorted(keys)
    assert len(keys) == 3002
    assert rows.index((PREWRITE, "k02500", "new")) + 1 == rows.index((COMMITTED, "k02500", "v"))
    assert rig.resolved() == []
    assert rig.resolved() == [([subscription.region_id], 20, 1)]


def test_a_span_gets_its_own_rows_only() -> None:
    rig = Rig()
    rig.store.one_pc([put("a", "0"), put("b", "0"), put("c", "0")], 5)
    rig.run_scan(rig.register(start_key=encode_bytes(b"b"), end_key=encode_bytes(b"c")))
    rig.run_scan(rig.register(request_id=2, start_key=b"not memcomparable"))
    rig.store.one_pc([put("a", "1"), put("b", "1"), put("c", "1")], 10)
    by_request: dict[int, list[str]] = {}
    for event in rig.events():
        by_request.setdefault(event.request_id, []).extend(row.key.decode() for row in event.entries.entries)
    assert by_request == {1: ["b", "", "b"], 2: ["a", "b", "c", "", "a", "b", "c"]}


def test_rows_of_lossy_ddl_are_dropped_and_loops_where_asked() -> None:
    rig = Rig()
    rig.run_scan(rig.register())
    rig.run_scan(rig.register(request_id=2, filter_loop=True))
    rig.drain()
    rig.store.one_pc([put("ddl", "")], 10, txn_source=1 << 8)
    rig.store.one_pc([put("loop", "")], 20, txn_source=1)
    seen = [(event.request_id, row.key) for event in rig.events() for row in event.entries.entries]
    assert seen == [(1, b"loop")]
    rig.run_scan(rig.register(request_id=3, filter_loop=True))
    rig.run_scan(rig.register(request_id=4))
    assert [(row[0], row[1]) for row in rig.rows()] == [(INITIALIZED, ""), (COMMITTED, "loop"), (INITIALIZED, "")]


def test_events_stay_below_32_kib_unless_one_row_is_larger() -> None:
    rig = Rig()
    rig.subscribe()
    rig.store.one_pc([put(f"{number:04}", "x" * 1000) for number in range(100)], 10)
    rig.store.one_pc([put("large", "x" * 70_000)], 20)
    rig.store.one_pc([put(f"{number:06}", "x" * 120) for number in range(300)], 30)
    events = rig.events()
    sizes = [sum(len(row.key) + len(row.value) for row in event.entries.entries) for event in events]
    assert all(size < 32 << 10 for size in sizes if size != 70_005)
    assert [len(event.entries.entries) for event in events] == [32, 32, 32, 4, 1, 260, 40]
    assert (sizes[4], events[5].ByteSize() > 33_000) == (70_005, True)
    assert group_rows([]) == []


def test_messages_hold_consecutive_events_up_to_6_mib_and_a_resolved_ts_alone() -> None:
    rig = Rig()
    rig.subscribe()
    rig.store.one_pc([put("a", "1")], 10)
    rig.store.one_pc([put("b", "x" * (4 << 20))], 20)
    rig.store.one_pc([put("c", "x" * (4 << 20))], 30)
    rig.store.one_pc([put("d", "x" * (7 << 20))], 40)
    rig.store.one_pc([put("e", "1")], 50)
    rig.subscriptions.advance()
    rig.store.one_pc([put("f", "1")], rig.oracle.next())
    assert rig.connection.backlog > 15 << 20
    got = rig.drain()
    keys = [[row.key.decode() for row in entries(list(message.events))] for message in got]
    assert keys == [["a", "b"], ["c"], ["d"], ["e"], [], ["f"]]
    assert got[4].HasField("resolved_ts")
    assert rig.connection.backlog == 0


def test_varint_is_protobufs() -> None:
    for number in (0, 1, 127, 128, 300, (1 << 64) - 1):
        assert cdcpb.Event.FromString(b"\x08" + varint(number)).region_id == number
