"""What a claim may do, and what the client's errors mean."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import pytest
from changefeed.errors import Fenced, NeedsHuman, NotFound, Refused, Transient
from changefeed.sink.contract import Claim, EntryId
from changefeed.sink.kafka.client import Cluster, Sasl, error_of
from changefeed.sink.kafka.progress import Progress, Verdict, decide, decode, encode
from changefeed.sink.kafka.registry import Registry
from confluent_kafka import KafkaError


def claim(epoch: int, writer: int, nonce: str = "n") -> Claim:
    return Claim("shop/1", 7, epoch, nonce, writer)


DONE = EntryId(3, 1)
FOUND = Progress.of(claim(5, 2), DONE)


@pytest.mark.parametrize(
    ("found", "wanted", "verdict"),
    [
        (None, EntryId(1, 0), Verdict.WRITE),
        (Progress.of(claim(5, 2), None), EntryId(1, 0), Verdict.WRITE),
        (FOUND, EntryId(3, 1), Verdict.SKIP),
        (FOUND, EntryId(2, 9), Verdict.SKIP),
        (FOUND, EntryId(3, 2), Verdict.WRITE),
        (FOUND, EntryId(4, 0), Verdict.WRITE),
    ],
)
def test_what_is_done_is_not_done_again(found: Progress | None, wanted: EntryId, verdict: Verdict) -> None:
    assert decide(found, claim(5, 2), wanted) is verdict
    assert decide(found, claim(5, 3), wanted) is verdict
    assert decide(found, claim(6, 1, "m"), wanted) is verdict


@pytest.mark.parametrize("late", [claim(4, 9, "m"), claim(5, 1), claim(5, 2, "another driver")])
def test_rule_25_who_has_been_given_up_is_refused(late: Claim) -> None:
    with pytest.raises(Fenced, match="epoch 5, writer 2 has claimed"):
        decide(FOUND, late, EntryId(4, 0))


def test_progress_is_read_as_it_was_written() -> None:
    for progress in (FOUND, Progress.of(claim(1, 1), None)):
        assert decode(encode(progress)) == progress


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"epoch":1}', b"\xff"])
def test_a_message_of_somebody_else_is_named(value: bytes) -> None:
    with pytest.raises(NeedsHuman, match="not ours"):
        decode(value)


@pytest.mark.parametrize(
    ("code", "meaning", "answered"),
    [
        (KafkaError._FENCED, Fenced, None),
        (KafkaError.INVALID_PRODUCER_EPOCH, Fenced, True),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, Refused, True),
        (KafkaError._AUTHENTICATION, Refused, True),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, NeedsHuman, True),
        (KafkaError.MSG_SIZE_TOO_LARGE, NeedsHuman, True),
        (KafkaError.NOT_ENOUGH_REPLICAS, Transient, True),
        (KafkaError._QUEUE_FULL, Transient, None),
        (KafkaError._MSG_TIMED_OUT, Transient, False),
        (KafkaError._TRANSPORT, Transient, False),
    ],
)
def test_errors_by_what_the_caller_must_do(code: int, meaning: type[Exception], answered: bool | None) -> None:
    found = error_of("Kafka at b:1", KafkaError(code))
    assert type(found) is meaning
    assert found.answered is answered
    assert "Kafka at b:1" in str(found)


def test_a_password_is_told_to_the_client_alone() -> None:
    cluster = Cluster("b:1", Sasl("PLAIN", "me", "verysecret"))
    assert cluster.client_config()["sasl.password"] == "verysecret"
    assert "verysecret" not in repr(cluster)


class _Answers(BaseHTTPRequestHandler):
    schemas: ClassVar[list[tuple[str, str]]] = []

    def do_POST(self) -> None:
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        known = (self.path.split("/")[2], said["schema"])
        if known[1] == "bad":
            return self._answer(409, {"message": "incompatible"})
        if known not in self.schemas:
            self.schemas.append(known)
        return self._answer(200, {"id": self.schemas.index(known) + 1})

    def do_GET(self) -> None:
        last = self.path.split("/")[-1]
        if last == "latest":
            subject = self.path.split("/")[2]
            found = [(number, text) for number, (of, text) in enumerate(self.schemas, 1) if of == subject]
            if not found:
                return self._answer(404, {"message": "no subject"})
            return self._answer(200, {"id": found[-1][0], "schema": found[-1][1]})
        return self._answer(200, {"schema": self.schemas[int(last) - 1][1]})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def registry() -> Iterator[Registry]:
    _Answers.schemas = []
    with HTTPServer(("127.0.0.1", 0), _Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Registry(f"http://127.0.0.1:{server.server_port}/", "me", "verysecret")
        server.shutdown()
        thread.join()


def test_schemas_have_the_numbers_that_the_registry_gives(registry: Registry) -> None:
    assert registry.number_of("t-value", "{}") == registry.number_of("t-value", "{}") == 1
    assert registry.number_of("t-value", "[]") == 2
    assert registry.schema(1) == "{}"
    assert registry.latest("t-value") == (2, "[]")
    with pytest.raises(NotFound, match="answers 404"):
        registry.latest("nothing")
    with pytest.raises(NeedsHuman, match=r"answers 409.*compatibility to NONE") as told:
        registry.number_of("t-value", "bad")
    assert "verysecret" not in str(told.value) + repr(registry)


def test_a_registry_that_is_away_may_come_back() -> None:
    with pytest.raises(Transient, match=r"schema registry at http://127\.0\.0\.1:1"):
        Registry("http://127.0.0.1:1").latest("t")
