"""avro's schema registry: real ones, and a front before them that fails as what stands before registries does."""

from __future__ import annotations

import base64
import json
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from changefeed.errors import ChangefeedError, NeedsHuman, Refused, Transient, Unavailable
from changefeed.objectstore.patience import Patience
from changefeed.owner.reporting import meter as meter_module
from changefeed.sink.contract import Claim, Entry, EntryId, Surroundings
from changefeed.sink.kafka.entry_writer import KafkaJob, KafkaWriter
from changefeed.sink.kafka.options import KafkaEndpoint
from changefeed.sink.kafka.registry import RegistryEndpoint, SchemaRegistry
from changefeed_devcluster.certificates import CLIENT, Certificates
from changefeed_devcluster.tidb.schema import NewColumn
from conftest import Changefeed, Upstream
from integration_java import FETCH_S
from integration_kafka_broker import Broker, consumed, made_topic, running
from integration_kafka_history import CHUNK_TS, history, table
from integration_registry import RELEASES, TOKEN, Answer, Front, RegistryServer, Release, registry, version_of

pytestmark = pytest.mark.timeout(FETCH_S + 120)

AWAY = Answer(503, b"upstream connect error", "text/plain")
BASIC = "Basic " + base64.b64encode(b"me:verysecret").decode()


@pytest.fixture(params=RELEASES, ids=version_of)
def server(request: pytest.FixtureRequest, every_registry: Callable[[Release], RegistryServer]) -> RegistryServer:
    return every_registry(request.param)


@pytest.fixture
def front(server: RegistryServer) -> Iterator[Front]:
    with Front(server) as front:
        yield front


class Waits:
    """Keeps how long patience waits, and what it was told."""

    def __init__(self, limit_s: float = 60) -> None:
        self.seconds: list[float] = []
        self.failures: list[ChangefeedError] = []
        self.patience = Patience(limit_s, sleep=self.seconds.append, failed=self.failures.append)


def schema(name: str, *fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": name, "fields": [{"name": "id", "type": "long"}, *fields]})


def secret(folder: Path, **keys: str) -> Path:
    folder.mkdir()
    for name, value in keys.items():
        (folder / name.replace("_", "-")).write_text(value)
    return folder


def test_a_schema_has_one_number(server: RegistryServer) -> None:
    first, second = (SchemaRegistry(RegistryEndpoint(server.uri), Patience(60)) for _ in range(2))
    number = first.number_of("one-value", schema("one"))
    assert first.number_of("one-value", schema("one")) == second.number_of("one-value", schema("one")) == number
    assert server.schema(number)["name"] == "one"
    assert server.versions("one-value") == 1


def test_tasks_that_register_the_first_schema_of_a_subject_at_once_both_get_it(server: RegistryServer) -> None:
    """Apicurio 2 answers 409 to one of them."""
    tasks = [SchemaRegistry(RegistryEndpoint(server.uri), Patience(60)) for _ in range(6)]
    together = threading.Barrier(len(tasks))

    def register(task: SchemaRegistry) -> list[int]:
        numbers = []
        for subject in range(15):
            together.wait(60)
            numbers.append(task.number_of(f"raced-{subject}-value", schema("raced")))
        return numbers

    with ThreadPoolExecutor(len(tasks)) as pool:
        assert len({tuple(numbers) for numbers in pool.map(register, tasks)}) == 1


def test_a_schema_that_older_ones_forbid_needs_what_the_message_says(server: RegistryServer) -> None:
    asked = SchemaRegistry(RegistryEndpoint(server.uri), Patience(60))
    asked.number_of("strict-value", schema("strict"))
    server.demand("BACKWARD")
    changed = schema("strict", {"name": "more", "type": "string"})
    try:
        with pytest.raises(NeedsHuman, match=r"refuses a schema of strict-value \(409\)") as refused:
            asked.number_of("strict-value", changed)
    finally:
        server.demand("NONE")
    assert refused.value.next_step.startswith("Set the compatibility of strict-value, or of the registry, to NONE")
    assert server.schema(asked.number_of("strict-value", changed))["fields"][1]["name"] == "more"


@pytest.mark.parametrize(
    ("bad", "kind", "said"),
    [
        (AWAY, Transient, "answers 503"),
        (Answer(429, b"{}"), Transient, "answers 429"),
        (Answer(200, b"<html>Log in</html>", "text/html"), Refused, "no schema registry"),
        (Answer(200, b"{}"), Refused, "no schema registry"),
        (Answer(302, b"<html>verysecret</html>", "text/html"), Refused, "no schema registry"),
        (Answer(404, b'{"error_code":404,"message":"HTTP 404 Not Found"}'), Refused, "/apis/ccompat/v7"),
        (Answer(401, b'{"error_code":401,"message":"verysecret"}'), Refused, "schemaRegistryCredentials"),
    ],
)
def test_a_failure_that_may_pass_is_waited_for(
    front: Front, bad: Answer, kind: type[ChangefeedError], said: str
) -> None:
    front.bad, front.times = bad, 8
    waits = Waits()
    asked = SchemaRegistry(RegistryEndpoint(front.uri), waits.patience)
    assert asked.number_of("waited-value", schema("waited")) > 0
    assert waits.seconds == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    assert {(type(error), error.answered) for error in waits.failures} == {(kind, True)}
    assert said in str(waits.failures[0])
    assert "verysecret" not in str(waits.failures[0])
    assert len(front.authorizations) == 9


@pytest.mark.parametrize("release", RELEASES, ids=version_of)
def test_a_registry_that_is_restarted_is_waited_for(tmp_path: Path, release: Release) -> None:
    with registry(tmp_path, release) as server:
        server.kill()
        failures: list[ChangefeedError] = []

        def failed(error: ChangefeedError) -> None:
            if not failures:
                server.start()
            failures.append(error)

        asked = SchemaRegistry(RegistryEndpoint(server.uri), Patience(120, failed=failed))
        assert asked.number_of("back-value", schema("back")) > 0
        assert (type(failures[0]), failures[0].answered) == (Transient, False)
        assert "does not answer" in failures[0].message


@pytest.mark.parametrize(
    ("keys", "login"),
    [
        ({"username": "me", "password": "verysecret"}, BASIC),
        ({"token_url": "", "client_id": "me", "client_secret": "verysecret", "scope": "all"}, f"Bearer {TOKEN}"),
    ],
)
def test_a_login_of_its_own_over_mutual_tls(
    server: RegistryServer, tmp_path: Path, keys: dict[str, str], login: str
) -> None:
    Certificates(tmp_path / "tls", ["127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tmp_path / "tls" / "ca.crt")
    context.load_cert_chain(tmp_path / "tls" / "server.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    with Front(server, context, login) as front, Front(server) as issuer:
        given = secret(
            tmp_path / "user", **keys | ({"token_url": f"{issuer.address}/token"} if "token_url" in keys else {})
        )
        endpoint = RegistryEndpoint(front.uri, given, tmp_path / "tls" / CLIENT)
        assert SchemaRegistry(endpoint, Patience(60)).number_of("secure-value", schema("secure")) > 0
        assert front.authorizations == [login]

        waits = Waits(1)
        with pytest.raises(Unavailable, match="certificate that is not trusted"):
            SchemaRegistry(RegistryEndpoint(front.uri, given), waits.patience).number_of(
                "secure-value", schema("secure")
            )
        assert isinstance(waits.failures[0], Refused)


def test_a_password_that_is_replaced_is_used(server: RegistryServer, tmp_path: Path) -> None:
    given = secret(tmp_path / "user", username="me", password="old")
    with Front(server, login=BASIC) as front:
        failed: Callable[[object], object] = lambda _: (given / "password").write_text("verysecret")  # noqa: E731
        asked = SchemaRegistry(RegistryEndpoint(front.uri, given), Patience(60, sleep=lambda _: None, failed=failed))
        assert asked.number_of("replaced-value", schema("replaced")) > 0
        assert len(front.authorizations) == 2


def test_no_secret_is_sent_to_an_issuer_in_clear_text(server: RegistryServer, tmp_path: Path) -> None:
    keys = {"token_url": "http://issuer.example/token", "client_id": "me", "client_secret": "verysecret"}
    endpoint = RegistryEndpoint(server.uri, secret(tmp_path / "user", **keys))
    waits = Waits(1)
    with pytest.raises(Unavailable, match="is not https") as refused:
        SchemaRegistry(endpoint, waits.patience).number_of("unsent-value", schema("unsent"))
    assert "verysecret" not in str(refused.value)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.mark.parametrize("is_exactly_once", [True, False])
def test_rows_are_written_once_the_registry_is_back(
    broker: Broker, front: Front, tmp_path: Path, is_exactly_once: bool
) -> None:
    """And the user of the brokers is nobody to the registry. A task whose registry stays away ends, and says why."""
    topic = f"avro-{is_exactly_once}-{front.release.version}"
    made_topic(broker.cluster, topic, 2)
    if is_exactly_once:
        made_topic(broker.cluster, "changefeed_progress", 1, compacted=True)
    chunks, state = history(1, 3, 20, 10)
    info = table()
    endpoint = KafkaEndpoint(f"kafka://{broker.cluster.brokers}/{topic}", "PLAIN", 1 << 20, "none")
    job = KafkaJob(endpoint, is_exactly_once, False, RegistryEndpoint(front.uri))
    options = {
        "protocol": "avro",
        "cloudEvents": False,
        "dispatchers": [],
        "largeMessages": {"option": "none"},
        "canalJson": {"enableTidbExtension": False},
    }
    entry = Entry(
        Claim(topic, 77, 1, "n", 1), EntryId(1, 1), 9 * CHUNK_TS, {}, info, 1, info.output_columns, 7, "UTC", options
    )

    def write(waits: Waits) -> object:
        around = Surroundings(topic, tmp_path, waits.patience, waits.patience, pytest.fail)
        return KafkaWriter(job, around).write(entry, iter(chunks))

    front.bad, front.times = AWAY, 1 << 20
    with pytest.raises(Unavailable, match=r"has failed for 30 s.*answers 503"):
        write(Waits(30))
    assert len(front.authorizations) <= 20
    assert consumed(broker.cluster, topic) == []
    front.times = 5
    assert write(Waits()) is not None
    rows: dict[bytes | None, bytes | None] = {key: value for _, key, value in consumed(broker.cluster, topic)}
    assert len(consumed(broker.cluster, topic)) == sum(len(chunk.op) for chunk in chunks)
    assert sum(value is not None for value in rows.values()) == len(state)
    assert set(front.authorizations) == {None}


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
async def test_a_run_waits_for_the_registry_and_says_so(
    upstream: Upstream,
    new_changefeed: Callable[..., Changefeed],
    broker: Broker,
    front: Front,
    delivery: str,
) -> None:
    """One that waits too long ends as for any other service; a later run writes what is missing."""
    tidb = upstream.tidb
    tidb.create_database("shop")
    orders = tidb.create_table(
        "shop", "orders", (NewColumn("id", "bigint"), NewColumn("name", "varchar(20)", nullable=True))
    )
    topic = f"run-{delivery}-{front.release.version}"
    changefeed = new_changefeed(["shop.*"])
    changefeed.spec["startTs"] = str(tidb.now())
    endpoint = {"uri": f"kafka://{broker.cluster.brokers}/{topic}", "protocol": "avro", "schemaRegistry": front.uri}
    changefeed.spec["sink"] = {"kafka": endpoint | {"delivery": delivery}}

    def write(first: int) -> int:
        with tidb.begin() as txn:
            for number in range(first, first + 20):
                txn.insert(orders, {"id": number, "name": f"order {number}"})
        return txn.commit_ts

    front.bad, front.times = AWAY, 1 << 20
    write(0)
    run = changefeed.start_here()

    def is_said() -> bool:
        error = json.loads(run.driver.status())["lastError"] if run.driver is not None else None
        is_waiting = run.view.progress and run.view.progress[-1].message.startswith("Waiting for a store")
        return bool(is_waiting and error and re.search("The schema registry at .* answers 503", error["message"]))

    await run.until(is_said, "the view and the status say it")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(meter_module, "RUN_S", 1.0)
        with pytest.raises(Unavailable, match=r"has failed for 1 s\. The schema registry at .* answers 503") as ended:
            await run.outcome()
    assert ended.value.exit_code == 69
    assert len(front.authorizations) < 100

    front.times = 5
    run = changefeed.start_here()
    last_ts = write(20)
    await run.until(lambda: changefeed.checkpoint() >= last_ts, "all is published")
    await run.drained()
    keys = [key for _, key, value in consumed(broker.cluster, topic) if value is not None]
    assert len(set(keys)) == 40
    assert (len(keys) == 40) or delivery == "at-least-once"
