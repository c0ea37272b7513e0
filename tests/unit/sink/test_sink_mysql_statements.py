"""Statements of any cut of any history, in any order that the schedule allows, give the state of row after row."""

from __future__ import annotations

import sqlite3
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.schema import table_info as ti
from changefeed.schema.sql_type import SqlType
from changefeed.sink.contract import Claim, EntryId
from changefeed.sink.mysql.order.schedule import Chunk, Schedule
from changefeed.sink.mysql.rows import statements
from changefeed.sink.mysql.rows.changes import Rows
from changefeed.sink.mysql.rows.keys import TableKeys
from changefeed.sink.mysql.rows.literals import literals
from changefeed.sink.mysql.rows.statements import ChunkStatements
from hypothesis import given, settings
from hypothesis import strategies as st
from sink_mysql_changes import ITEMS, Change, State, changes_of, column, histories, index, table

CLAIM = Claim("cf", 7, 1, "n", 1)


class Database:
    """SQLite in the place of the server: its REPLACE deletes rows with the same key, too."""

    def __init__(self, rows: State) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.execute("ATTACH ':memory:' AS shop")
        self._connection.execute("CREATE TABLE shop.t (id INTEGER PRIMARY KEY, u TEXT UNIQUE, v INTEGER)")
        self._connection.executemany("INSERT INTO shop.t VALUES (?, ?, ?)", rows.values())

    def run(self, statements: list[bytes]) -> None:
        for statement in statements:
            text, _, has_update = statement.decode().partition(" ON DUPLICATE KEY UPDATE ")
            if has_update:
                text += " ON CONFLICT (id) DO UPDATE SET u=excluded.u, v=excluded.v"
            self._connection.execute(text)

    @property
    def state(self) -> State:
        return {row[0]: row for row in self._connection.execute("SELECT * FROM shop.t")}


def statements_of(rows: list[Change], is_safe: bool = False) -> list[bytes]:
    """In one transaction."""
    changes, keys = changes_of(ITEMS, rows), TableKeys.of(ITEMS)
    return ChunkStatements(keys, changes, keys.moved(changes), is_safe).of(np.arange(len(rows)))


def write(database: Database, rows: list[Change], data: st.DataObject, is_safe: bool) -> None:
    """With three workers, each of which takes and writes when `data` says so."""
    with patch.object(statements, "CONDITIONS", data.draw(st.sampled_from((1, 2, 999)))):
        _write(database, rows, data, is_safe)


def _write(database: Database, rows: list[Change], data: st.DataObject, is_safe: bool) -> None:
    keys, schedule = TableKeys.of(ITEMS), Schedule(3, data.draw(st.integers(1, 5)), 1 << 20)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        if begin < end:
            changes = changes_of(ITEMS, rows[begin:end])
            moved = keys.moved(changes)
            chunk = Chunk(
                CLAIM,
                EntryId(1, 0),
                ChunkStatements(keys, changes, moved, is_safe),
                np.arange(len(changes) + 1),
                np.arange(begin, end),
            )
            schedule.add(chunk, *keys.hashes(changes, moved))
    taken = {}
    while schedule.open_chunks(CLAIM):
        worker = data.draw(st.integers(0, 2))
        if worker in taken:
            batch = taken.pop(worker)
            database.run(batch.chunk.statements.of(batch.rows))
            schedule.written(batch)
        elif (batch := schedule.take(worker)) is not None:
            taken[worker] = batch


@settings(deadline=None, max_examples=300)
@given(histories(), st.data())
def test_each_row_once_gives_the_state_of_row_after_row(history, data) -> None:
    before, rows, after = history
    database = Database(before)
    write(database, rows, data, is_safe=False)
    assert database.state == after


@settings(deadline=None, max_examples=100)
@given(histories(), st.data())
def test_in_safe_mode_rows_may_be_written_again_from_any_transaction_on(history, data) -> None:
    before, rows, after = history
    database = Database(before)
    write(database, rows, data, is_safe=True)
    if rows:
        ts = data.draw(st.sampled_from([row.commit_ts for row in rows]))
        write(database, [row for row in rows if row.commit_ts >= ts], data, is_safe=True)
    assert database.state == after


def test_only_the_last_state_of_a_row_is_written() -> None:
    rows = [
        Change(1, OP_INSERT, (1, "a", 1)),
        Change(2, OP_UPDATE, (1, "a", 2), (1, "a", 1)),
        Change(2, OP_UPDATE, (2, "b", 9), (2, "b", 8)),
        Change(3, OP_INSERT, (3, None, 0)),
        Change(4, OP_DELETE, (3, None, 0)),
        Change(5, OP_DELETE, (4, "c", 0)),
    ]
    assert statements_of(rows) == [
        b"DELETE FROM `shop`.`t` WHERE `id` IN (4)",
        b"INSERT INTO `shop`.`t` (`id`,`u`,`v`) VALUES (2,'b',9)"
        b" ON DUPLICATE KEY UPDATE `id`=VALUES(`id`),`u`=VALUES(`u`),`v`=VALUES(`v`)",
        b"INSERT INTO `shop`.`t` (`id`,`u`,`v`) VALUES (1,'a',2)",
    ]


def test_safe_mode_has_no_insert() -> None:
    rows = [Change(1, OP_INSERT, (1, "a", 1)), Change(1, OP_INSERT, (2, "it's", 1)), Change(2, OP_DELETE, (1, "a", 1))]
    assert statements_of(rows, is_safe=True) == [
        b"DELETE FROM `shop`.`t` WHERE `id` IN (1)",
        b"REPLACE INTO `shop`.`t` (`id`,`u`,`v`) VALUES (2,'it''s',1)",
    ]


def test_a_statement_has_few_rows_and_few_bytes() -> None:
    rows = [Change(1, OP_INSERT, (number, "x" * 1_000, 1)) for number in range(2_500)]
    rows += [Change(1, OP_DELETE, (number, None, 1)) for number in range(2_500, 5_000)]
    found = statements_of(rows)
    assert max(map(len, found)) < (1 << 20) + 10_000
    deleted = [statement.count(b",") + 1 for statement in found if statement.startswith(b"DELETE")]
    assert (deleted, sum(statement.count(b"(") - 1 for statement in found[3:])) == ([999, 999, 502], 2_500)


def test_rows_with_a_key_of_several_columns_are_found_by_each() -> None:
    two = table(
        [column("a", SqlType.INT, ti.FLAG_NOT_NULL), column("b`", SqlType.VARCHAR, ti.FLAG_NOT_NULL)],
        [index("a", "b`", primary=True)],
    )
    changes = changes_of(two, [Change(1, OP_DELETE, (1, "x")), Change(1, OP_DELETE, (2, "y"))])
    keys = TableKeys.of(two)
    (statement,) = ChunkStatements(keys, changes, keys.moved(changes), False).of(np.arange(2))
    assert statement == b"DELETE FROM `shop`.`t` WHERE (`a`=1 AND `b```='x') OR (`a`=2 AND `b```='y')"


def column_of(tp: int, **more: object) -> ti.ColumnInfo:
    return table([column("c", tp, ti.FLAG_NOT_NULL, **more)], []).columns[0]


@pytest.mark.parametrize(
    ("described", "values", "texts"),
    [
        (column_of(SqlType.FLOAT), pa.array([0.1, 3.4028234663852886e38, None], pa.float32()), [
            b"0.10000000149011612e0", b"3.4028234663852886e+38", b"NULL"]),
        (column_of(SqlType.DOUBLE), pa.array([1.0, -0.0, 5e-324]), [b"1e0", b"-0e0", b"5e-324"]),
        (column_of(SqlType.DECIMAL), pa.array(["-1.50"]), [b"-1.50"]),
        (column_of(SqlType.TEXT, Charset="binary"), pa.array([b"\x00'", b""]), [b"x'0027'", b"x''"]),
        (column_of(SqlType.VARCHAR), pa.array([b"\xff'", None]), [b"'\xff'''", b"NULL"]),
        (column_of(SqlType.JSON), pa.array(['{"a": "\\""}']), [b"""'{"a": "\\""}'"""]),
    ],
)  # fmt: skip
def test_literals(described: ti.ColumnInfo, values: pa.Array, texts: list[bytes]) -> None:
    assert literals(described, values).to_pylist() == texts


def test_a_batch_has_no_more_rows_and_bytes_than_it_may() -> None:
    rows: Rows = np.arange(10)
    keys, changes = TableKeys.of(ITEMS), changes_of(ITEMS, [Change(1, OP_INSERT, (n, None, 0)) for n in range(10)])
    statements = ChunkStatements(keys, changes, keys.moved(changes), False)
    for limits, sizes in (((4, 1 << 20), [4, 4, 2]), ((100, 3 * len("(1,NULL,0),")), [3, 3, 3, 1]), ((5, 1), [1] * 10)):
        schedule = Schedule(1, *limits)
        schedule.add(
            Chunk(CLAIM, EntryId(1, 0), statements, np.arange(11), rows), *keys.hashes(changes, keys.moved(changes))
        )
        found = []
        while (batch := schedule.take(0)) is not None:
            found.append(batch)
        assert [len(batch.nodes) for batch in found] == sizes
        assert np.concatenate([batch.rows for batch in found]).tolist() == rows.tolist()


def test_two_updates_hand_a_unique_value_on_though_the_second_is_in_a_later_batch() -> None:
    """The row that has had the value goes for a moment, and comes back by its own update."""
    database = Database({1: (1, "a", 0), 2: (2, "x", 0)})
    took, handed = Change(1, OP_UPDATE, (2, "b", 0), (2, "x", 0)), Change(2, OP_UPDATE, (1, "b", 0), (1, "a", 0))
    database.run(statements_of([took, handed]))
    assert database.state == {1: (1, "b", 0)}
    database.run(statements_of([Change(2, OP_UPDATE, (2, "c", 0), (2, "b", 0))]))
    assert database.state == {1: (1, "b", 0), 2: (2, "c", 0)}
