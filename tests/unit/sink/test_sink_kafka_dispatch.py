"""Partitions and topics, by TiCDC's own expectations where its tests have them."""

from __future__ import annotations

import random
import zlib
from typing import Any

import pyarrow as pa
import pytest
from changefeed.errors import InvalidSpec, NeedsHuman
from changefeed.sink.kafka.codec.partition import by_key, by_table, by_ts, by_values, crc32_after, partitions_of
from changefeed.sink.kafka.topics import Rule, Rules, check_expression, topic_of
from sink_kafka_rows import records


@pytest.mark.parametrize(("table", "partition"), [("t1", 15), ("t2", 5), ("t3", 3)])
def test_by_table(table: str, partition: int) -> None:
    """The cases are those of TiCDC's TestTableDispatcher."""
    assert by_table("test", table, 2, 16).tolist() == [partition] * 2


@pytest.mark.parametrize(
    ("table", "columns", "partition"),
    [
        ("t1", {"a": 11}, 2),
        ("t1", {"a": 22}, 11),
        ("t2", {"a": 11, "b": 22}, 5),
        ("t2", {"b": 22, "a": 11}, 5),
        ("t2", {"a": 11, "b": 0}, 14),
        ("t2", {"a": 11, "b": 33}, 2),
    ],
)
def test_by_values(table: str, columns: dict[str, int], partition: int) -> None:
    """The cases are those of TiCDC's TestIndexValueDispatcher."""
    chosen = [(name, pa.array([str(value)])) for name, value in columns.items()]
    assert by_values("test", table, chosen, 1, 16).tolist() == [partition]


def test_by_ts() -> None:
    assert by_ts(pa.array([1, 16, 35], pa.uint64()), 16).tolist() == [1, 0, 3]


def test_the_crc_of_many_texts_is_that_of_each() -> None:
    chance = random.Random(1)
    texts = [chance.randbytes(chance.choice([0, 1, 7, 300])) for _ in range(200)]
    array = pa.array([b"before", *texts], pa.binary()).slice(1)
    assert crc32_after(b"name", array).tolist() == [zlib.crc32(b"name" + text) for text in texts]
    assert crc32_after(b"", pa.array([], pa.binary())).tolist() == []


@pytest.mark.parametrize(
    ("key", "number"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_by_key(key: bytes, number: int) -> None:
    """The numbers are those of the test of Kafka's own client, UtilsTest.testMurmur2."""
    others = [b"", b"a longer one than the others, by far, so that it goes first", key[:-1]]
    keys = pa.array([b"before", *others, key, None], pa.binary()).slice(1)
    for partitions in (1, 7, 12):
        found = by_key("shop", "t", keys, partitions).tolist()
        assert found[3] == (number & 0x7FFFFFFF) % partitions
        assert found[4] == by_table("shop", "t", 1, partitions)[0]


def test_records_are_dispatched_by_the_values_that_they_show() -> None:
    made, rows = records(1, 50)
    expected: list[Any] = []
    for _, _, shown, _ in rows:
        said = "null" if shown["v"] is None else shown["v"]
        start = zlib.crc32(b"shopt<1>") ^ zlib.crc32(b"v" + said.encode())
        expected.append(
            (start ^ zlib.crc32(b"tiny" + (b"null" if shown["tiny"] is None else b"%d" % shown["tiny"]))) % 7
        )
    assert partitions_of(made, 7, "columns", columns=["v", "tiny"]).tolist() == expected
    keys = [(zlib.crc32(b"shopt<1>") ^ zlib.crc32(b"id%d" % row["id"])) % 7 for _, _, row, _ in rows]
    assert partitions_of(made, 7, "index-value").tolist() == keys
    assert set(partitions_of(made, 7, "default").tolist()) == {zlib.crc32(b"shopt<1>") % 7}


def test_what_a_table_has_not_it_is_not_dispatched_by() -> None:
    made, _ = records(1, 3)
    with pytest.raises(NeedsHuman, match=r"shop\.t<1> has no index i"):
        partitions_of(made, 7, "index-value", index="i")
    with pytest.raises(NeedsHuman, match="has no column nope"):
        partitions_of(made, 7, "columns", columns=["nope"])


@pytest.mark.parametrize(
    ("expression", "topic"),
    [
        ("{schema}_{table}", "a_b_t_"),
        ("hello_{schema}", "hello_a_b"),
        ("p.{table}-s", "p.t_-s"),
        ("fixed", "fixed"),
        ("{schema}" * 1 + "x" * 300, ("a_b" + "x" * 300)[:249]),
    ],
)
def test_topics(expression: str, topic: str) -> None:
    assert topic_of(expression, "a/b", "t*") == topic


def test_names_that_kafka_does_not_allow() -> None:
    assert (topic_of("{schema}", ".", ""), topic_of("{schema}", "..", "")) == ("_", "__")


@pytest.mark.parametrize("expression", ["{table}_{schema}", "{schem}", "a b", "{schema}{schema}", "ä"])
def test_what_is_no_expression(expression: str) -> None:
    with pytest.raises(InvalidSpec, match="is not a topic expression"):
        check_expression(expression)


def test_avro_needs_a_topic_for_each_table() -> None:
    check_expression("{schema}.{table}", avro=True)
    with pytest.raises(InvalidSpec, match="avro needs both"):
        check_expression("{schema}", avro=True)


def test_the_first_rule_that_matches_decides() -> None:
    rules = Rules([Rule(("shop.o*",), "ts", "orders"), Rule(("shop.*",), "index-value", "{schema}_{table}")], "all")
    assert (rules.topic("shop", "orders"), rules.of("shop", "orders").partition) == ("orders", "ts")
    assert (rules.topic("SHOP", "people"), rules.of("shop", "people").partition) == ("SHOP_people", "index-value")
    assert (rules.topic("other", "t"), rules.of("other", "t").partition) == ("all", "default")
    assert rules.topic("shop") == "all"
