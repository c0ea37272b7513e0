"""A whole changefeed of a table that is altered (integration_kafka_altered), killed meanwhile, and the readers of its
topic: Flink's format, and for debezium Kafka Connect with a JDBC sink into MariaDB, which follows all the while.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any, Literal

import pymysql
from conftest import Changefeed, Upstream, wait_for
from integration_connect_worker import Worker, jdbc_sink
from integration_flink_reader import FlinkReader, Refused, flink_reader
from integration_kafka_altered import DATABASE, TABLE, Altered, Row, State
from integration_kafka_broker import Broker, consumed
from integration_kafka_broker import running as broker_running
from integration_killer import Killer
from integration_mariadb import MariaDb
from integration_mariadb import running as mariadb_running
from integration_story import Story

Protocol = Literal["debezium", "canal-json"]
TOPIC, PARTITIONS = TABLE, 3
#: Of MariaDB: another one than TIMESTAMP is told in.
ZONE = "--default-time-zone=-05:00"
_PULLERS, _DDLS_S, _ROWS_BEHIND = 1, 300.0, 60
_FLINK = {
    "debezium": {"schema-include": "true", "timestamp-format.standard": "ISO-8601"},
    "canal-json": {"database.include": DATABASE},
}
_ROWS = {"c", "u", "d", "INSERT", "UPDATE", "DELETE"}


def spec(broker: Broker, protocol: Protocol, delivery: str) -> dict[str, Any]:
    """A `spec.sink`. With debezium all is told that ExtractNewRecordState drops."""
    partition = "key" if protocol == "debezium" else "index-value"
    kafka = {
        "uri": f"kafka://{broker.cluster.brokers}/{TOPIC}",
        "protocol": protocol,
        "delivery": delivery,
        "partitionNum": PARTITIONS,
        "dispatchers": [{"matcher": ["*.*"], "partition": partition}],
        "debezium": {"watermarks": True, "ddls": True},
    }
    return {"kafka": kafka}


def followed(
    folder: Path,
    upstream: Upstream,
    changefeed: Changefeed,
    protocol: Protocol,
    delivery: str,
    ddls: int,
    kills: Sequence[str],
    rate: float,
) -> dict[str, Any]:
    """What was counted; raises AssertionError for a row that a reader has otherwise than upstream.

    `kills`: as `Killer` names them, and "connect killed". They come after every so many DDLs, amid the next ones.
    """
    began, story = time.monotonic(), Story()
    with ExitStack() as stack:
        broker = stack.enter_context(broker_running(_made(folder / "kafka")))
        database = (
            stack.enter_context(mariadb_running(_made(folder / "mariadb"), ZONE)) if protocol == "debezium" else None
        )
        altered = Altered(upstream.tidb, story.seed, lambda statement: by_hand(database, statement))
        if database is not None:
            database.query(f"CREATE DATABASE {DATABASE}")
        altered.create()
        changefeed.spec["startTs"] = str(altered.start_ts)
        changefeed.spec["spark"] = {"pullers": {"count": _PULLERS}, "executor": {"instances": 1, "cores": _PULLERS + 1}}
        changefeed.spec["sink"] = spec(broker, protocol, delivery)
        killer = Killer(upstream, changefeed, _PULLERS, story.say, downstream_port=broker.port)
        killer.start()
        killer.wait_until_passed()
        worker = None
        if database is not None:
            worker = stack.enter_context(jdbc_sink(folder, broker, TOPIC, database, f"{DATABASE}.{TABLE}"))
            worker.start()
        with writing(altered, rate) as failed:
            alter_and_kill(altered, failed, ddls, kills, killer, worker)
        killer.wait_until_passed()
        code, _, err = changefeed.drain()
        assert code == 0, err
        found = {"protocol": protocol, "delivery": delivery, "seed": story.seed}
        found |= {"ddls": dict(altered.done), "kills": dict(Counter(kills))}
        found |= check_flink(flink_reader(_made(folder / "classes")), broker, altered, protocol, delivery)
        if database is not None and worker is not None:
            worker.wait_until_read()
            found |= check_table(database, altered)
        return found | {"seconds": round(time.monotonic() - began)}


def alter_and_kill(
    altered: Altered, failed: list[Exception], ddls: int, kills: Sequence[str], killer: Killer, worker: Worker | None
) -> None:
    """`failed`: ends it."""
    parts = len(kills) + 1
    for number in range(1, parts + 1):
        altered.limit = due = number * ddls // parts
        wait_for(lambda: altered.done.total() >= due or failed, f"{due} DDLs have begun", _DDLS_S)  # noqa: B023
        if number < parts:
            altered.limit = (number + 1) * ddls // parts
            harm(kills[number - 1], killer, worker)
    enough = altered.written + _ROWS_BEHIND
    wait_for(lambda: altered.written >= enough or failed, "rows are written after the last DDL")


def harm(event: str, killer: Killer, worker: Worker | None) -> None:
    if event != "connect killed":
        killer.harm(event)
    elif worker is not None:
        worker.kill()
        worker.start()


@contextmanager
def writing(altered: Altered, rate: float) -> Iterator[list[Exception]]:
    """What fails in its thread is told at once, and fails here."""
    stop, failed = Event(), list[Exception]()

    def write() -> None:
        try:
            altered.run(stop, rate)
        except Exception as error:  # noqa: BLE001 - raised below
            failed.append(error)

    writer = Thread(target=write)
    writer.start()
    try:
        yield failed
    finally:
        stop.set()
        writer.join()
    if failed:
        raise failed[0]


def check_flink(
    flink: FlinkReader, broker: Broker, altered: Altered, protocol: Protocol, delivery: str
) -> dict[str, Any]:
    """Each change is told, once with exactly-once; and what they leave is right, by key."""
    values = [value for _, _, value in consumed(broker.cluster, TOPIC)]
    types = [(name, reading.flink) for name, reading in altered.columns(protocol).items()]
    read = flink.read("debezium-json" if protocol == "debezium" else protocol, _FLINK[protocol], types, values)
    rows: State = {}
    messages = 0
    for value, changes in zip(values, read, strict=True):
        is_row = kind(protocol, value) in _ROWS
        messages += is_row
        assert isinstance(changes, Refused) != is_row, (changes, value)
        for change in [] if isinstance(changes, Refused) else changes:
            if change.kind in ("-U", "-D"):
                rows.pop(change.row["id"], None)
            else:
                rows[change.row["id"]] = change.row
    right = altered.by_flink(protocol)
    check_same(rows, right)
    made = len(altered.changes())
    assert messages == made if delivery == "exactly-once" else messages >= made, (messages, made)
    left = len(right) - len(altered.upstream())
    return {"changes": made, "told_again": messages - made, "flink_rows": len(rows), "left_by_truncate": left}


def kind(protocol: Protocol, value: bytes) -> str:
    said = json.loads(value)
    return str(said["payload"].get("op", "DDL") if protocol == "debezium" else said["type"])


def check_table(database: MariaDb, altered: Altered) -> dict[str, Any]:
    """The table that the connector has written has the upstream's rows, and those that were only truncated."""
    rows = stored(database, altered.shown())
    check_same(rows, altered.by_table())
    return {"table_rows": len(rows)}


def check_same(read: State, right: State) -> None:
    assert read.keys() == right.keys(), f"surplus {read.keys() - right.keys()}, missing {right.keys() - read.keys()}"
    wrong = [
        (key, name, read[key][name], value)
        for key, row in right.items()
        for name, value in row.items()
        if read[key][name] != value
    ]
    assert not wrong, f"(key, column, what was read, what is right): {wrong[:5]}"


def stored(database: MariaDb, shown: dict[str, str]) -> State:
    """The table's rows, as Python has them."""
    query = f"SELECT {', '.join(shown.values())} FROM {DATABASE}.{TABLE}"
    connection = pymysql.connect(host="127.0.0.1", port=database.port, user="root", ssl_disabled=True)
    with connection, connection.cursor() as cursor:
        cursor.execute("SET NAMES utf8mb4, time_zone='+00:00'")
        cursor.execute(query)
        rows: list[Row] = [dict(zip(shown, row, strict=True)) for row in cursor.fetchall()]
    return {row["id"]: row for row in rows}


def by_hand(database: MariaDb | None, statement: str) -> None:
    """What an operator does for a JDBC sink before the upstream's DDL."""
    if database is not None:
        database.query(f"USE {DATABASE}", statement)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
