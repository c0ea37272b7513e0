"""Credentials of a spec that a network would carry as they are, which whoever listens there can read. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from changefeed.spec.field.location import is_this_machine
from changefeed.spec.model import Changefeed
from changefeed.spec.sink.choice import SinkSpec


def in_clear_text(changefeed: Changefeed) -> str:
    """Which they are, and what encrypts them; "" if there are none."""
    return " ".join(
        f"{field} go to {host} in clear text{', and so do the rows' if rows else ''}. {mend}"
        for field, host, rows, mend in _unencrypted(changefeed.spec.sink)
        if not is_this_machine(host)
    )


def _unencrypted(sink: SinkSpec) -> Iterator[tuple[str, str, bool, str]]:
    """(field, host, whether rows go there, the way out) of what has credentials and no TLS."""
    mysql, kafka, iceberg = sink.mysql, sink.kafka, sink.iceberg
    if mysql is not None and mysql.credentials is not None and mysql.tls is None:
        yield "spec.sink.mysql.credentials", urlsplit(mysql.uri).hostname or "", True, "Set spec.sink.mysql.tls."
    # SCRAM proves the password without sending it.
    if kafka is not None and kafka.credentials is not None and kafka.tls is None and kafka.sasl_mechanism == "PLAIN":
        brokers = (urlsplit(f"//{broker}").hostname or "" for broker in urlsplit(kafka.uri).netloc.split(","))
        host = next((host for host in brokers if not is_this_machine(host)), "localhost")
        yield "spec.sink.kafka.credentials", host, True, "Set spec.sink.kafka.tls."
    if kafka is not None and kafka.schema_registry_credentials is not None:
        registry = urlsplit(kafka.schema_registry or "")
        if registry.scheme == "http":
            mend = "Use https in schemaRegistry."
            yield "spec.sink.kafka.schemaRegistryCredentials", registry.hostname or "", False, mend
    if iceberg is not None and iceberg.catalog.credentials is not None and iceberg.catalog.tls is None:
        catalog = urlsplit(iceberg.catalog.uri)
        mend = "Use https in its uri." if catalog.scheme == "http" else "Set spec.sink.iceberg.catalog.tls."
        if catalog.scheme in ("http", "mysql", "postgresql"):
            yield "spec.sink.iceberg.catalog.credentials", catalog.hostname or "", False, mend
