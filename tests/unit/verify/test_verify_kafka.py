"""Verify holds for right topics, and finds and names every wrong that is done to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from changefeed.cli.sink.verdict import write_verdict
from changefeed.reading.failures import Break, NotVerifiable
from changefeed.verify.kafka import read
from changefeed.verify.kafka.heads import heads
from changefeed.verify.kafka.report import verify
from changefeed.verify.result import MessagesVerdict
from verify_sink import Shop
from verify_topics import HandTopic, changefeed_of, framed

PROTOCOLS = ("canal-json", "open-protocol")
EXTENSION = {"canalJson": {"enableTidbExtension": True}}


def options_of(protocol: str) -> dict[str, Any]:
    return {"protocol": protocol, **(EXTENSION if protocol == "canal-json" else {})}


@pytest.fixture(params=PROTOCOLS)
def topic(request: pytest.FixtureRequest, shop: Shop) -> HandTopic:
    return HandTopic(shop, request.param)


Verify = Callable[..., Any]


@pytest.fixture
def checked(topic: HandTopic, shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verify:
    """Verify the topic as it is by then."""
    monkeypatch.setattr(read, "partitions_of", lambda _, __: len(topic.parts))
    monkeypatch.setattr(read, "read_topics", topic.put)

    async def check(**kafka: Any) -> MessagesVerdict:
        given = options_of(topic.protocol) | {"delivery": "exactly-once"} | kafka
        return await verify(changefeed_of(tmp_path / given["delivery"], shop, **given))

    return check


async def test_right_topics_hold(checked: Verify, shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    result = await checked()
    assert result.first_problem is None
    assert (result.topics, result.partitions, result.tables, result.transactions) == (1, 2, 2, 4)
    assert result.rows == 5 + 5 + 1 + 1 + 1 + 2
    assert result.replayed == 8 + 3
    assert result.checkpoint_ts == str(shop.checkpoint_ts)
    assert result.notes == []
    write_verdict(result.to_json())
    assert "Every promise holds" in capsys.readouterr().out


Harm = Callable[[HandTopic, Shop], tuple[str, str]]  # the counter that must be 1, and what must be said


def drop(topic: HandTopic, shop: Shop) -> tuple[str, str]:
    del topic.parts[1][topic.rows(1)[1]]
    return "missing", "A change of shop.items is in no message: I, commit ts"


def double(topic: HandTopic, shop: Shop) -> tuple[str, str]:
    offset = topic.rows(1)[0]
    topic.parts[1].insert(offset, topic.parts[1][offset])
    return "duplicate", f"Topic shop, partition 1, offset {offset + 1}: a change of shop.items appears again"


def change(topic: HandTopic, shop: Shop) -> tuple[str, str]:
    part = topic.parts[0]
    offset = topic.rows(0)[0]
    key, value = part[offset]
    assert value is not None
    part[offset] = key, harmed(value)
    return "unexpected", f"Topic shop, partition 0, offset {offset}: the upstream has no such change to shop.items"


def harmed(value: bytes) -> bytes:
    """The row's text is another one of the same length."""
    assert b"\\\\N" in value
    return value.replace(b"\\\\N", b"\\\\M")


def swap(topic: HandTopic, shop: Shop) -> tuple[str, str]:
    """Two changes of one key in one partition; no resolved-ts stands in the way."""
    part = topic.parts[1]
    mine = [offset for offset in topic.rows(1) if is_of_key_1(topic, part[offset])]
    one, other = mine[:2]
    part[one], part[other] = part[other], part[one]
    for offset in range(len(part) - 1, 0, -1):
        if offset not in topic.rows(1) and offset < other:
            del part[offset]
    return "out_of_order", "a change of shop.items stands behind a later one of its key: U, commit ts"


def is_of_key_1(topic: HandTopic, message: tuple[bytes | None, bytes | None]) -> bool:
    text = b"".join(side or b"" for side in message)
    wanted = b'"id": "1"' if topic.protocol == "canal-json" else b'"id": {"t": 0, "f": 0, "v": 1}'
    return wanted in text and b'"items"' in text


def early(topic: HandTopic, shop: Shop) -> tuple[str, str]:
    part = topic.parts[0]
    offset = topic.rows(0)[0]
    (ts,) = heads(topic.protocol, [part[offset]])["ts"].to_pylist()
    part.insert(offset, topic.resolved(ts))  # of the row's own ts
    part[offset + 1 :] = [part[each] for each in topic.rows(0)]
    return "early", f"Topic shop, partition 0, offset {offset + 1}: commit ts"


def back(topic: HandTopic, shop: Shop) -> tuple[str, str]:
    topic.parts[1].append(topic.resolved(shop.checkpoint_ts - 1))
    return "went_back", f"resolved-ts {shop.checkpoint_ts - 1} stands behind {shop.checkpoint_ts}"


def ahead(topic: HandTopic, shop: Shop) -> tuple[str, str]:
    topic.parts[0].append(topic.resolved(shop.last_ts))
    return "", f"resolved-ts {shop.last_ts} is above {shop.checkpoint_ts}, the last checkpoint in the log"


def foreign(topic: HandTopic, shop: Shop) -> tuple[str, str]:
    return insert_row(topic, "other", shop.checkpoint_ts)


def from_before(topic: HandTopic, shop: Shop) -> tuple[str, str]:
    return insert_row(topic, "shop", shop.start_ts)


def insert_row(topic: HandTopic, database: str, ts: int) -> tuple[str, str]:
    row = {"database": database, "table": "item", "type": "INSERT", "isDdl": False, "data": [{"id": "1"}]}
    topic.parts[0].insert(0, topic.row({**row, "_tidb": {"commitTs": ts}}))
    return "unexpected", f"Topic shop, partition 0, offset 0: a row of {database}.item, commit ts {ts}, which is no"


def cut(topic: HandTopic, shop: Shop) -> tuple[str, str]:
    key, value = topic.parts[1][-1]
    topic.parts[1][-1] = (key and key[:-3], value and value[:-3])
    return "", f"Topic shop, partition 1, offset {len(topic.parts[1]) - 1} can't be decoded: "


def statement(topic: HandTopic, shop: Shop) -> tuple[str, str]:
    """Return a statement of no DDL of the upstream."""
    ts = shop.start_ts + 1
    message = {"database": "shop", "table": "item", "type": "ALTER", "isDdl": True, "_tidb": {"commitTs": ts}}
    told = (None, json.dumps(message).encode())
    if topic.protocol == "open-protocol":
        told = framed({"ts": ts, "scm": "shop", "tbl": "item", "t": 2}), framed({"q": "ALTER TABLE item", "t": 5})[8:]
    topic.parts[0].insert(0, told)
    return "", f"offset 0: a message of the DDL at {ts} names shop.item, but it is about nothing."


HARMS: dict[str, Harm] = {
    each.__name__: each
    for each in (drop, double, change, swap, early, back, ahead, foreign, from_before, cut, statement)
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
async def test_harm_is_found_and_named(topic: HandTopic, checked: Verify, shop: Shop, harm: Harm) -> None:
    counter, said = harm(topic, shop)
    result = await checked()
    assert not result.ok
    assert said in result.first_problem
    assert not counter or getattr(result, counter) >= 1


async def test_at_least_once_rows_may_come_again_and_are_counted(topic: HandTopic, checked: Verify, shop: Shop) -> None:
    part = topic.parts[1]
    rows = topic.rows(1)[:5]
    part[-1:-1] = [part[offset] for offset in rows]  # behind their resolved-ts
    result = await checked(delivery="at-least-once")
    assert result.first_problem is None
    assert (result.repeated, result.duplicate, result.early, result.out_of_order) == (5, 0, 0, 0)
    result = await checked(delivery="exactly-once")
    assert not result.ok
    assert result.duplicate == 5


async def test_a_topic_that_is_not_there(topic: HandTopic, checked: Verify) -> None:
    topic.parts = []
    result = await checked()
    assert result.first_problem == "Topic shop is not there."
    assert result.missing == 5 + 5 + 1 + 1 + 1 + 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"protocol": "canal-json"}, "enableTidbExtension: true"),
        ({"protocol": "simple"}, "'simple' can't be read back by verify yet"),
        ({"protocol": "debezium"}, "'debezium' can't be read back by verify yet"),
        ({"protocol": "avro", "schemaRegistry": "http://r:1"}, "'avro' can't be read back by verify yet"),
        ({"protocol": "open-protocol", "largeMessages": {"option": "handle-key-only"}}, "largeMessages"),
    ],
    ids=str,
)
async def test_what_can_not_be_read_back_is_refused(
    shop: Shop, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(NotVerifiable, match="can't be") as refused:
        await verify(changefeed_of(tmp_path, shop, **options))
    assert said in refused.value.message + refused.value.next_step


async def test_nothing_has_run(shop: Shop, tmp_path: Path) -> None:
    changefeed = changefeed_of(tmp_path / "a", shop, protocol="open-protocol")
    (tmp_path / "a").rename(tmp_path / "b")
    with pytest.raises(NotVerifiable, match="log is not at"):
        await verify(changefeed)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("protocol", "message", "said"),
    [
        ("canal-json", (None, None), "empty"),
        ("canal-json", (None, b"{"), "JSON"),
        ("canal-json", (None, b"{}\n{}"), "not just one JSON object"),
        ("canal-json", (None, b'{"database":"a","table":"b","type":"INSERT"}'), "of which ts"),
        ("open-protocol", (b"", b""), "protocol's version"),
        ("open-protocol", (framed({"t": 3, "ts": 1})[:-1], b""), "cut off"),
        ("open-protocol", (framed({"t": 4, "ts": 1}), bytes(8)), "neither what it is"),
        ("open-protocol", (framed({"t": 3, "ts": 1}), b""), "shorter|longer"),
    ],
)
def test_what_is_no_message_is_a_break(protocol: str, message: tuple[bytes | None, bytes | None], said: str) -> None:
    with pytest.raises(Break, match=said):
        heads(protocol, [message])


def test_a_message_of_open_protocol_has_several_rows() -> None:
    one, other = ({"ts": ts, "scm": "a", "tbl": f"t{ts}", "t": 1} for ts in (5, 6))
    key, value = framed(one) + framed(other)[8:], framed({"u": {}})[8:] + framed({"d": {}})[8:]
    found = heads("open-protocol", [(framed({"ts": 4, "t": 3}), bytes(8)), (key, value)]).to_pydict()
    assert found["number"] == [0, 1, 1]
    assert found["nth"] == [0, 0, 1]
    assert found["kind"] == ["resolved", "row", "row"]
    assert (found["name"], found["ts"]) == (["", "t5", "t6"], [4, 5, 6])
    assert [json.loads(line)["v"] for line in found["line"]] == [None, {"u": {}}, {"d": {}}]
