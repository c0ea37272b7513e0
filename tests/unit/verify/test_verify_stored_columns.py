"""Column ids in rows' values: what another definition wrote is seen, and what sessions may write is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from changefeed.schema.table_info import FLAG_NOT_NULL, FLAG_PRI_KEY, STATE_PUBLIC, parse_table_info
from changefeed.verify.upstream.history import SCAN_SCHEMA
from changefeed.verify.upstream.stored_columns import StoredColumns
from changefeed_devcluster.tidb.rows import assemble

WRITE_ONLY = 2


def column(id_: int, nullable: bool = False, state: int = STATE_PUBLIC, flag: int = 0) -> dict[str, Any]:
    flag |= 0 if nullable else FLAG_NOT_NULL
    return {"id": id_, "name": f"c{id_}", "offset": id_, "state": state, "type": {"Tp": 8, "Flag": flag}}


def table(*columns: Mapping[str, Any]) -> dict[str, Any]:
    handle = column(1, flag=FLAG_PRI_KEY)
    return {"id": 5, "name": "t", "cols": [handle, *columns], "state": STATE_PUBLIC, "pk_is_handle": True}


def stored(*states: tuple[int, Mapping[str, Any]], from_ts: int = 100) -> StoredColumns:
    return StoredColumns.of(parse_table_info(states[-1][1], "shop"), from_ts, states)


def versions(rows: Sequence[bytes | None], chunks: int = 1) -> pa.Table:
    """None: a delete. The commit ts is the row's number, from 1."""
    count = len(rows)
    columns = {
        "commit_ts": np.arange(1, count + 1, dtype=np.uint64),
        "start_ts": np.zeros(count, np.uint64),
        "delete": [row is None for row in rows],
        "key": [b"k%d" % number for number in range(count)],
        "value": [row or b"" for row in rows],
        "old_value": pa.nulls(count, pa.binary()),
    }
    made = pa.table(columns, SCAN_SCHEMA)
    size = -(-count // chunks)
    return pa.concat_tables([made.slice(begin, size) for begin in range(0, count, size)])


def row(*ids: int, nulls: Sequence[int] = ()) -> bytes:
    return assemble(dict.fromkeys(ids, b"\x07") | dict.fromkeys(nulls))


T = table(column(2), column(3, nullable=True))
PLAIN = stored((50, T))


@pytest.mark.parametrize(
    "rows",
    [
        [row(2, 3), row(2, nulls=[3]), row(2)],
        [row(2, nulls=[3]), None, row(2, 3)],
        [assemble({2: b"x" * 70_000, 3: b"y"}), row(2)],  # a large one, with wide ids
        [b"\x08\x04\x02", b"\x00"],  # the older format is not looked at
        [bytes([128, 0, 9, 0, 0, 0, 2])],  # cut off: the decoder refuses it
        [None],
    ],
)
def test_rows_of_the_definition(rows: list[bytes | None]) -> None:
    for chunks in (1, 2):
        assert PLAIN.first_sign(versions(rows, chunks)) is None


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (row(2, 3, 9), "has column id 9, which no definition in force then knows"),
        (row(2, nulls=[3, 9]), "has column id 9"),
        (assemble({2: b"x" * 70_000, 300: b"y"}), "has column id 300"),
        (row(3), "lacks column id 2, which is NOT NULL in each definition in force then"),
        (row(3, nulls=[2]), "lacks column id 2"),
        (row(), "lacks column id 2"),
    ],
)
@pytest.mark.parametrize("place", [0, 3, 6])
def test_one_odd_row_among_others_is_named(odd: bytes, said: str, place: int) -> None:
    rows: list[bytes | None] = [row(2, 3), row(2, nulls=[3]), None, row(2), row(2, 3), row(2)]
    rows.insert(place, odd)
    for chunks in (1, 3):
        sign = PLAIN.first_sign(versions(rows, chunks))
        assert sign is not None
        assert (sign.commit_ts, sign.key) == (place + 1, b"k%d" % place)
        assert said in str(sign)


def test_what_a_session_one_state_behind_writes_is_known() -> None:
    """A column that has just gone, and one that comes: with MODIFY COLUMN rows have both."""
    going = table(column(2, state=WRITE_ONLY), column(3))
    gone = table(column(3))
    after = stored((50, T), (90, going), (100, gone))
    assert after.known == {1, 2, 3}
    assert after.needed == {3}
    assert after.first_sign(versions([row(2, 3), row(3)])) is None


def test_columns_of_states_long_gone_are_not_known() -> None:
    long_gone = stored((90, T), (100, table(column(4))), (120, table(column(4), column(5, state=WRITE_ONLY))))
    assert long_gone.known == {1, 2, 3, 4, 5}  # in force up to 100, and since
    assert stored((100, table(column(4)))).known == {1, 4}


def test_a_column_is_needed_while_it_is_public_throughout() -> None:
    coming = table(column(2), column(4, state=WRITE_ONLY))
    assert stored((50, T), (100, table(column(2), column(4)))).needed == {2, 4}
    assert stored((100, T), (110, coming), (120, table(column(2), column(4)))).needed == {2}


def test_columns_that_stand_in_the_key_are_not_needed() -> None:
    assert stored((50, table())).needed == frozenset()
