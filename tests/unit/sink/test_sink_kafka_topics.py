"""Which tables may share a topic."""

from __future__ import annotations

import json
from typing import Any

import pytest
from changefeed.errors import InvalidSpec
from changefeed.log.state import State
from changefeed.schema.table_info import parse_table_info
from changefeed.sink.claim import Taken
from changefeed.sink.kafka.claim import KafkaClaim
from changefeed.spec.parse import parse

OWN = [{"matcher": ["*.*"], "topic": "{schema}_{table}"}]


def settle_in(state: State, *tables: str, **kafka: Any) -> None:
    place = {"uri": "kafka://b:1/feed", "schemaRegistry": "http://r:8081"}
    spec = {
        "upstream": {"pdAddresses": ["http://pd:2379"]},
        "filter": {"rules": ["a.*"]},
        "sink": {"kafka": place | kafka},
    }
    resource = {"apiVersion": "changefeed.dev/v1alpha1", "kind": "Changefeed", "metadata": {"name": "x"}, "spec": spec}
    infos = [parse_table_info({"id": id_, "name": {"O": name}, "state": 5}, "a") for id_, name in enumerate(tables, 1)]
    sink = KafkaClaim(parse(json.dumps(resource)))
    sink.settle_in(Taken(state, "file:///state"), [(info.id, info, 1, True) for info in infos])


def test_avro_has_one_table_in_a_topic() -> None:
    with pytest.raises(InvalidSpec, match=r"a\.t and a\.u would both go to topic feed") as refused:
        settle_in(State(), "t", "u", protocol="avro")
    assert '{matcher: ["*.*"], topic: "{schema}_{table}"}' in refused.value.next_step
    settle_in(State(), "t", "u", protocol="avro", dispatchers=OWN)
    settle_in(State(), "t", protocol="avro")


def test_what_is_written_already_is_not_refused() -> None:
    settle_in(State(rows=1), "t", "u", protocol="avro")
    settle_in(State(), "t", "u", protocol="debezium")
