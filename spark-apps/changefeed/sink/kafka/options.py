"""`sink.kafka` of an effective resource, parsed for the modules in this folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from changefeed.secret_files import tls_files, user_and_password
from changefeed.sink.kafka.client import Cluster, Sasl
from changefeed.sink.kafka.codec.cloud_events import CloudEvents
from changefeed.sink.kafka.topics import Rule, Rules
from changefeed.spec.field.quantity import parse_size

_PROGRESS = "changefeed_progress"


@dataclass(frozen=True)
class KafkaEndpoint:
    """Where, and the folders of the Secrets (rule 21): `secret` of the user, `tls` of PEM files."""

    uri: str
    mechanism: str
    max_message_bytes: int
    compression: str
    secret: Path | None = None
    tls: Path | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any], secret: Path | None, tls: Path | None) -> KafkaEndpoint:
        size = parse_size(options["maxMessageBytes"])
        return cls(options["uri"], options["saslMechanism"], size, options["compression"], secret, tls)

    @property
    def topic(self) -> str:
        """The default one."""
        return urlsplit(self.uri).path.strip("/")

    def cluster(self) -> Cluster:
        """Raises Refused when a Secret lacks a file."""
        sasl = None if self.secret is None else Sasl(self.mechanism, *user_and_password(self.secret))  # type: ignore[arg-type]
        tls = None if self.tls is None else tls_files(self.tls)
        compression: Any = self.compression
        return Cluster(urlsplit(self.uri).netloc, sasl, tls, self.max_message_bytes, compression)


def rules_of(options: Mapping[str, Any], default_topic: str, case_sensitive: bool) -> Rules:
    """Raises InvalidSpec for a topic expression that the protocol does not allow."""
    rules = [
        Rule(
            tuple(each["matcher"]),
            each["partition"],
            each["topic"],
            each["index"],
            tuple(each["columns"]),
        )
        for each in options["dispatchers"]
    ]
    return Rules(rules, default_topic, case_sensitive=case_sensitive, avro=options["protocol"] == "avro")


def cloud_events(options: Mapping[str, Any], changefeed: str) -> CloudEvents | None:
    """What makes the headers, if messages are to have them."""
    return CloudEvents(changefeed, options["protocol"]) if options["cloudEvents"] else None


def progress_topic() -> str:
    """Return the topic of all changefeeds that write to a cluster exactly once; keys tell their messages apart."""
    return _PROGRESS
