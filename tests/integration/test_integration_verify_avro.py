"""`changefeed verify` of topics of avro that a run has written, by way of a real registry."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from changefeed_devcluster.tidb.schema import NewColumn
from confluent_kafka import Producer
from conftest import Changefeed, Upstream
from integration_java import FETCH_S
from integration_kafka_broker import Broker, messages_of, running
from integration_registry import RELEASES, RegistryServer, Release
from test_integration_types import write_everything

pytestmark = pytest.mark.timeout(FETCH_S + 180)

EXACTLY_ONCE = "exactly-once"


@pytest.fixture
def server(every_registry: Callable[[Release], RegistryServer]) -> RegistryServer:
    return every_registry(RELEASES[-1])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


def into(changefeed: Changefeed, broker: Broker, server: RegistryServer, prefix: str, **more: Any) -> None:
    changefeed.spec["sink"] = {
        "kafka": {
            "uri": f"kafka://{broker.cluster.brokers}/{prefix}",
            "protocol": "avro",
            "schemaRegistry": server.uri,
            "dispatchers": [
                {"matcher": ["*.*"], "topic": f"{prefix}_{{schema}}_{{table}}", "partition": "index-value"}
            ],
            **more,
        }
    }


@pytest.mark.parametrize(
    "more",
    [
        {},
        {
            "canalJson": {"enableTidbExtension": True},
            "avro": {"decimalHandlingMode": "string", "bigintUnsignedHandlingMode": "string"},
            "delivery": EXACTLY_ONCE,
        },
    ],
    ids=["as it comes", "as text"],
)
async def test_every_type_is_held_against_the_upstream(
    upstream: Upstream,
    new_changefeed: Callable[..., Changefeed],
    broker: Broker,
    server: RegistryServer,
    more: dict[str, Any],
) -> None:
    changefeed = new_changefeed(["types.*"])
    into(changefeed, broker, server, f"types{len(more)}", **more)
    models = write_everything(changefeed, upstream.tidb)
    assert (await changefeed.start_here().outcome()).state == "finished"
    code, verdict = changefeed.verify()
    assert code == 0, verdict
    with_key = sum(bool(model.key) for model in models)
    assert verdict["tables"] == with_key > 1
    assert verdict["rows"] > 0
    assert [note for note in verdict["notes"] if "has no primary key" not in note] == []


class Shop:
    """A table of which rows stood before the start, and of which some are changed, deleted and added since."""

    def __init__(
        self, upstream: Upstream, changefeed: Changefeed, broker: Broker, server: RegistryServer, name: str
    ) -> None:
        self.tidb, self.changefeed, self.broker = upstream.tidb, changefeed, broker
        self.topic = f"{name}_shop_orders"
        into(changefeed, broker, server, name)
        self.tidb.create_database("shop")
        self.table = self.tidb.create_table(
            "shop", "orders", (NewColumn("id", "bigint"), NewColumn("name", "varchar(20)", nullable=True))
        )
        self.write({n: f"old {n}" for n in range(10)})
        changefeed.spec["startTs"] = str(self.tidb.now())
        self.write({n: f"order {n}" for n in range(10, 30)})
        with self.tidb.begin() as txn:
            txn.update(self.table, {"id": 3, "name": None})
            for gone in (4, 11):
                txn.delete(self.table, gone)

    def write(self, rows: dict[int, str]) -> None:
        with self.tidb.begin() as txn:
            for number, name in rows.items():
                txn.insert(self.table, {"id": number, "name": name})

    async def run(self) -> None:
        """To what is written."""
        run = self.changefeed.start_here()
        ts = self.tidb.now()
        await run.until(lambda: self.changefeed.checkpoint() >= ts, "all is written")
        await run.drained()

    def verify(self) -> tuple[int, dict[str, Any]]:
        return self.changefeed.verify()

    def message(self, number: int) -> tuple[int, bytes, bytes | None]:
        """(partition, key, value) of the last one of a row of one byte's id."""
        found = [each for each in messages_of(self.broker.cluster, self.topic) if each.key()[5:] == bytes([number * 2])]
        return found[-1].partition(), found[-1].key(), found[-1].value()

    def send(self, partition: int, key: bytes, value: bytes | None) -> None:
        producer = Producer(self.broker.cluster.producer_config())
        producer.produce(self.topic, value, key, partition)
        producer.flush(30)


@pytest.fixture
def shop(
    upstream: Upstream,
    new_changefeed: Callable[..., Changefeed],
    broker: Broker,
    server: RegistryServer,
    request: pytest.FixtureRequest,
) -> Shop:
    return Shop(upstream, new_changefeed(["shop.*"]), broker, server, f"shop{abs(hash(request.node.name))}")


async def test_each_wrong_is_found(shop: Shop) -> None:
    await shop.run()
    code, verdict = shop.verify()
    assert (code, verdict["rows"], verdict["notes"]) == (0, 28, []), verdict
    partition, key, value = shop.message(12)
    assert value is not None
    shop.send(partition, key, None)
    code, verdict = shop.verify()
    assert (code, verdict["missing"], verdict["surplus"], verdict["different"]) == (4, 1, 0, 0)
    assert "missing: id=12" in verdict["first_problem"]
    shop.send(partition, key, value.replace(b"order", b"0rder"))
    code, verdict = shop.verify()
    assert (code, verdict["missing"], verdict["surplus"], verdict["different"]) == (4, 0, 0, 1)
    shop.send(partition, key, value)
    assert shop.verify()[0] == 0, "the last message of a key counts"
    at, gone, _ = shop.message(11)
    shop.send(at, gone, value)
    code, verdict = shop.verify()
    assert code == 4
    assert verdict["surplus"] + verdict["different"] > 0
    shop.send(at, gone, None)
    shop.send(at, b"no Avro", None)
    code, verdict = shop.verify()
    assert code == 4
    assert f"Topic {shop.topic}, partition {at}" in verdict["first_problem"]


async def test_rows_that_are_older_than_a_column(shop: Shop) -> None:
    shop.table = shop.tidb.add_column(shop.table, NewColumn("size", "int", default="7"))
    shop.write({30: "a later one"})
    await shop.run()
    code, verdict = shop.verify()
    assert (code, verdict["rows"], verdict["notes"]) == (0, 29, []), verdict


async def test_what_no_message_tells_is_not_compared(shop: Shop) -> None:
    await shop.run()
    shop.table = shop.tidb.truncate_table(shop.table)
    shop.write({1: "after it"})
    await shop.run()
    code, verdict = shop.verify()
    assert (code, verdict["tables"]) == (0, 0)
    assert json.dumps(verdict["notes"]).count("shop.orders was emptied, renamed or made anew") == 1
