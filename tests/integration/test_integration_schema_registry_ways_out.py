"""What stops an avro changefeed, and that what its message says to do lets it go on, with nothing lost."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import pytest
from changefeed.errors import ChangefeedError, InvalidSpec, NeedsHuman, Unavailable
from changefeed.owner.driver import RunOptions
from changefeed.owner.reporting import meter as meter_module
from changefeed.spec.parse import parse
from changefeed_devcluster.ddl.columns import modify_column
from changefeed_devcluster.ddl.running import last
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from conftest import Changefeed, Upstream
from integration_inprocess import InProcessExecution, Run
from integration_java import FETCH_S
from integration_kafka_broker import Broker, consumed, running
from integration_registry import API, RELEASES, Answer, Front, RegistryServer, Release, asked, version_of

pytestmark = pytest.mark.timeout(FETCH_S + 120)

ROWS = 10
LARGE = "x" * 2_000_000


@pytest.fixture(params=RELEASES, ids=version_of)
def server(request: pytest.FixtureRequest, every_registry: Callable[[Release], RegistryServer]) -> RegistryServer:
    return every_registry(request.param)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@dataclass
class Feed:
    """A changefeed of shop.orders to a topic of its own; `numbers`: what its rows are to have."""

    broker: Broker
    server: RegistryServer
    upstream: Upstream
    changefeed: Changefeed
    orders: NamedTable
    topic: str
    numbers: set[int]
    secrets: Path
    amount: Any = 1

    def write(self, note: Any = "") -> None:
        """ROWS more, in a transaction of their own; they are to be read when the run ends."""
        first = len(self.numbers)
        with self.upstream.tidb.begin() as txn:
            for number in range(first, first + ROWS):
                txn.insert(self.orders, {"id": number, "note": note, "amount": self.amount})
                self.numbers.add(number)
        self.changefeed.spec["targetTs"] = str(txn.commit_ts)

    def set(self, **kafka: Any) -> None:
        self.changefeed.spec["sink"]["kafka"].update(kafka)

    def start(self) -> Run:
        self.changefeed.write()
        options = RunOptions(metrics_port=0, secrets_dir=self.secrets)
        return Run(parse(self.changefeed.file.read_text()), InProcessExecution(), options).start()

    async def stopped(self, kind: type[ChangefeedError], why: str) -> str:
        """What its message says to do."""
        with pytest.raises(kind, match=why) as stopped:
            await self.start().outcome()
        return stopped.value.next_step

    async def given_up(self, why: str) -> str:
        """What it says to do when it has waited for too long."""
        run = self.start()

        def is_said() -> bool:
            error = json.loads(run.driver.status())["lastError"] if run.driver is not None else None
            return error is not None and re.search(why, error["message"]) is not None

        await run.until(is_said, "it says why it waits")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(meter_module, "RUN_S", 1.0)
            with pytest.raises(Unavailable, match=why) as ended:
                await run.outcome()
        return ended.value.next_step

    async def goes_on(self) -> None:
        """All rows are in the topic, and can be read by the schemas that the registry has."""
        assert (await self.start().outcome()).state == "finished"
        assert self.read() == self.numbers

    def read(self, topic: str = "") -> set[int]:
        values = [value for _, _, value in consumed(self.broker.cluster, topic or self.topic)]
        return {self._row(value)["id"] for value in values}

    def _row(self, value: bytes) -> dict[str, Any]:
        body, schema = io.BytesIO(value[5:]), self.server.schema(int.from_bytes(value[1:5], "big"))
        row = fastavro.schemaless_reader(body, fastavro.parse_schema(schema))
        assert isinstance(row, dict)
        assert body.read() == b""
        return row


@pytest.fixture
def feed(
    broker: Broker,
    server: RegistryServer,
    upstream: Upstream,
    new_changefeed: Callable[..., Changefeed],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Feed:
    tidb = upstream.tidb
    tidb.create_database("shop")
    columns = (NewColumn("id", "bigint"), NewColumn("note", "longtext"), NewColumn("amount", "int", default="0"))
    orders = tidb.create_table("shop", "orders", columns)
    changefeed = new_changefeed(["shop.*"])
    changefeed.spec["startTs"] = str(tidb.now())
    name = f"{request.node.originalname.removeprefix('test_')}-{server.release.version.replace('.', '_')}"
    kafka = {"uri": f"kafka://{broker.cluster.brokers}/{name}", "protocol": "avro", "schemaRegistry": server.uri}
    changefeed.spec["sink"] = {"kafka": kafka}
    made = Feed(broker, server, upstream, changefeed, orders, name, set(), tmp_path / "secrets")
    made.write()
    return made


def set_compatibility(server: RegistryServer, of: str, to: str) -> int:
    return asked(server.port, "PUT", f"{API}/config{of}", json.dumps({"compatibility": to}).encode()).status


async def test_a_ddl_that_the_registry_forbids(feed: Feed) -> None:
    feed.server.demand("BACKWARD")
    try:
        feed.orders = last(
            modify_column(feed.upstream.tidb, feed.orders, "amount", NewColumn("amount", "varchar(9)", default="0"))
        )
        feed.amount = "one"
        feed.write()
        subject = f"{feed.topic}-value"
        way = await feed.stopped(NeedsHuman, rf"refuses a schema of {subject} \(409\)")
        assert way == f"Set the compatibility of {subject}, or of the registry, to NONE, then start again."
        if feed.server.release.version.startswith("3."):
            assert set_compatibility(feed.server, f"/{subject}", "NONE") == 200
            await feed.goes_on()
    finally:
        feed.server.demand("NONE")
    await feed.goes_on()


@pytest.mark.parametrize("of", ["", "/ui", "/apis/ccompat/v1"])
async def test_an_address_that_is_not_the_apis(feed: Feed, of: str) -> None:
    feed.set(schemaRegistry=feed.server.uri.removesuffix(API) + of)
    way = await feed.given_up(r"it is no schema registry")
    assert "Apicurio's at http://host:8080/apis/ccompat/v7" in way
    feed.set(schemaRegistry=feed.server.uri)
    await feed.goes_on()


async def test_a_login_page(feed: Feed) -> None:
    with Front(feed.server) as front:
        front.bad, front.times = Answer(200, b"<html>Log in</html>", "text/html"), 1 << 20
        feed.set(schemaRegistry=front.uri)
        way = await feed.given_up(r"it is no schema registry")
        assert way.startswith("Set spec.sink.kafka.schemaRegistry to where the registry's API is")
        feed.set(schemaRegistry=feed.server.uri)
        await feed.goes_on()


async def test_a_login_that_it_does_not_know(feed: Feed) -> None:
    login = "Basic bWU6cmlnaHQ="  # me:right
    with Front(feed.server, login=login) as front:
        feed.set(schemaRegistry=front.uri)
        way = await feed.given_up(r"answers 401")
        assert way.startswith("Check spec.sink.kafka.schemaRegistryCredentials.")
        user = feed.secrets / "registry"
        user.mkdir(parents=True)
        (user / "username").write_text("me")
        (user / "password").write_text("wrong")
        feed.set(schemaRegistryCredentials={"secretRef": {"name": "registry"}, "overHttp": True})
        assert await feed.given_up(r"answers 401") == way
        (user / "password").write_text("right")
        await feed.goes_on()


async def test_a_message_that_is_larger_than_the_sink_allows(feed: Feed) -> None:
    feed.set(maxMessageBytes="1Mi")
    feed.write(LARGE)
    way = await feed.stopped(NeedsHuman, r"A row of shop.orders makes a message of \d+ bytes")
    assert way == "Raise maxMessageBytes, and max.message.bytes of the topic."
    feed.set(maxMessageBytes="4Mi")
    raise_limit(feed, 4 << 20)
    await feed.goes_on()


async def test_a_message_that_is_larger_than_the_topic_allows(feed: Feed) -> None:
    feed.write(LARGE)
    way = await feed.stopped(NeedsHuman, r"too large|larger than")
    assert way == "Raise max.message.bytes of the topic to maxMessageBytes of the sink."
    raise_limit(feed, 4 << 20)
    await feed.goes_on()


def raise_limit(feed: Feed, size: int) -> None:
    admin = AdminClient(feed.broker.cluster.client_config())
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ConfigResource.Type.TOPIC, feed.topic, incremental_configs=[entry])
    for done in admin.incremental_alter_configs([topic]).values():
        done.result(60)


async def test_two_tables_in_one_topic(feed: Feed) -> None:
    others = feed.upstream.tidb.create_table("shop", "others", (NewColumn("id", "bigint"),))
    feed.changefeed.spec["startTs"] = str(feed.upstream.tidb.now())
    with feed.upstream.tidb.begin() as txn:
        txn.insert(others, {"id": 1})
    first = set(feed.numbers)
    feed.write()
    feed.numbers -= first
    way = await feed.stopped(InvalidSpec, f"would both go to topic {feed.topic}")
    assert way == 'Give each table a topic: [{matcher: ["*.*"], topic: "{schema}_{table}"}].'
    # With a prefix, because the broker has topics of other tests.
    feed.set(dispatchers=[{"matcher": ["*.*"], "topic": f"{feed.topic}_{{schema}}_{{table}}"}])
    assert (await feed.start().outcome()).state == "finished"
    assert feed.read(f"{feed.topic}_shop_others") == {1}
    assert feed.read(f"{feed.topic}_shop_orders") == feed.numbers


async def test_names_that_avro_can_not_tell_apart(feed: Feed) -> None:
    tidb = feed.upstream.tidb
    feed.orders = tidb.add_column(feed.orders, NewColumn("a-b", "int", nullable=True))
    feed.orders = tidb.add_column(feed.orders, NewColumn("a_b", "int", nullable=True))
    feed.write()
    await feed.goes_on()
