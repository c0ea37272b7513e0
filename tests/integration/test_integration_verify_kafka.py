"""`changefeed verify` of a Kafka sink: topics of a real broker, filled by hand from a history, with our codecs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from changefeed.cli.main import main
from changefeed.filter.selection import Selection
from changefeed.log.log import Log
from changefeed.log.records import CommitRecord, EpochRecord, StartRecord
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.objectstore.open import open_store
from changefeed.objectstore.patience import Patience
from changefeed.pipeline.mounter import mount
from changefeed.sink.contract import Claim, Entry, EntryId
from changefeed.sink.kafka.claim import kafka_endpoint
from changefeed.sink.kafka.codec.message import DdlEvent, Message
from changefeed.sink.kafka.entry_writer import KafkaJob, MessageEncoder, codec_for
from changefeed.spec.parse import effective, parse
from changefeed.upstream.tikv.access import TikvAccess
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.tidb.keys import table_span
from changefeed.verify.kafka import topics
from changefeed.verify.recorded import lives_of
from changefeed.verify.upstream.history import Collected, read_history
from changefeed.verify.upstream.lives import Life, Lives
from changefeed_devcluster.tidb.schema import NewColumn
from confluent_kafka import Producer
from conftest import Upstream
from integration_kafka_broker import Broker, made_topic, running
from integration_types import KINDS, ZONE

PARTS = 2
NOTES = (NewColumn("id", "bigint"), NewColumn("note", "varchar(40)", nullable=True))
TYPES = (NewColumn("id", "bigint"), *(NewColumn(f"v{n}", kind.sql, nullable=True) for n, kind in enumerate(KINDS)))
MANY = max(len(kind.cells) for kind in KINDS)
TYPE_ROWS = [
    {"id": n} | {f"v{m}": kind.cells[n].value if n < len(kind.cells) else None for m, kind in enumerate(KINDS)}
    for n in range(MANY + 1)
]
ALTER_COLUMN = 5  # ADD COLUMN's action


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


class Scene:
    """A changefeed whose log is at a checkpoint, and whose topics hold what they should."""

    def __init__(
        self, upstream: Upstream, broker: Broker, folder: Path, name: str, *, told_of: str = "notes", **kafka: Any
    ) -> None:
        """`told_of`: the table that the message of its DDL names, "" for no message."""
        self.cluster, self.name, self._told_of = broker.cluster, name, told_of
        self.file = folder / "changefeed.json"
        self._upstream = upstream
        start_ts = self._write_history()
        self.checkpoint_ts = upstream.tidb.now()
        rule = {"matcher": ["shop.types"], "topic": f"{name}_{{schema}}_{{table}}", "partition": "index-value"}
        by_key = {"matcher": ["*.*"], "partition": "index-value"}
        self.resource = {
            "apiVersion": "changefeed.dev/v1alpha1",
            "kind": "Changefeed",
            "metadata": {"name": "test"},
            "spec": {
                "upstream": {"pdAddresses": [f"http://{upstream.cluster.pd_address}"]},
                "timeZone": ZONE,
                "filter": {"rules": ["shop.*"]},
                "state": {"uri": (folder / "state").as_uri()},
                "sink": {
                    "kafka": {
                        "uri": f"kafka://{self.cluster.brokers}/{name}",
                        "dispatchers": [rule, by_key],
                        "delivery": "exactly-once",
                        **kafka,
                    }
                },
            },
        }
        self.file.write_text(json.dumps(self.resource))
        changefeed = parse(self.file.read_text())
        self._config = effective(changefeed)
        self._options = self._config["spec"]["sink"]["kafka"]
        self._job = KafkaJob(kafka_endpoint(changefeed), True, False)
        log = Log(open_store((folder / "state" / "default" / "test" / "local").as_uri()))
        cluster = upstream.cluster.cluster_id
        log.append(StartRecord(n=1, epoch=0, nonce="a", start_ts=start_ts, cluster_id=cluster, uid="local"))
        epoch = EpochRecord(n=2, epoch=1, nonce="a", attempt=0, host="h", pid=1, config=self._config, versions={})
        log.append(epoch)
        log.append(CommitRecord(n=3, epoch=1, nonce="a", checkpoint_ts=self.checkpoint_ts))
        self.types_topic = f"{name}_shop_types"
        for topic in (name, self.types_topic):
            made_topic(self.cluster, topic, PARTS)
        self._producer = Producer(self.cluster.producer_config() | {"transactional.id": name})
        self._producer.init_transactions()
        asyncio.run(self._fill(log))

    def _write_history(self) -> int:
        tidb = self._upstream.tidb
        tidb.create_database("shop")
        types = tidb.create_table("shop", "types", TYPES)
        parted = tidb.create_table("shop", "parted", NOTES, partitions={"p0": 5, "p1": 100})
        notes = tidb.create_table("shop", "notes", NOTES)
        with tidb.begin() as txn:
            txn.insert(notes, {"id": 1, "note": "from before"})
        start_ts = tidb.now()
        for row in TYPE_ROWS:
            with tidb.begin() as txn:
                txn.insert(types, row)
        with tidb.begin() as txn:
            for pk in range(1, 10):
                for table in (parted, notes) if pk > 1 else (parted,):
                    txn.insert(table, {"id": pk, "note": f"note {pk}"})
        with tidb.begin() as txn:
            for row in TYPE_ROWS:
                txn.update(types, {**TYPE_ROWS[(row["id"] + 1) % len(TYPE_ROWS)], "id": row["id"]})
            txn.delete(notes, 1)
            txn.update(parted, {"id": 7, "note": None})
        notes = tidb.add_column(notes, NewColumn("more", "int", nullable=True))
        with tidb.begin() as txn:
            txn.insert(notes, {"id": 1, "note": "again", "more": 3})
            txn.update(notes, {"id": 2, "note": "", "more": 4})
        with tidb.begin() as txn:
            txn.delete(types, 0)
        return start_ts

    async def _fill(self, log: Log) -> None:
        upstream = await TikvAccess((f"http://{self._upstream.cluster.pd_address}",)).connect()
        pd = upstream.pd
        try:
            lives = await lives_of(log.state, pd, self.checkpoint_ts)
            for life in sorted(lives.all, key=lambda life: life.from_ts):
                if self._told_of and not life.is_first:
                    self._tell_ddl(life, lives)
                await self._write_rows(pd, life)
        finally:
            await upstream.close()
        self.resolve(self.checkpoint_ts)

    def _tell_ddl(self, life: Life, lives: Lives) -> None:
        assert [ts for _, ts in lives.statements] == [life.from_ts]
        info = life.info
        query = "ALTER TABLE notes ADD COLUMN more INT"
        event = DdlEvent(ALTER_COLUMN, query, info.schema_name, self._told_of, life.from_ts, info, info)
        codec = codec_for(self._job, self._options, self._config["spec"]["timeZone"])
        self.send([(self.name, 0, codec.ddl(event, 1))])

    async def _write_rows(self, pd: PdClient, life: Life) -> None:
        versions = Collected()
        await read_history(pd, *table_span(life.physical_id), life.from_ts, life.to_ts, into=versions)
        found = versions.table().sort_by([("commit_ts", "ascending")]).combine_chunks()
        op = pc.if_else(
            found["delete"], OP_DELETE, pc.if_else(pc.is_valid(found["old_value"]), OP_UPDATE, OP_INSERT)
        ).cast(pa.uint8())
        names = ["commit_ts", "start_ts", "key", "value", "old_value"]
        columns = [each.combine_chunks() for each in (op, *(found[name] for name in names))]
        columns = [each.chunk(0) if isinstance(each, pa.ChunkedArray) else each for each in columns]
        rows = pa.RecordBatch.from_arrays(columns, ["op", *names])
        zone = self._config["spec"]["timeZone"]
        written = Selection.of(self._config, life.info).columns
        records = mount(rows, life.info, zone, written=written, with_old=True)
        claim = Claim("a", life.physical_id, 1, "a", 0)
        entry = Entry(claim, EntryId(1, 0), life.to_ts, {}, life.info, life.from_ts, written, 1, zone, self._options)
        topic, messages, partitions = MessageEncoder(self._job, self.cluster, Patience(30)).messages(entry, records, 0)
        sides = zip(partitions.tolist(), messages.keys.to_pylist(), messages.values.to_pylist(), strict=True)
        self.send([(topic, part, Message(key, value)) for part, key, value in sides])

    def resolve(self, ts: int, parts: int = PARTS) -> None:
        message = codec_for(self._job, self._options, "UTC").resolved(ts, 1)
        self.send([(topic, part, message) for topic in (self.name, self.types_topic) for part in range(parts)])

    def send(self, messages: list[tuple[str, int, Message | None]], *, abort: bool = False, end: bool = True) -> None:
        """In one transaction. Not `end`: it stays open."""
        self._producer.begin_transaction()
        for topic, part, message in messages:
            assert message is not None
            self._producer.produce(topic, message.value, message.key, part)
        self._producer.flush(30)
        if abort:
            self._producer.abort_transaction(30)
        elif end:
            self._producer.commit_transaction(30)

    def end(self) -> None:
        self._producer.commit_transaction(30)


@pytest.mark.parametrize(
    "options",
    [{"protocol": "canal-json", "canalJson": {"enableTidbExtension": True}}, {"protocol": "open-protocol"}],
    ids=["canal-json", "open-protocol"],
)
def test_topics_are_held_against_the_upstream(
    upstream: Upstream,
    broker: Broker,
    tmp_path: Path,
    options: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(upstream, broker, tmp_path, options["protocol"], **options)

    def verify() -> tuple[int, dict[str, Any]]:
        code = main(["verify", "-f", str(scene.file), "--json"])
        return code, json.loads(capsys.readouterr().out)

    code, verdict = verify()
    assert code == 0, verdict
    assert (verdict["topics"], verdict["partitions"], verdict["tables"]) == (2, 2 * PARTS, 3)
    assert verdict["rows"] == (2 * len(TYPE_ROWS) + 1) + (9 + 1) + (8 + 1 + 2)
    assert verdict["replayed"] == (len(TYPE_ROWS) - 1) + 9 + (8 + 9)  # of two lives
    assert verdict["notes"] == []

    foreign = codec_for(scene._job, scene._options, "UTC").resolved(scene.checkpoint_ts + 1, 1)
    scene.send([(scene.name, 0, foreign)], abort=True)  # nobody sees it, and its marker ends the partition
    assert verify()[0] == 0

    monkeypatch.setattr(topics, "SILENT_S", 1.0)
    scene.send([(scene.name, 0, codec_for(scene._job, scene._options, "UTC").resolved(1, 1))], end=False)
    code, verdict = verify()
    assert code == 3
    assert "a transaction is open there" in json.dumps(verdict)
    scene.end()
    code, verdict = verify()
    assert (code, verdict["went_back"]) == (4, 1)
    assert verdict["first_problem"].endswith(f"resolved-ts 1 stands behind {scene.checkpoint_ts}.")


def test_a_ddl_that_no_message_tells_of(
    upstream: Upstream, broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = Scene(upstream, broker, tmp_path, "untold", told_of="", protocol="open-protocol")
    assert main(["verify", "-f", str(scene.file), "--json"]) == 4
    problem = json.loads(capsys.readouterr().out)["first_problem"]
    assert problem.startswith("No message tells a reader of shop.notes of the DDL at ")


def test_a_ddl_of_which_a_message_names_another_table(
    upstream: Upstream, broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one does that takes the names of TiDB's job: they are in lower case, and a rename's is the old one."""
    scene = Scene(upstream, broker, tmp_path, "misnamed", told_of="NOTES", protocol="open-protocol")
    assert main(["verify", "-f", str(scene.file), "--json"]) == 4
    problem = json.loads(capsys.readouterr().out)["first_problem"]
    assert problem.endswith("names shop.NOTES, but it is about shop.notes.")
