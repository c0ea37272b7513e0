"""The points of the sinks that write to a database or to topics (integration_points), and what makes their runs short.

A call of the sink is a point before it and one after it; in between, *committing* is before a COMMIT, *fenced* after
the call that shuts earlier producers out, and messages are *queued*, then *acknowledged*, which is before a transaction
of them is committed.
"""

from __future__ import annotations

from typing import Any

from changefeed.sink.kafka import driver as kafka_driver
from changefeed.sink.kafka import entry_writer, exactly_once, producer
from changefeed.sink.kafka.driver import KafkaDriver
from changefeed.sink.kafka.exactly_once import ExactlyOnce
from changefeed.sink.kafka.producer import Sender
from changefeed.sink.mysql import driver as mysql_driver
from changefeed.sink.mysql import server
from changefeed.sink.mysql.control import Control
from changefeed.sink.mysql.driver import MysqlDriver
from changefeed.sink.mysql.server import Session
from changefeed.sink.mysql.writer import BatchWriter
from confluent_kafka import Consumer, Producer
from integration_points import Points, wrap

#: What a point's name begins with that is of the driver or a task at a MySQL-compatible server, or at Kafka.
MYSQL = (
    "claim a dispatcher",
    "claim the DDLs",
    "write a batch",
    "end an entry",
    "execute a DDL",
    "make a DDL's statements",
    "run a DDL's statement",
    "check a DDL's tables",
    "begin an index",
    "build an index",
)
KAFKA = (
    "create a topic",
    "create the progress topic",
    "claim a dispatcher",
    "commit a claim",
    "send an entry's rows",
    "commit an entry",
    "tell a DDL",
    "tell the resolved-ts",
)
_DDLS = 0  # the dispatcher that stands for the driver's own statements
_LEFT_ALONE_S = 1.0  # then a server closes the connection of who is frozen, which has locks
_PROGRESS_PARTITIONS = 2


def install(points: Points) -> None:
    """From now on this process passes points."""
    _wrap_mysql(points)
    _wrap_kafka(points)


def _wrap_mysql(points: Points) -> None:
    claim, commit = Control.claim, Session.commit

    def claim_(self: Control, who: Any) -> Any:
        with points.around("claim the DDLs" if who.dispatcher == _DDLS else "claim a dispatcher"):
            return claim(self, who)

    def commit_(self: Session, *following: Any) -> Any:
        points.inside("committing")
        return commit(self, *following)

    Control.claim, Session.commit = claim_, commit_  # type: ignore[method-assign]
    for where, method, name in (
        (BatchWriter, "write", "write a batch"),
        (Control, "finish", "end an entry"),
        (MysqlDriver, "_execute", "execute a DDL"),
        (MysqlDriver, "_statements", "make a DDL's statements"),
        (MysqlDriver, "_check", "check a DDL's tables"),
        (MysqlDriver, "_begin_build", "begin an index"),
        (MysqlDriver, "is_built", "build an index"),
        (mysql_driver, "_run", "run a DDL's statement"),
    ):
        wrap(points, where, method, name)
    # A connection that nobody uses is closed by us just before the server does.
    server.IDLE_S = _LEFT_ALONE_S / 2
    wait = b"wait_timeout=%d" % _LEFT_ALONE_S
    server.SESSION = tuple(each.replace(b"wait_timeout=60", wait) for each in server.SESSION)


def _wrap_kafka(points: Points) -> None:
    claim, commit, flush, create = ExactlyOnce.claim, ExactlyOnce._commit, Sender.flush, kafka_driver.create_topic

    class Transactions(Producer):  # type: ignore[misc]
        def init_transactions(self, *more: Any) -> None:
            super().init_transactions(*more)
            points.inside("fenced")

    def claim_(self: ExactlyOnce, entry: Any) -> Any:
        if not self._is_first:
            return claim(self, entry)
        with points.around("claim a dispatcher"):
            return claim(self, entry)

    def commit_(self: ExactlyOnce, progress: Any) -> None:
        with points.around("commit a claim" if self._is_first else "commit an entry"):
            commit(self, progress)

    def flush_(self: Sender) -> None:
        points.inside("queued")
        flush(self)
        points.inside("acknowledged")

    def create_(cluster: Any, topic: str, partitions: int, replication: int, *, compacted: bool = False) -> int:
        with points.around("create the progress topic" if compacted else "create a topic"):
            return create(cluster, topic, partitions, replication, compacted=compacted)

    producer.Producer = Transactions
    ExactlyOnce.claim, ExactlyOnce._commit, Sender.flush = claim_, commit_, flush_  # type: ignore[method-assign]
    kafka_driver.create_topic = create_  # type: ignore[attr-defined,assignment]
    for where, method, name in (
        (ExactlyOnce, "send", "send an entry's rows"),
        (KafkaDriver, "execute", "tell a DDL"),
        (KafkaDriver, "write_checkpoint", "tell the resolved-ts"),
    ):
        wrap(points, where, method, name)


def progress_topic_of(topic: str) -> str:
    return f"{topic}.progress"


def name_progress_topic(topic: str) -> None:
    """Name this process's topic: each run has its own, so that none reads what a hundred others have left there."""
    kafka_driver.PROGRESS_PARTITIONS = _PROGRESS_PARTITIONS
    for module in (entry_writer, kafka_driver):
        module.progress_topic = lambda: progress_topic_of(topic)  # type: ignore[attr-defined]
    # An empty topic is an answer at once.
    exactly_once.Consumer = lambda config: Consumer(config | {"fetch.wait.max.ms": 10})  # type: ignore[attr-defined]
