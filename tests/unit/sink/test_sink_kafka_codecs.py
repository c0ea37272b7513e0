"""Messages are read by small decoders of their own, which give the rows back that were encoded."""

from __future__ import annotations

import base64
import json
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from changefeed.errors import NeedsHuman
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.objectstore.local import LocalStore
from changefeed.schema.ddl.actions import Action
from changefeed.schema.sql_type import SqlType
from changefeed.sink.kafka.codec.avro.codec import Avro
from changefeed.sink.kafka.codec.canal import CanalJson
from changefeed.sink.kafka.codec.debezium.codec import Debezium
from changefeed.sink.kafka.codec.large import Limit, encoded, keeper
from changefeed.sink.kafka.codec.message import DdlEvent, Message, MessageCodec
from changefeed.sink.kafka.codec.open_protocol import OpenProtocol, frame
from changefeed.sink.kafka.codec.simple import Simple
from changefeed.sink.records import Records, narrowed, sliced, taken
from changefeed.sink.text.canal_json import CanalJsonFormat
from sink_kafka_rows import BUILD_MS, ELEMS, FLOATS, ROWS, SEEDS, SOURCE, number, pairs, records, table


@pytest.mark.parametrize("seed", SEEDS)
def test_canal_json(seed: int) -> None:
    made, rows = records(seed, ROWS)
    fmt = CanalJsonFormat(terminator="", enable_tidb_extension=True)
    for (key, value), (op, ts, shown, before) in zip(
        pairs(CanalJson(fmt).rows(made, SOURCE, BUILD_MS)), rows, strict=True
    ):
        said = json.loads(value)
        assert key is None
        assert said["_tidb"] == {"commitTs": ts}
        assert (said["data"][0]["id"], said["data"][0]["v"]) == (str(shown["id"]), shown["v"])
        assert said["type"] == {OP_DELETE: "DELETE", OP_UPDATE: "UPDATE", OP_INSERT: "INSERT"}[op]
        assert (said["old"] is None) == (before is None)


def open_value(name: str, value: Any) -> Any:
    """As a reader of the protocol understands it."""
    if value is None:
        return None
    if name == "b":
        return base64.b64decode(value)
    if name == "vb":
        return value.encode("latin-1").decode("unicode_escape").encode("latin-1") if value.isascii() else value.encode()
    return number(name, value) if name in FLOATS else value


def as_read(name: str, value: Any) -> Any:
    return number(name, value) if name in FLOATS and value is not None else value


def unframed(key: bytes, value: bytes) -> list[tuple[bytes, bytes]]:
    version, rest = struct.unpack(">Q", key[:8])[0], key[8:]
    assert version == 1
    found = []
    while rest:
        (size,), (value_size,) = struct.unpack(">Q", rest[:8]), struct.unpack(">Q", value[:8])
        found.append((rest[8 : 8 + size], value[8 : 8 + value_size]))
        rest, value = rest[8 + size :], value[8 + value_size :]
    assert not value
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_the_open_protocol(seed: int) -> None:
    made, rows = records(seed, ROWS)
    partitions = np.array([place % 3 for place in range(ROWS)], np.int32)
    framed, of_partition = frame(OpenProtocol().rows(made, SOURCE, BUILD_MS), partitions, 4, 3000)
    read: dict[int, list[tuple[bytes, bytes]]] = {0: [], 1: [], 2: []}
    for (key, value), partition in zip(pairs(framed), of_partition.tolist(), strict=True):
        found = unframed(key, value)
        assert len(found) <= 4
        assert len(found) == 1 or len(key) + len(value) <= 3000
        read[partition] += found
    for place, (op, ts, shown, before) in enumerate(rows):
        key, value = read[place % 3].pop(0)
        said = json.loads(value)
        assert json.loads(key) == {"ts": ts, "scm": "shop", "tbl": "t<1>", "t": 1}
        side = said["d" if op == OP_DELETE else "u"]
        assert {
            name: open_value(name, cell["v"])
            for name, cell in side.items()
            if name != "vb" or cell["v"] is None or cell["v"].isascii()
        }.items() <= {name: as_read(name, value) for name, value in shown.items()}.items()
        assert ("p" in said) == (before is not None)
        if before is not None:
            assert said["p"]["big"]["v"] == before["big"]
    assert side["id"] == {"t": SqlType.BIGINT, "h": True, "f": 2 | 8, "v": ROWS - 1}
    assert side["big"]["f"] == 64 | 128
    assert side["b"]["f"] == 64 | 1


def test_the_open_protocol_tells_changed_columns_alone() -> None:
    made, rows = records(3, ROWS)
    codec = OpenProtocol(only_output_updated_columns=True)
    for (_, value), (_, _, shown, before) in zip(pairs(codec.rows(made, SOURCE, BUILD_MS)), rows, strict=True):
        if before is not None:
            changed = {name for name in before if before[name] != shown[name]}
            assert set(json.loads(value)["p"]) == changed


@pytest.mark.parametrize("seed", SEEDS)
def test_simple(seed: int) -> None:
    made, rows = records(seed, ROWS)
    for (key, value), (op, ts, shown, before) in zip(
        pairs(Simple("Asia/Tokyo").rows(made, SOURCE, BUILD_MS)), rows, strict=True
    ):
        said = json.loads(value)
        assert key is None
        assert list(said)[:8] == [
            "version",
            "database",
            "table",
            "tableID",
            "type",
            "commitTs",
            "buildTs",
            "schemaVersion",
        ]
        assert (said["tableID"], said["commitTs"], said["schemaVersion"]) == (77, ts, 400)
        side = said["old" if op == OP_DELETE else "data"]
        assert list(side) == sorted(side)
        check_simple(side, shown)
        if before is not None:
            check_simple(said["old"], before)
        assert ("data" in said) == (op != OP_DELETE)


def check_simple(side: dict[str, Any], row: dict[str, Any]) -> None:
    for name, value in row.items():
        if value is None:
            assert side[name] is None
        elif name == "ts":
            assert side[name] == {"location": "Asia/Tokyo", "value": value}
        elif name in ("b", "vb"):
            assert base64.b64decode(side[name]) == value
        elif name in FLOATS:
            assert number(name, side[name]) == number(name, value)
        else:
            assert side[name] == str(value)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("with_schema", [True, False])
def test_debezium(seed: int, with_schema: bool) -> None:
    made, rows = records(seed, ROWS)
    codec = Debezium("feed-1", with_schema=with_schema)
    for (key, value), (op, ts, shown, before) in zip(pairs(codec.rows(made, SOURCE, BUILD_MS)), rows, strict=True):
        said = json.loads(value)
        payload = said["payload"]
        assert json.loads(key)["payload"] == {"id": shown["id"]}
        assert payload["op"] == {OP_DELETE: "d", OP_UPDATE: "u", OP_INSERT: "c"}[op]
        assert (payload["source"]["commit_ts"], payload["source"]["ts_ms"]) == (ts, ts >> 18)
        sides = {OP_DELETE: (shown, None), OP_UPDATE: (before, shown), OP_INSERT: (None, shown)}[op]
        for name, row in zip(("before", "after"), sides, strict=True):
            assert (payload[name] is None) == (row is None)
            if row is not None:
                check_debezium(payload[name], row)
        assert ("schema" in said) == with_schema
    if with_schema:
        fields = {field["field"]: field for field in said["schema"]["fields"][0]["fields"]}
        assert list(fields) == [column.name for column in table().output_columns]
        assert fields["at"]["name"] == "io.debezium.time.MicroTimestamp"
        assert said["schema"]["name"] == "feed_1.shop.t<1>.Envelope"


def check_debezium(side: dict[str, Any], row: dict[str, Any]) -> None:  # noqa: C901 - a branch for each type
    for name, value in row.items():
        found = side[name]
        if value is None:
            assert found is None, name
        elif name in ("b", "vb"):
            assert base64.b64decode(found) == value
        elif name in FLOATS:
            assert number(name, found) == number(name, value)
        elif name == "dec":
            assert found == float(value)
        elif name == "day":
            assert date(1970, 1, 1) + timedelta(found) == date.fromisoformat(value)
        elif name == "at":
            epoch = datetime(1970, 1, 1, tzinfo=UTC)
            assert epoch + timedelta(microseconds=found) == datetime.fromisoformat(value).replace(tzinfo=UTC)
        elif name == "ts":
            assert found == value.replace(" ", "T") + "Z"
        elif name == "time":
            hours, minutes, seconds = value.removeprefix("-").split(":")
            size = (int(hours) * 60 + int(minutes)) * 60 * 10**6 + int(Decimal(seconds) * 10**6)
            assert found == (-size if value.startswith("-") else size)
        elif name == "bits":
            assert int.from_bytes(base64.b64decode(found), "little") == value
        elif name == "big":
            assert found % (1 << 64) == value
        elif name == "e":
            assert found == ["", *ELEMS][value]
        else:
            assert found == value, name


EVENT = DdlEvent(
    Action.ADD_COLUMN, 'ALTER TABLE t ADD c INT DEFAULT "<1>"', "shop", "t<1>", 5 << 18, table(), table(), 9
)


def test_ddl_messages() -> None:
    canal = CanalJson(CanalJsonFormat(terminator="", enable_tidb_extension=True)).ddl(EVENT, BUILD_MS)
    value = parts(canal)[1]
    assert json.loads(value)["_tidb"] == {"commitTs": 5 << 18}
    assert b'"isDdl":true,"type":"ALTER","es":5,' in value
    assert CanalJson().ddl(EVENT, BUILD_MS) is None
    assert b'"isDdl":true,"type":"ALTER","es":5,' in parts(CanalJson(ddls=True).ddl(EVENT, BUILD_MS))[1]
    key, value = parts(OpenProtocol().ddl(EVENT, BUILD_MS))
    ((key, value),) = unframed(key, value)
    assert json.loads(key) == {"ts": 5 << 18, "scm": "shop", "tbl": "t<1>", "t": 2}
    assert json.loads(value) == {"q": EVENT.query, "t": 5}
    simple = json.loads(parts(Simple().ddl(EVENT, BUILD_MS))[1])
    assert (simple["type"], simple["sql"], simple["tableSchema"]["version"]) == ("ALTER", EVENT.query, 9)
    assert simple["tableSchema"]["indexes"][0]["columns"] == ["id"]
    assert Debezium("c").ddl(EVENT, BUILD_MS) is None
    said = json.loads(parts(Debezium("c", ddls=True).ddl(EVENT, BUILD_MS))[1])
    assert said["payload"]["ddl"] == EVENT.query
    assert said["schema"]["name"] == "c.ddl.Envelope"
    assert Avro(lambda subject, schema: 1).ddl(EVENT, BUILD_MS) is None


def parts(message: Message | None) -> tuple[bytes, bytes]:
    assert message is not None
    return message.key or b"", message.value or b""


def test_watermarks() -> None:
    assert CanalJson().resolved(7 << 18, BUILD_MS) is None
    canal = CanalJson(CanalJsonFormat(terminator="", enable_tidb_extension=True)).resolved(7 << 18, BUILD_MS)
    assert json.loads(parts(canal)[1])["_tidb"] == {"watermarkTs": 7 << 18}
    assert json.loads(parts(canal)[1])["type"] == "TIDB_WATERMARK"
    ((key, value),) = unframed(*parts(OpenProtocol().resolved(7, BUILD_MS)))
    assert (json.loads(key), value) == ({"ts": 7, "t": 3}, b"")
    assert parts(Simple().resolved(7, BUILD_MS))[1] == (
        b'{"version":1,"type":"WATERMARK","commitTs":7,"buildTs":1700000000000}'
    )
    assert Debezium("c").resolved(7 << 18, BUILD_MS) is None
    key, value = parts(Debezium("c", watermarks=True).resolved(7 << 18, BUILD_MS))
    payload = json.loads(value)["payload"]
    assert (payload["op"], payload["source"]["commit_ts"]) == ("m", 7 << 18)
    assert json.loads(key)["schema"]["name"] == "c.watermark.Key"
    assert [field["field"] for field in json.loads(value)["schema"]["fields"]] == [
        "before",
        "after",
        "source",
        "op",
        "ts_ms",
        "transaction",
    ]
    bare = parts(Debezium("c", with_schema=False, watermarks=True).resolved(7 << 18, BUILD_MS))
    assert bare[0] == b'{"payload":{}}'
    assert list(json.loads(bare[1])) == ["payload"]


def test_a_bootstrap_tells_the_definition() -> None:
    said = json.loads(parts(Simple().bootstrap(table(), 9, BUILD_MS))[1])
    columns = {column["name"]: column for column in said["tableSchema"]["columns"]}
    assert said["type"] == "BOOTSTRAP"
    assert columns["e"]["dataType"]["elements"] == ELEMS
    assert columns["big"]["dataType"]["unsigned"] is True
    assert columns["id"]["nullable"] is False


TELLING: list[MessageCodec] = [
    CanalJson(CanalJsonFormat(terminator="", enable_tidb_extension=True)),
    OpenProtocol(),
    Simple(),
]


@pytest.mark.parametrize("codec", TELLING, ids=lambda codec: type(codec).__name__)
def test_a_message_that_is_too_large(codec: MessageCodec, tmp_path: Any) -> None:
    made, _ = records(2, ROWS)
    whole = codec.rows(made, SOURCE, BUILD_MS)
    sizes = [len(key or b"") + len(value) for key, value in pairs(whole)]
    most = sorted(sizes)[-3]
    with pytest.raises(NeedsHuman, match=f"message of {sizes[sizes.index(next(s for s in sizes if s > most))]} bytes"):
        encoded(codec, made, SOURCE, BUILD_MS, Limit(most + 60))
    store = LocalStore(tmp_path)
    for way, member in (("handle-key-only", "andleKey"), ("claim-check", "laimCheckLocation")):
        limit = Limit(most + 60, way, keeper(store))  # type: ignore[arg-type]
        found = pairs(encoded(codec, made, SOURCE, BUILD_MS, limit))
        for place, ((key, value), before) in enumerate(zip(found, pairs(whole), strict=True)):
            if sizes[place] <= most:
                assert (key, value) == before
                continue
            told = (key or b"") + value
            assert (b'"ohk":true' if isinstance(codec, OpenProtocol) else member.encode()) in told
            assert b'"sure"' not in told
            if way == "claim-check":
                (path,) = [word for word in told.decode().split('"') if word.startswith("file:")]
                kept = json.loads(store.get(path.rsplit("/", 1)[1]).body)
                assert base64.b64decode(kept["value"]) == before[1]


def test_a_message_counts_with_what_it_has_beside_key_and_value() -> None:
    made, _ = records(2, ROWS)
    largest = max(len(value) for _, value in pairs(Simple().rows(made, SOURCE, BUILD_MS)))
    assert len(encoded(Simple(), made, SOURCE, BUILD_MS, Limit(largest + 60)).values) == ROWS
    with pytest.raises(NeedsHuman, match=f"of {largest} bytes; {largest + 59} are allowed"):
        encoded(Simple(), made, SOURCE, BUILD_MS, Limit(largest + 59))


def test_protocols_without_a_form_for_them_refuse_large_messages() -> None:
    made, _ = records(2, ROWS)
    with pytest.raises(NeedsHuman, match="Raise maxMessageBytes"):
        encoded(Debezium("c"), made, SOURCE, BUILD_MS, Limit(1000, "handle-key-only"))


def test_a_retry_gives_the_same_bytes_however_chunks_are_cut() -> None:
    made, _ = records(4, ROWS)
    for codec in (*TELLING, Debezium("c"), Avro(lambda subject, schema: 1)):
        whole = codec.rows(made, SOURCE, BUILD_MS)
        pieces = [codec.rows(sliced(made, start, 7), SOURCE, BUILD_MS) for start in range(0, ROWS, 7)]
        assert whole.values.equals(pa.concat_arrays([piece.values for piece in pieces]))
        assert whole.keys.equals(pa.concat_arrays([piece.keys for piece in pieces]))


def with_column(name: str, values: list[Any], kind: pa.DataType) -> Records:
    """As many inserts, whose column has these values."""
    made, _ = records(8, ROWS)
    one = narrowed(taken(made, np.flatnonzero(made.op == OP_INSERT)[: len(values)]), frozenset({"id", name}))
    one.columns[1] = pa.array(values, kind)
    return one


ALL: list[MessageCodec] = [*TELLING, Debezium("c"), Avro(lambda subject, schema: 1)]


@pytest.mark.parametrize("codec", ALL, ids=lambda codec: type(codec).__name__)
def test_text_that_is_not_utf_8_breaks_no_message(codec: MessageCodec) -> None:
    made = with_column("v", [b"a\xffb", b"ok", None], pa.binary())
    values = codec.rows(made, SOURCE, BUILD_MS).values.to_pylist()
    assert len(values) == 3
    if isinstance(codec, Avro):
        assert b"a\xffb" in values[0]
    else:
        assert "a\ufffdb" in json.dumps(json.loads(values[0]), ensure_ascii=False)


def after(name: str, values: list[Any], kind: pa.DataType) -> list[Any]:
    found = Debezium("c", with_schema=False).rows(with_column(name, values, kind), SOURCE, BUILD_MS).values
    return [json.loads(value)["payload"]["after"][name] for value in found.to_pylist()]


def test_days_that_debezium_does_not_know() -> None:
    assert after("day", ["0000-00-00", "2026-02-00", "0018-01-01", "0099-01-01", None], pa.string()) == [
        None,
        None,
        (date(2018, 1, 1) - date(1970, 1, 1)).days,
        (date(1999, 1, 1) - date(1970, 1, 1)).days,
        None,
    ]
    assert after("ts", ["0000-00-00 00:00:00.000"], pa.string()) == ["1970-01-01T00:00:00Z"]


def test_binary_text_is_quoted_as_go_does() -> None:
    made = with_column("vb", [b'\x07"\x00\xff\\', "ü\u200b".encode(), b"ok"], pa.binary())
    found = OpenProtocol().rows(made, SOURCE, BUILD_MS).values.to_pylist()
    said = [json.loads(value)["u"]["vb"]["v"] for value in found]
    assert said == ['\\a\\"\\x00\\xff\\\\', "ü\\u200b", "ok"]
