"""Streams of pgoutput that nobody has recorded: chosen ones, cut anywhere, and broken ones."""

from __future__ import annotations

import contextlib
import struct
import tempfile
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pgoutput_reader as slow
import pytest
from changefeed.errors import NeedsHuman, ProtocolViolation
from changefeed.model.rows import RAW_SCHEMA
from changefeed.upstream.postgresql.pgoutput import changes, held_rows
from changefeed.upstream.postgresql.pgoutput.messages import Commit, KeepAlive, LogicalMessage, Relation, Truncate
from changefeed.upstream.postgresql.pgoutput.transactions import TransactionStream
from changefeed.upstream.scratch import LocalFile
from hypothesis import given, settings
from hypothesis import strategies as st
from pgoutput_writer import Table, frame, keep_alive, streams, tuple_data

TABLE = Table(7, "d", ("id", "a"), (0,), 1)
BEGIN = frame(b"B" + struct.pack(">QqI", 40, 5, 3))
COMMIT = frame(b"C" + struct.pack(">BQQq", 0, 40, 48, 5))
DESCRIBED = frame(b"R" + TABLE.relation())


def insert(*cells: Any) -> bytes:
    return frame(b"I" + struct.pack(">I", 7) + b"N" + tuple_data([*cells]))


@settings(max_examples=60, deadline=None)
@given(streams, st.data())
def test_any_stream_cut_anywhere_has_the_changes_that_a_slow_reader_finds(
    chosen: tuple[bytes, dict[str, tuple[str, ...]]], data: st.DataObject
) -> None:
    stream, keys = chosen

    def primary_key(table: Any) -> tuple[str, ...]:
        return keys[getattr(table, "full_name", None) or table.name]

    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=6))
    expected = [(found.lsn, slow.net(found, primary_key)) for found in slow.transactions(stream)]
    part_bytes = data.draw(st.sampled_from([1, 100, 1 << 20]))
    scratch = data.draw(st.sampled_from([None, partial(LocalFile, Path(tempfile.gettempdir()))]))
    few = data.draw(st.sampled_from([0, 2, changes.FEW_ROWS]))
    with mock.patch.object(held_rows, "PART_BYTES", part_bytes), mock.patch.object(changes, "FEW_ROWS", few):
        assert slow.read(stream, cuts, primary_key, scratch) == expected


@settings(max_examples=60, deadline=None)
@given(streams, st.data())
def test_a_broken_stream_is_refused_or_read_never_anything_else(
    chosen: tuple[bytes, dict[str, tuple[str, ...]]], data: st.DataObject
) -> None:
    stream, keys = chosen
    broken = bytearray(stream)
    for _ in range(data.draw(st.integers(1, 3))):
        if broken:
            broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    machine = TransactionStream(lambda relation: keys.get(relation.full_name, ()))
    with contextlib.suppress(ProtocolViolation, NeedsHuman):
        list(machine.take(bytes(broken)).changes)


def test_a_batch_has_what_the_pipeline_wants() -> None:
    machine = TransactionStream()
    read = machine.take(BEGIN + DESCRIBED + insert("1", "x") + COMMIT + BEGIN + insert("2", None) + COMMIT)
    (changes,) = read.changes
    batch = changes.batch(99, np.array([500, 600], np.uint64))
    assert batch.schema == RAW_SCHEMA
    assert batch.to_pylist() == [
        {
            "span_id": 99,
            "commit_ts": ts,
            "start_ts": ts,
            "op": 2,
            "key": b"t\0\0\0\1" + key,
            "value": value,
            "old_value": None,
            "txn_source": 0,
        }
        for ts, key, value in ((500, b"1", tuple_data(["1", "x"])), (600, b"2", tuple_data(["2", None])))
    ]


def test_events_stand_in_the_order_of_the_stream() -> None:
    message = frame(b"M" + struct.pack(">BQ", 0, 30) + b"changefeed\0" + struct.pack(">I", 2) + b"hi")
    inside = frame(b"M" + struct.pack(">BQ", 1, 31) + b"theirs\0" + struct.pack(">I", 0))
    emptied = frame(b"T" + struct.pack(">IBII", 2, 0, 7, 8))
    read = TransactionStream().take(
        message
        + BEGIN
        + DESCRIBED
        + insert("1", "x")
        + inside
        + emptied
        + COMMIT
        + BEGIN
        + DESCRIBED
        + COMMIT
        + keep_alive(60)
    )
    relation = read.events[1]
    assert isinstance(relation, Relation)
    assert (relation.full_name, [column.name for column in relation.columns]) == ("public.t7", ["id", "a"])
    assert read.events == [
        LogicalMessage(30, "changefeed", b"hi", False, None),
        relation,
        LogicalMessage(31, "theirs", b"", True, 3),
        Truncate(3, (7, 8)),
        Commit(3, 40, 48, 946_684_800_000_005),
        Commit(3, 40, 48, 946_684_800_000_005),
        KeepAlive(60, 946_684_800_000_004, True),
    ]
    assert not sum(len(changes.op) for changes in read.changes)  # the Truncate has removed it


def test_what_a_truncate_leaves_of_many_parts_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parts are in the scratch file when the rows go: some have nothing left, others are of another table."""
    monkeypatch.setattr(held_rows, "PART_BYTES", 1)
    machine = TransactionStream(lambda relation: ("id",), partial(LocalFile, Path(tempfile.gettempdir())))
    other = Table(8, "f", ("id", "a"), (0,), 1)
    kept = frame(b"I" + struct.pack(">I", 8) + b"N" + tuple_data(["3", "x"]))
    changed = frame(b"U" + struct.pack(">I", 8) + b"O" + tuple_data(["3", "x"]) + b"N" + tuple_data(["4", "y"]))
    pieces = (
        BEGIN + DESCRIBED + frame(b"R" + other.relation()),
        *(insert(str(number), "x") for number in range(3)),
        kept,
        frame(b"T" + struct.pack(">IBI", 1, 0, 7)) + insert("1", "new"),
        changed + COMMIT,
    )
    found = [changes for piece in pieces for changes in machine.take(piece).changes]
    ops = [dict(zip(each.key.to_pylist(), each.op.tolist(), strict=True)) for each in found]
    assert sorted(ops, key=repr) == [{b"t\0\0\0\1" + b"1": 2}, {b"t\0\0\0\1" + b"4": 2}]


def test_what_stands_beside_the_stream_is_handed_on() -> None:
    read = TransactionStream().take(b"N" + struct.pack(">I", 7) + b"abc" + keep_alive(5) + b"c" + struct.pack(">I", 4))
    assert [(chr(reply.kind), reply.body) for reply in read.replies] == [("N", b"abc"), ("c", b"")]
    assert len(read.events) == 1


def test_a_large_message_is_gathered_without_reading_it_again_and_again() -> None:
    machine = TransactionStream()
    stream = BEGIN + DESCRIBED + insert("1", "x" * 10_000_000) + COMMIT
    found = [machine.take(stream[at : at + 10_000]) for at in range(0, len(stream), 10_000)]
    assert sum(len(changes.op) for read in found for changes in read.changes) == 1


@pytest.mark.parametrize("identity", ["n", "d"])
def test_a_table_without_an_identity_is_refused_by_name(identity: str) -> None:
    table = Table(7, identity, ("id", "a"), (), 1)
    with pytest.raises(NeedsHuman, match=r"public\.t7 can't be told apart: its replica identity is empty"):
        list(TransactionStream().take(BEGIN + frame(b"R" + table.relation()) + insert("1", "x") + COMMIT).changes)


def test_rows_of_tables_that_are_alike_are_not_taken_for_one_another() -> None:
    """They are looked at together: each has its own row 1, and of which one has two is said."""
    other = Table(8, "d", ("id", "a"), (0,), 1)
    described = DESCRIBED + frame(b"R" + other.relation())

    def of_other(kind: bytes, tag: bytes, *cells: Any) -> bytes:
        return frame(kind + struct.pack(">I", 8) + tag + tuple_data([*cells]))

    rows = insert("1", "x") + of_other(b"I", b"N", "1", "y") + insert("2", "x") + of_other(b"D", b"K", "3", None)
    read = TransactionStream().take(BEGIN + described + rows + COMMIT)
    found = [(each.relation.oid, each.batch(1, np.array([9], np.uint64))) for each in read.changes]
    seen = [(oid, row["op"], row["key"][-1:], row["value"][-1:]) for oid, batch in found for row in batch.to_pylist()]
    assert seen == [(7, 2, b"1", b"x"), (7, 2, b"2", b"x"), (8, 2, b"1", b"y"), (8, 0, b"3", b"")]
    twice = BEGIN + described + insert("1", "x") + 2 * of_other(b"I", b"N", "1", "y") + COMMIT
    with pytest.raises(NeedsHuman, match=r"public\.t8 can't be told apart: a transaction changes two"):
        list(TransactionStream().take(twice).changes)


def test_a_row_inserted_twice_is_refused() -> None:
    with pytest.raises(NeedsHuman, match=r"public\.t7 can't be told apart: a transaction changes two"):
        list(TransactionStream().take(BEGIN + DESCRIBED + insert("1", "x") + insert("1", "y") + COMMIT).changes)


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (insert("1", "x"), "OID 7, which it has not described"),
        (DESCRIBED + insert("1"), "has not the 2 columns"),
        (DESCRIBED + insert("1", b"b\0\0\0\0"), "column 2 of no known kind"),
        (DESCRIBED + insert("1", b"t\0\0\0\5x"), "ends within its column 2"),
        (DESCRIBED + insert("1", b"nn"), "no insert, update or delete"),
        (frame(b"?"), "unknown kind"),
        (COMMIT + insert("1", "x") + BEGIN, "a row without its transaction"),
        (COMMIT + COMMIT, "the end of a transaction that has not begun"),
        (BEGIN, "the beginning of a transaction within another"),
        (b"d\0\0\0\2", "length 2"),
        (b"d\0\0\0\5x", "neither changes nor a keep-alive"),
    ],
)
def test_what_no_server_sends_is_refused(broken: bytes, why: str) -> None:
    with pytest.raises(ProtocolViolation, match=why):
        list(TransactionStream().take(BEGIN + broken + COMMIT).changes)
