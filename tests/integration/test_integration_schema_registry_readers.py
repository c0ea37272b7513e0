"""Topics of real avro runs, by way of real registries, read by fastavro and by Flink's avro-confluent."""

from __future__ import annotations

import base64
import io
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pytest
from changefeed_devcluster.tidb.schema import NewColumn
from conftest import Changefeed, Upstream
from integration_flink_reader import Change, FlinkReader, flink_avro_reader
from integration_java import FETCH_S
from integration_kafka_broker import Broker, consumed, running
from integration_registry import RELEASES, RegistryServer, Release, version_of
from integration_types import DEFAULTS, NULL, ZONE, Cell, Kind, plain
from test_integration_types import Model, write_everything

pytestmark = pytest.mark.timeout(FETCH_S + 180)

Row = dict[str, Any]
Pair = tuple[bytes | None, bytes | None]
BLOB = 2004
FLINK = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "year"), "INT"),
    **dict.fromkeys(("bigint", "int unsigned", "int unsigned zerofill"), "BIGINT"),
    "float": "FLOAT",
    "double": "DOUBLE",
}
LARGEST = 38  # digits of a DECIMAL that Flink knows


@pytest.fixture(params=RELEASES, ids=version_of)
def server(request: pytest.FixtureRequest, every_registry: Callable[[Release], RegistryServer]) -> RegistryServer:
    return every_registry(request.param)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="module")
def flink(tmp_path_factory: pytest.TempPathFactory) -> FlinkReader:
    return flink_avro_reader(tmp_path_factory.mktemp("classes"))


def prepared(changefeed: Changefeed, broker: Broker, server: RegistryServer, name: str, **avro: str) -> str:
    """The prefix of its topics."""
    prefix = f"{name}_{server.release.version.replace('.', '_')}"
    changefeed.spec["sink"] = {
        "kafka": {
            "uri": f"kafka://{broker.cluster.brokers}/{prefix}",
            "protocol": "avro",
            "schemaRegistry": server.uri,
            "dispatchers": [{"matcher": ["*.*"], "topic": f"{prefix}_{{schema}}_{{table}}"}],
            "avro": avro,
        }
    }
    return prefix


def pairs(broker: Broker, topic: str) -> list[Pair]:
    """A table's messages are in one partition, in the order of its changes."""
    found = consumed(broker.cluster, topic)
    assert len({part for part, _, _ in found}) == 1
    return [(key, value) for _, key, value in found]


def is_bytes(kind: Kind) -> bool:
    return kind.java == BLOB or kind.mysql == "bit"


def meant(kind: Kind, cell: Cell) -> Any:
    """What a cell of the upstream is in Avro, told from its text in csv."""
    if cell is NULL:
        return None
    text = cell.csv[1:-1].replace('""', '"') if cell.csv.startswith('"') else cell.csv
    if kind.java == BLOB:
        return base64.b64decode(text)
    if is_bytes(kind):
        return int(text).to_bytes(-(-int(kind.sql[4:-1]) // 8), "big")
    if kind.mysql in ("float", "double"):
        return float(np.float32(text)) if kind.mysql == "float" else float(text)
    if kind.mysql.startswith("decimal"):
        return Decimal(text)
    if cell.csv.startswith('"'):
        return text
    number = int(text)
    return number - (1 << 64) if number >> 63 == 1 else number


def row_of(model: Model, row: Mapping[str, Cell] | None, names: Sequence[str]) -> Row | None:
    return None if row is None else {name: meant(model.kinds[name], row[name]) for name in names}


def expected(model: Model) -> list[tuple[Row | None, Row | None]]:
    """Return the key and the value of each message."""
    found = []
    for change in model.changes:
        key = row_of(model, change.image, model.key) if model.key else None
        found.append((key, row_of(model, change.new, list(model.kinds))))
    return found


class Schemas:
    """A registry's, as a consumer asks for them; the newest that it was asked for is a reader's."""

    def __init__(self, server: RegistryServer) -> None:
        self._server, self._known = server, dict[int, Any]()

    def of(self, message: bytes) -> Any:
        magic, number = struct.unpack(">bi", message[:5])
        assert magic == 0
        if number not in self._known:
            self._known[number] = fastavro.parse_schema(self._server.schema(number))
        return self._known[number]

    def read(self, message: bytes | None, by: Any = None) -> Row | None:
        """`by`: another schema than the message's own."""
        if message is None:
            return None
        body = io.BytesIO(message[5:])
        row = fastavro.schemaless_reader(body, self.of(message), by)
        assert isinstance(row, dict)
        assert not body.read(), "bytes are left behind the record"
        return row


def flink_type(kind: Kind) -> str:
    if is_bytes(kind):
        return "BYTES"
    if kind.mysql.startswith("decimal"):
        return f"DECIMAL({kind.sql.split('(')[1].split(')')[0]})"
    return FLINK.get(kind.mysql) or FLINK.get(kind.mysql.removesuffix(" unsigned"), "STRING")


def is_known_to_flink(kind: Kind) -> bool:
    return not kind.mysql.startswith("decimal") or int(kind.sql.split("(")[1].split(",")[0]) <= LARGEST


def read_by_flink(
    flink: FlinkReader, server: RegistryServer, model: Model, names: Sequence[str], messages: Sequence[bytes | None]
) -> list[Row | None]:
    columns = [(name, flink_type(model.kinds[name])) for name in names if is_known_to_flink(model.kinds[name])]
    read = flink.read("avro-confluent", {"url": server.uri}, columns, messages)
    rows: list[Row | None] = []
    for each in read:
        assert isinstance(each, list), each
        assert len(each) <= 1
        rows += [change.row for change in each if isinstance(change, Change)] or [None]
    return rows


def without_unknown(model: Model, row: Row | None) -> Row | None:
    return row and {name: value for name, value in row.items() if is_known_to_flink(model.kinds[name])}


async def test_every_type(
    upstream: Upstream,
    new_changefeed: Callable[..., Changefeed],
    broker: Broker,
    server: RegistryServer,
    flink: FlinkReader,
) -> None:
    changefeed = new_changefeed(["types.*"])
    prefix = prepared(changefeed, broker, server, "types")
    models = write_everything(changefeed, upstream.tidb)
    assert (await changefeed.start_here().outcome()).state == "finished"
    schemas = Schemas(server)
    for model in models:
        name, right = model.table.info.name, expected(model)
        messages = pairs(broker, f"{prefix}_types_{name}")
        assert [(schemas.read(key), schemas.read(value)) for key, value in messages] == right, name
        if name == "common_handle":
            keys = read_by_flink(flink, server, model, model.key, [key for key, _ in messages])
            assert keys == [without_unknown(model, key) for key, _ in right]
        if name in ("common_handle", "int_handle"):
            values = read_by_flink(flink, server, model, list(model.kinds), [value for _, value in messages])
            assert values == [without_unknown(model, value) for _, value in right]


async def test_older_rows_by_the_newest_schema(
    upstream: Upstream,
    new_changefeed: Callable[..., Changefeed],
    broker: Broker,
    server: RegistryServer,
    flink: FlinkReader,
) -> None:
    """A consumer of the newest schema reads what the upstream shows; Flink, whose schema is its table's, NULL."""
    changefeed = new_changefeed(["types.*"])
    prefix = prepared(changefeed, broker, server, "older", decimalHandlingMode="string")
    tidb = upstream.tidb
    tidb.create_database("types")
    table = tidb.create_table("types", "aged", [NewColumn("id", "int")])
    changefeed.spec |= {"startTs": str(tidb.now()), "timeZone": ZONE}
    with tidb.begin() as txn:
        txn.insert(table, {"id": 0})
    kinds, old, new = {"id": Kind("int", "int", 4, ())}, {"id": plain(0, "0")}, {"id": plain(1, "1")}
    for number, one in enumerate(DEFAULTS):
        kind = Kind(one.sql, one.sql.split("(")[0], BLOB if "binary" in one.sql else 0, ())
        for name, column, cell in (
            ("n", NewColumn(f"n{number}", one.sql, nullable=True), NULL),
            ("d", NewColumn(f"d{number}", one.sql, default=one.default), one.cell),
            ("z", NewColumn(f"z{number}", one.sql), one.zero),
        ):
            table = tidb.add_column(table, column)
            kinds[f"{name}{number}"], old[f"{name}{number}"] = kind, cell
    new = old | new
    with tidb.begin() as txn:
        txn.insert(table, {name: cell.value for name, cell in new.items() if cell.value is not None})
    changefeed.spec["targetTs"] = str(txn.commit_ts)
    server.demand("BACKWARD")
    try:
        assert (await changefeed.start_here().outcome()).state == "finished"
    finally:
        server.demand("NONE")
    model, schemas = Model(table, kinds), Schemas(server)
    first, second = (value for _, value in pairs(broker, f"{prefix}_types_aged"))
    assert second is not None
    assert schemas.read(first) == {"id": 0}
    right = row_of(model, old, list(kinds))
    found = schemas.read(first, schemas.of(second)) or {}
    # fastavro leaves a default of bytes as it stands in the schema's JSON (its issue 869).
    found |= {
        name: found[name].encode("latin-1")
        for name, kind in kinds.items()
        if is_bytes(kind) and found[name] is not None
    }
    assert found == as_text(right, kinds)
    assert schemas.read(second) == as_text(row_of(model, new, list(kinds)), kinds)
    (by_flink,) = read_by_flink(flink, server, model, ["id", "d0", "n0"], [first])
    assert by_flink == {"id": 0, "d0": None, "n0": None}


def as_text(row: Row | None, kinds: Mapping[str, Kind]) -> Row:
    """Decimals."""
    assert row is not None
    return {
        name: str(value) if value is not None and "decimal" in kinds[name].sql else value for name, value in row.items()
    }
