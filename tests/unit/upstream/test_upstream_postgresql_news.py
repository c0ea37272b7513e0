"""What a puller tells of a change of schema comes to the driver as it is."""

from __future__ import annotations

import pytest
from changefeed.errors import ProtocolViolation
from changefeed.upstream.postgresql.pgoutput.messages import Relation, RelationColumn, Truncate
from changefeed.upstream.postgresql.schema.news import content_of, read_content

ORDERS = Relation(
    16_401,
    'sh"op',
    "Größen\n",
    "d",
    (RelationColumn("id", 20, -1, True), RelationColumn("préis", 1700, 655_366, False)),
)


def test_a_relation_comes_back_whole() -> None:
    assert read_content(content_of(ORDERS)) == ORDERS


def test_a_table_without_columns_comes_back() -> None:
    empty = Relation(7, "s", "t", "n", ())
    assert read_content(content_of(empty)) == empty


def test_a_truncation_is_the_tables() -> None:
    assert read_content(content_of(Truncate(731, (16_401, 16_402)))) == (16_401, 16_402)


def test_the_same_is_the_same_bytes() -> None:
    """The transaction's number does not count: it is told again after a restart."""
    assert content_of(Truncate(1, (5,))) == content_of(Truncate(2, (5,)))


@pytest.mark.parametrize(
    "content",
    [
        b"\xff",
        b"{",
        b"[]",
        b"7",
        b'{"truncate":["a"]}',
        b'{"oid":1,"schema":"s","name":"t","identity":"d"}',
        b'{"oid":1,"schema":"s","name":"t","identity":"d","columns":[{"name":"a"}]}',
    ],
)
def test_anything_else_is_refused(content: bytes) -> None:
    with pytest.raises(ProtocolViolation, match=r"A puller tells of a change of schema that can't be read"):
        read_content(content)
