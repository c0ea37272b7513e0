"""Key hashes, and what the downstream remembers: values that are equal there are never apart here."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from changefeed.errors import (
    DuplicateKey,
    Fenced,
    NeedsHuman,
    OutcomeUnknown,
    Refused,
    StatementRefused,
    StatementTooLarge,
    Transient,
    Unavailable,
    UnknownThing,
)
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.schema import table_info as ti
from changefeed.schema.sql_type import SqlType
from changefeed.sink.contract import Claim
from changefeed.sink.mysql.ddl_record import look
from changefeed.sink.mysql.failures import failure
from changefeed.sink.mysql.progress import Recorded, check, check_ours, decode_nodes, encode_nodes
from changefeed.sink.mysql.rows.keys import TableKeys, handle_numbers
from changefeed.sink.mysql.server import packets
from hypothesis import given
from hypothesis import strategies as st
from sink_mysql_changes import ITEMS, Change, changes_of, column, index, table


def hashes_of(info: ti.TableInfo, rows: list[Change]) -> list[set[int]]:
    """The keys of each row."""
    keys, changes = TableKeys.of(info), changes_of(info, rows)
    found: list[set[int]] = [set() for _ in rows]
    for row, value in zip(*keys.hashes(changes, keys.moved(changes)), strict=True):
        found[row].add(int(value))
    return found


def unique_text(collate: str, length: int = -1, **more: object) -> ti.TableInfo:
    id_ = column("id", SqlType.BIGINT, ti.FLAG_NOT_NULL | ti.FLAG_PRI_KEY)
    return table(
        [id_, column("u", SqlType.VARCHAR, Collate=collate, **more)], [index(("u", length))], pk_is_handle=True
    )


@pytest.mark.parametrize(
    ("collate", "length", "left", "right", "are_equal"),
    [
        ("utf8mb4_bin", -1, "a", "a ", True),
        ("utf8mb4_bin", -1, "a", "A", False),
        ("utf8mb4_general_ci", -1, "é", "E ", True),
        ("utf8mb4_unicode_ci", -1, "straße", "STRASSE", True),
        ("utf8mb4_0900_ai_ci", -1, "É", "e", True),
        ("latin1_swedish_ci", -1, "\u00fc", "y", True),  # unknown to us: any two may be equal
        ("latin1_swedish_ci", -1, "a", "b", True),
        ("utf8mb4_bin", 2, "abc", "abd", True),
        ("utf8mb4_bin", 2, "éac", "éab", True),
    ],
)
def test_texts_are_one_key_where_the_collation_takes_them_for_equal(collate, length, left, right, are_equal) -> None:
    rows = [Change(1, OP_INSERT, (1, left)), Change(1, OP_INSERT, (2, right))]
    first, second = hashes_of(unique_text(collate, length), rows)
    assert bool(first & second) == are_equal


def test_text_that_is_not_utf8_changes_no_hash_of_the_others() -> None:
    info = unique_text("utf8mb4_general_ci")
    (whole,) = hashes_of(info, [Change(1, OP_INSERT, (1, "a"))])
    changes = changes_of(info, [Change(1, OP_INSERT, (1, "A")), Change(1, OP_INSERT, (2, "b"))])
    changes.shown[1] = pa.array([b"A", b"\xff"])
    keys = TableKeys.of(info)
    rows, hashes = keys.hashes(changes, keys.moved(changes))
    assert {int(value) for value in hashes[rows == 0]} == whole
    assert len(hashes) == 4


def test_null_makes_no_key_and_an_update_has_those_of_both_rows() -> None:
    inserted, updated, deleted = hashes_of(
        ITEMS,
        [
            Change(1, OP_INSERT, (1, None, 0)),
            Change(2, OP_UPDATE, (1, "b", 0), (1, "a", 0)),
            Change(3, OP_DELETE, (2, "a", 0)),
        ],
    )
    assert (len(inserted), len(updated), len(deleted)) == (1, 3, 2)
    assert inserted < updated
    assert len(updated & deleted) == 1


def test_all_rows_wait_for_one_another_where_a_unique_key_is_not_seen() -> None:
    id_ = column("id", SqlType.BIGINT, ti.FLAG_NOT_NULL | ti.FLAG_PRI_KEY)
    virtual = column("g", SqlType.BIGINT) | {"generated_expr_string": "`id`"}
    info = table([id_, virtual], [index("g")], pk_is_handle=True)
    first, second = hashes_of(info, [Change(1, OP_INSERT, (1,)), Change(1, OP_INSERT, (2,))])
    assert first == second


@pytest.mark.parametrize("indexes", [[], [index("u")], [index(("k", 2))]])
def test_a_table_whose_rows_cannot_be_told_apart_is_refused(indexes) -> None:
    info = table([column("u", SqlType.VARCHAR), column("k", SqlType.VARCHAR, ti.FLAG_NOT_NULL)], indexes)
    with pytest.raises(NeedsHuman, match=r"shop\.t has no primary key"):
        TableKeys.of(info)


def test_handles_are_told_apart_byte_by_byte() -> None:
    info = table([column("k", SqlType.VARCHAR, ti.FLAG_NOT_NULL, Collate="utf8mb4_general_ci")], [index("k")])
    changes = changes_of(info, [Change(1, OP_INSERT, (text,)) for text in ("a", "A", "a", "b")])
    numbers = handle_numbers(TableKeys.of(info), changes)
    assert numbers[0] == numbers[2]
    assert len(set(numbers.tolist())) == 3


@given(st.sets(st.integers(0, 100_000), min_size=1, max_size=50))
def test_nodes_come_back_as_they_were_stored(nodes) -> None:
    shuffled = np.array(list(nodes), np.int64)
    assert decode_nodes(*encode_nodes(shuffled)).tolist() == sorted(nodes)


def claim(epoch: int, nonce: str, writer: int) -> Claim:
    return Claim("cf", 7, epoch, nonce, writer)


def test_rule_25_who_may_claim() -> None:
    known = Recorded(5, "n", 3)
    for allowed in (claim(5, "n", 3), claim(5, "n", 4), claim(6, "other", 0)):
        check(allowed, known)
    for refused in (claim(4, "n", 9), claim(5, "other", 9), claim(5, "n", 2)):
        with pytest.raises(Fenced, match="Epoch 5, writer 3 has claimed dispatcher 7 of changefeed cf"):
            check(refused, known)


def test_rule_25_who_is_ours() -> None:
    check_ours(claim(5, "n", 3), Recorded(5, "n", 3))
    for other in (Recorded(6, "n", 3), Recorded(5, "m", 3), Recorded(5, "n", 4)):
        with pytest.raises(Fenced):
            check_ours(claim(5, "n", 3), other)


@pytest.mark.parametrize(
    ("number", "committing", "kind", "answered"),
    [
        (1213, False, Transient, True),
        (9007, True, Transient, True),
        (1290, False, Unavailable, True),
        (2013, False, Unavailable, False),
        (2013, True, OutcomeUnknown, False),
        (2026, False, Refused, True),
        (1142, False, Refused, True),
        (1045, False, Refused, True),
        (1129, False, Refused, True),
        (1062, False, DuplicateKey, True),
        (1146, False, UnknownThing, True),
        (1153, False, StatementTooLarge, True),
        (1406, False, StatementRefused, True),
    ],
)
def test_failures_by_what_to_do(number: int, committing: bool, kind: type, answered: bool) -> None:
    error = failure("mysql://h:1", number, "it says", committing)
    assert type(error) is kind
    assert error.answered is answered
    assert str(error).startswith(f"mysql://h:1: it says ({number}). ")


def test_no_message_advises_what_loses_rows() -> None:
    """An empty table, or rows that replace one another."""
    for number in range(1000, 9100):
        said = str(failure("mysql://h:1", number, "it says"))
        assert "safeMode" not in said
        assert "exclude" not in said
        assert "create it" not in said.lower()


def test_statements_go_in_as_few_packets_as_the_server_takes() -> None:
    assert packets([b"BEGIN", b"one", b"two"], 100, "db:3306") == [(b"BEGIN;one;two", 3)]
    assert packets([b"BEGIN", b"one", b"two"], 9, "db:3306") == [(b"BEGIN;one", 2), (b"two", 1)]
    with pytest.raises(NeedsHuman, match=r"db:3306.*5 bytes.*\(4\).*max_allowed_packet"):
        packets([b"one", b"BEGIN"], 4, "db:3306")


def test_counters_that_inserts_change_are_not_how_a_table_looks() -> None:
    plain = b"CREATE TABLE t (id BIGINT) ENGINE=InnoDB"
    assert look(plain + b" AUTO_INCREMENT=7") == look(plain + b" AUTO_INCREMENT=8") == look(plain)
    assert look(plain + b" /*T![auto_rand_base] AUTO_RANDOM_BASE=2001 */") == look(plain)
    assert look(plain + b" COMMENT='b'") != look(plain)
