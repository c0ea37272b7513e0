"""What a claim may do, and what the client's errors mean."""

from __future__ import annotations

import pytest
from changefeed.errors import Fenced, NeedsHuman, Refused, Transient
from changefeed.sink.contract import Claim, EntryId
from changefeed.sink.kafka.client import Cluster, Sasl, error_of
from changefeed.sink.kafka.progress import ClaimVerdict, ProgressRecord, decide, decode, encode
from confluent_kafka import KafkaError


def claim(epoch: int, writer: int, nonce: str = "n") -> Claim:
    return Claim("shop/1", 7, epoch, nonce, writer)


DONE = EntryId(3, 1)
FOUND = ProgressRecord.of(claim(5, 2), DONE)


@pytest.mark.parametrize(
    ("found", "wanted", "verdict"),
    [
        (None, EntryId(1, 0), ClaimVerdict.WRITE),
        (ProgressRecord.of(claim(5, 2), None), EntryId(1, 0), ClaimVerdict.WRITE),
        (FOUND, EntryId(3, 1), ClaimVerdict.SKIP),
        (FOUND, EntryId(2, 9), ClaimVerdict.SKIP),
        (FOUND, EntryId(3, 2), ClaimVerdict.WRITE),
        (FOUND, EntryId(4, 0), ClaimVerdict.WRITE),
    ],
)
def test_what_is_done_is_not_done_again(found: ProgressRecord | None, wanted: EntryId, verdict: ClaimVerdict) -> None:
    assert decide(found, claim(5, 2), wanted) is verdict
    assert decide(found, claim(5, 3), wanted) is verdict
    assert decide(found, claim(6, 1, "m"), wanted) is verdict


@pytest.mark.parametrize("late", [claim(4, 9, "m"), claim(5, 1), claim(5, 2, "another driver")])
def test_rule_25_who_has_been_given_up_is_refused(late: Claim) -> None:
    with pytest.raises(Fenced, match="epoch 5, writer 2 has claimed"):
        decide(FOUND, late, EntryId(4, 0))


def test_progress_is_read_as_it_was_written() -> None:
    for progress in (FOUND, ProgressRecord.of(claim(1, 1), None)):
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
