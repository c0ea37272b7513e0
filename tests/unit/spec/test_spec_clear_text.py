"""Which credentials a network would carry as they are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from changefeed.spec.clear_text import in_clear_text
from changefeed.spec.parse import parse

SECRET = {"secretRef": {"name": "writer"}}


def told_of(**sink: Any) -> str:
    spec = {"upstream": {"pdAddresses": ["http://pd:2379"]}, "filter": {"rules": ["a.*"]}, "sink": sink}
    resource = {"apiVersion": "changefeed.dev/v1alpha1", "kind": "Changefeed", "metadata": {"name": "x"}, "spec": spec}
    return in_clear_text(parse(json.dumps(resource)))


def told(**mysql: Any) -> str:
    return told_of(mysql=mysql)


@pytest.mark.parametrize("host", ["db.prod", "db.shop.svc.cluster.local", "db", "10.0.0.7", "[2001:db8::1]"])
def test_a_password_to_another_machine_is_told(host: str) -> None:
    shown = host.strip("[]")
    message = f"spec.sink.mysql.credentials go to {shown} in clear text, and so do the rows. Set spec.sink.mysql.tls."
    assert told(uri=f"mysql://{host}:3306", credentials=SECRET) == message
    assert told(uri=f"mysql://{host}:3306", credentials=SECRET, tls=SECRET) == ""


@pytest.mark.parametrize("host", ["localhost", "db.localhost", "127.0.0.1", "127.8.8.8", "[::1]"])
def test_what_stays_on_this_machine_is_not(host: str) -> None:
    assert told(uri=f"mysql://{host}:3306", credentials=SECRET) == ""


def test_without_a_password_there_is_none_to_read() -> None:
    assert told(uri="mysql://db.prod:3306") == ""


def test_a_broker_reads_a_plain_password() -> None:
    def kafka(uri: str, **more: Any) -> str:
        return told_of(kafka={"uri": uri, "protocol": "canal-json", "credentials": SECRET} | more)

    message = "spec.sink.kafka.credentials go to b.prod in clear text, and so do the rows. Set spec.sink.kafka.tls."
    assert kafka("kafka://localhost:9092,b.prod:9092/shop") == message
    assert kafka("kafka://localhost:9092,[::1]:9093/shop") == ""
    assert kafka("kafka://b.prod:9092/shop", tls=SECRET) == ""
    assert kafka("kafka://b.prod:9092/shop", saslMechanism="SCRAM-SHA-512") == ""
    assert kafka("kafka://b.prod:9092/shop", credentials=None) == ""


@pytest.mark.parametrize(
    ("uri", "is_told"), [("http://r.prod:8081", True), ("https://r.prod", False), ("http://localhost:8081", False)]
)
def test_a_schema_registry_reads_a_password(uri: str, is_told: bool) -> None:
    def registry(**more: Any) -> str:
        return told_of(kafka={"uri": "kafka://b.prod:9092/shop", "protocol": "avro", "schemaRegistry": uri} | more)

    said = "spec.sink.kafka.schemaRegistryCredentials go to r.prod in clear text. Use https in schemaRegistry."
    assert registry(schemaRegistryCredentials=SECRET | {"overHttp": True}) == (said if is_told else "")
    assert registry() == ""


@pytest.mark.parametrize(
    ("uri", "mend"),
    [
        ("http://lake.prod:8181/api", "Use https in its uri."),
        ("mysql://lake.prod:3306/lake", "Set spec.sink.iceberg.catalog.tls."),
        ("postgresql://lake.prod:5432/lake", "Set spec.sink.iceberg.catalog.tls."),
        ("https://lake.prod/api", ""),
        ("http://localhost:8181/api", ""),
    ],
)
def test_a_catalog_reads_a_token(uri: str, mend: str) -> None:
    def catalog(**more: Any) -> str:
        return told_of(iceberg={"warehouse": "s3://lake/tables", "catalog": {"uri": uri} | more})

    said = "spec.sink.iceberg.catalog.credentials go to lake.prod in clear text. "
    assert catalog(credentials=SECRET) == (said + mend if mend else "")
    assert catalog() == ""
    if not uri.startswith("http:"):
        assert catalog(credentials=SECRET, tls=SECRET) == ""
