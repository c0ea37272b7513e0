"""Repeats, splitting, bounds and the order of rows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from changefeed.errors import ProtocolViolation
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE, Position
from changefeed.pipeline.sorter import Sorted, sort_rows
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import FLAG_NOT_NULL, FLAG_PRI_KEY
from pipeline_rows import PEOPLE, Row, column, delete, index, insert, key, make_table, raw, segment, update, with_index

UNIQUE = with_index(PEOPLE, index("k"))
EVERYTHING = (Position.end_of(0), Position.end_of(1 << 63))


def order(*segments: Sequence[Row], table=PEOPLE, bounds=EVERYTHING, split=True) -> Sorted:
    return sort_rows([(segment(n), raw(rows)) for n, rows in enumerate(segments)], table, *bounds, split=split)


def positions(found: Sorted) -> list[tuple[int, int, int, bytes]]:
    rows = found.rows.to_pylist()
    return [(row["commit_ts"], row["start_ts"], row["op"], row["key"]) for row in rows]


def test_rule_4_a_row_that_stands_in_two_segments_comes_once():
    found = order([insert(5, 1), insert(6, 2)], [insert(6, 2), insert(7, 3)], [insert(6, 2)])
    assert [p[0] for p in positions(found)] == [5, 6, 7]
    assert found.raw_rows == 3


def test_rule_4_rows_that_come_in_order_are_searched_for_repeats_too():
    found = order([insert(5, 1), insert(5, 2)], [insert(5, 2), insert(6, 1)])
    assert (found.rows.num_rows, found.raw_rows) == (3, 3)


def test_rule_4_one_key_at_two_commit_ts_and_two_keys_at_one_are_no_repeats():
    assert order([insert(5, 1), insert(5, 2)], [update(6, 1, (0, "n"), (0, "m"))]).raw_rows == 3


@pytest.mark.parametrize(
    ("copy", "member"),
    [
        (insert(5, 1, name="other"), "value"),
        (insert(5, 1, start_ts=2), "start_ts"),
        (Row(5, OP_UPDATE, 1, insert(5, 1).value, None), "op"),
        (Row(5, OP_INSERT, 1, insert(5, 1).value, b"old"), "old_value"),
    ],
)
def test_rule_4_copies_that_differ_name_both_segments(copy, member):
    with pytest.raises(ProtocolViolation) as caught:
        order([insert(4, 9), insert(5, 1)], [insert(8, 9)], [copy])
    message = caught.value.message
    assert "/events/0.arrow" in message
    assert "/events/2.arrow" in message
    assert "/events/1.arrow" not in message
    assert key(1).hex() in message
    assert f"different {member}." in message


def test_rule_12_the_order_is_commit_ts_then_start_ts_then_deletes_first_then_key():
    rows = [
        insert(5, 1, start_ts=2),
        insert(5, 9, start_ts=1),
        delete(5, 10, start_ts=1),
        insert(4, 20),
        insert(5, 8, start_ts=1),
        update(5, 7, (0, "a"), (0, "b")),
    ]
    expected = sorted((row.commit_ts, row.start_ts, row.op, key(row.handle)) for row in rows)
    assert positions(order(rows)) == expected
    assert positions(order(rows[:3], rows[3:])) == expected


@pytest.mark.parametrize("other", [insert(5, 9), delete(5, 9), delete(5, 1)], ids=["insert", "delete", "delete-before"])
def test_rule_12_an_update_of_a_unique_key_is_a_delete_before_every_insert(other):
    found = order([update(5, 3, (1, "a"), (2, "a")), other], table=UNIQUE)
    assert positions(found) == sorted(
        [(5, 1, OP_DELETE, key(3)), (5, 1, OP_INSERT, key(3)), (5, 1, other.op, key(other.handle))]
    )
    assert found.raw_rows == 2
    delete_row = found.rows.to_pylist()[[p[2:] for p in positions(found)].index((OP_DELETE, key(3)))]
    assert delete_row["old_value"] == update(5, 3, (1, "a"), (2, "a")).old_value


@pytest.mark.parametrize(
    ("table", "split"),
    [
        (PEOPLE, True),  # no unique key but the handle
        (UNIQUE, False),  # output-raw-change-event
        (with_index(PEOPLE, index("k", unique=False)), True),
        (with_index(PEOPLE, index("k", "name")), True),  # name may be NULL
    ],
    ids=["no-key", "raw-change-event", "not-unique", "nullable"],
)
def test_updates_stay_whole_without_a_not_null_unique_key(table, split):
    found = order([update(5, 3, (1, "a"), (2, "b"))], table=table, split=split)
    assert [p[2] for p in positions(found)] == [OP_UPDATE]


def test_updates_of_other_columns_stay_whole():
    rows = [update(5, 3, (1, "a"), (1, "b")), update(5, 4, (1, "a"), (2, "a")), update(5, 5, (7, None), (7, "a"))]
    found = order(rows, table=UNIQUE)
    assert [(p[2], p[3]) for p in positions(found)] == [
        (OP_DELETE, key(4)),
        (OP_UPDATE, key(3)),
        (OP_UPDATE, key(5)),
        (OP_INSERT, key(4)),
    ]


def test_a_text_column_in_a_composite_unique_key_splits_too():
    columns = [
        column(1, "id", SqlType.BIGINT, FLAG_NOT_NULL | FLAG_PRI_KEY),
        column(2, "k", SqlType.BIGINT, FLAG_NOT_NULL),
    ]
    table = make_table([*columns, column(3, "name", SqlType.VARCHAR, FLAG_NOT_NULL)], index_info=[index("id", "name")])
    found = order([update(5, 3, (1, "a"), (1, "A")), update(5, 4, (1, "a"), (2, "a"))], table=table)
    assert [p[2] for p in positions(found)] == [OP_DELETE, OP_UPDATE, OP_INSERT]


def test_rows_outside_the_entry_are_ignored():
    rows = [insert(ts, ts) for ts in range(1, 9)]
    found = order(rows, bounds=(Position.end_of(3), Position.end_of(6)))
    assert [p[0] for p in positions(found)] == [4, 5, 6]
    assert found.raw_rows == 3


def test_bounds_inside_a_transaction_are_positions_after_splitting():
    rows = [update(5, 3, (1, "a"), (2, "a")), update(5, 4, (1, "a"), (2, "a")), insert(4, 1), insert(6, 1)]
    middle = Position(5, 1, OP_DELETE, key(4))
    first = order(rows, table=UNIQUE, bounds=(Position.end_of(4), middle))
    second = order(rows, table=UNIQUE, bounds=(middle, Position.end_of(5)))
    assert [p[2] for p in positions(first)] == [OP_DELETE, OP_DELETE]
    assert [p[2] for p in positions(second)] == [OP_INSERT, OP_INSERT]


def test_no_segments_and_no_rows_are_no_rows():
    assert order().rows.num_rows == 0
    assert order([], []).rows.num_rows == 0
    assert order([insert(5, 1)], bounds=(Position.end_of(5), Position.end_of(6))).raw_rows == 0
