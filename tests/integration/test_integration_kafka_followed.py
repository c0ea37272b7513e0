"""What readers of a topic have in the end, under DDLs and SIGKILLs; bench/kafka_consumers.py is the long form."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from changefeed_devcluster.tidb.schema import NewColumn
from conftest import Changefeed, Upstream
from integration_connect_worker import jdbc_sink
from integration_inprocess import new_world
from integration_java import COMPILE_S, FETCH_S
from integration_kafka_broker import running
from integration_kafka_followed import TOPIC, Protocol, followed, spec
from integration_mariadb import MariaDb

DDLS, KILLS, ROWS_A_SECOND = 10, ("worker killed", "driver killed"), 60.0

pytestmark = pytest.mark.timeout(FETCH_S + COMPILE_S + 300)


@pytest.mark.parametrize(
    ("protocol", "delivery"),
    [("debezium", "exactly-once"), ("debezium", "at-least-once"), ("canal-json", "exactly-once")],
)
def test_each_reader_has_the_upstreams_rows_in_the_end(
    upstream: Upstream,
    new_changefeed: Callable[..., Changefeed],
    tmp_path: Path,
    protocol: Protocol,
    delivery: str,
) -> None:
    changefeed = new_changefeed(["shop.*"])
    found = followed(tmp_path / "readers", upstream, changefeed, protocol, delivery, DDLS, KILLS, ROWS_A_SECOND)
    print(found)  # noqa: T201 - what a failing run shows
    assert found["flink_rows"] > found["left_by_truncate"]


@pytest.mark.parametrize(
    ("kind", "value", "columns", "why"),
    [
        ("bigint unsigned", (1 << 64) - 1, ", v BIGINT UNSIGNED", "Out of range value for column 'v'"),
        ("bit(12)", 0x234, ", v BIT(12)", "Data too long for column 'v'"),
        ("time", timedelta(hours=-1), ", v TIME", "Invalid value for NanoOfDay"),
        ("time", timedelta(hours=24), ", v TIME", "Invalid value for NanoOfDay"),
        ("enum('a','b,c')", "a", "", "ADD COLUMN ( `v` enum('a','b\\','c') NULL)"),
    ],
)
async def test_a_jdbc_sink_ends_at_what_its_table_can_not_hold(
    mariadb: MariaDb, tmp_path: Path, kind: str, value: Any, columns: str, why: str
) -> None:
    database = tmp_path.name  # no other case has it
    mariadb.query(f"CREATE DATABASE {database}", f"CREATE TABLE {database}.t (id BIGINT PRIMARY KEY{columns})")
    (tmp_path / "kafka").mkdir()
    with running(tmp_path / "kafka") as broker, new_world(tmp_path / "world") as world:
        table = world.tidb.create_table("shop", "t", (NewColumn("id", "bigint"), NewColumn("v", kind, nullable=True)))
        start_ts = world.tidb.now()
        with world.tidb.begin() as txn:
            txn.insert(table, {"id": 1, "v": value})
        sink = spec(broker, "debezium", "exactly-once")
        bounds = {"startTs": str(start_ts), "targetTs": str(txn.commit_ts)}
        await world.run(filter={"rules": ["shop.t"]}, sink=sink, **bounds).outcome()
        with jdbc_sink(tmp_path, broker, TOPIC, mariadb, f"{database}.t") as worker:
            worker.start()
            assert why in worker.wait_until_failed()
