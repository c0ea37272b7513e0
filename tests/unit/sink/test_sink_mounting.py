"""How each kind of sink wants rows: by its own options, as a plan's epoch had them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from changefeed.objectstore import Location
from changefeed.sink.choice import claim_on
from changefeed.sink.delta.event_sink import DeltaJob
from changefeed.sink.iceberg.event_sink import IcebergJob
from changefeed.sink.records import Mounting
from changefeed.spec.model import Changefeed
from changefeed.spec.parse import effective, parse
from changefeed.spec.sink.choice import SinkSpec

ZONE = "Asia/Shanghai"
LAKE = "file:///lake"


def changefeed(sink: dict[str, Any]) -> Changefeed:
    spec = {"upstream": {"pdAddresses": ["http://pd:2379"]}, "timeZone": ZONE, "sink": sink}
    head = {"apiVersion": "changefeed.dev/v1alpha1", "kind": "Changefeed", "metadata": {"name": "feed"}}
    return parse(json.dumps(head | {"spec": spec}))


@pytest.mark.parametrize(
    ("sink", "expected"),
    [
        ({"storage": {"uri": LAKE, "protocol": "csv"}}, Mounting(ZONE)),
        ({"storage": {"uri": LAKE, "protocol": "csv", "outputRawChangeEvent": True}}, Mounting(ZONE, split=False)),
        (
            {"storage": {"uri": LAKE, "protocol": "csv", "csv": {"outputOldValue": True}}},
            Mounting(ZONE, halve_updates=True),
        ),
        ({"storage": {"uri": LAKE, "protocol": "canal-json"}}, Mounting(ZONE, with_old=True)),
        ({"storage": {"uri": LAKE, "protocol": "parquet"}}, Mounting("UTC")),
        ({"mysql": {"uri": "mysql://127.0.0.1:3306"}}, Mounting("UTC", with_old=True)),
        ({"kafka": {"uri": "kafka://127.0.0.1:9092/t", "protocol": "canal-json"}}, Mounting(ZONE, with_old=True)),
        ({"kafka": {"uri": "kafka://127.0.0.1:9092/t", "protocol": "debezium"}}, Mounting("UTC", with_old=True)),
        (
            {"kafka": {"uri": "kafka://127.0.0.1:9092/t", "protocol": "canal-json", "outputRawChangeEvent": True}},
            Mounting(ZONE, with_old=True, split=False),
        ),
        ({"blackhole": {}}, Mounting(ZONE)),
    ],
)
def test_a_sink_says_how_it_wants_rows(sink: dict[str, Any], expected: Mounting) -> None:
    feed = changefeed(sink)
    ((kind, options),) = effective(feed)["spec"]["sink"].items()
    assert feed.spec.sink.kind == kind
    assert claim_on(feed).job().mounting(options, ZONE) == expected


LEAST: dict[str, dict[str, Any]] = {
    "storage": {"uri": LAKE, "protocol": "csv"},
    "iceberg": {"warehouse": LAKE, "catalog": {"uri": "sqlite:////lake/catalog.db"}},
    "delta": {"uri": LAKE},
    "mysql": {"uri": "mysql://127.0.0.1:3306"},
    "kafka": {"uri": "kafka://127.0.0.1:9092/t", "protocol": "canal-json"},
    "blackhole": {},
}


@pytest.mark.parametrize("kind", SinkSpec.model_fields)
def test_every_kind_has_a_claim_of_its_own(kind: str) -> None:
    claim = claim_on(changefeed({kind: LEAST[kind]}))
    assert type(claim).__module__.startswith(f"changefeed.sink.{kind}")
    assert isinstance(claim.in_order, bool)
    assert claim.uri
    assert claim.fingerprint
    assert claim.file_size > 0


@pytest.mark.parametrize(("mode", "with_old"), [("append", False), ("upsert", True)])
def test_tables_of_a_lake_want_old_rows_to_upsert(mode: str, with_old: bool) -> None:
    for job in (IcebergJob, DeltaJob):
        assert job(Location(LAKE)).mounting({"mode": mode}, ZONE) == Mounting("UTC", with_old=with_old)
