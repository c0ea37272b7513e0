"""`changefeed verify` of Iceberg tables that a test has written, with the rows of a development cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from changefeed.log.log import Log
from changefeed.log.records import CommitRecord, EpochRecord, FileCommitted, PlanEntry, PlanRecord, StartRecord
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE, Position
from changefeed.objectstore.open import open_store
from changefeed.objectstore.patience import Patience
from changefeed.reading.failures import NotVerifiable
from changefeed.schema.table_info import TableInfo
from changefeed.sink.claim import Taken, identity_downstream
from changefeed.sink.contract import Claim, Entry, EntryId, Event, Surroundings, Written
from changefeed.sink.iceberg.claim import IcebergClaim
from changefeed.sink.records import Records
from changefeed.spec.model import Changefeed
from changefeed.spec.parse import effective, parse
from changefeed.upstream.tikv.client.kv import Snapshot
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.tidb.snapshot import load_schema
from changefeed.verify.iceberg.report import verify
from changefeed.verify.result import RowsVerdict
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.schema import NewColumn
from changefeed_devcluster.tidb.tidb import Tidb

COLUMNS = (NewColumn("id", "bigint"), NewColumn("v", "int", nullable=True))
OPS = {"I": OP_INSERT, "U": OP_UPDATE, "D": OP_DELETE}
Changes = list[tuple[str, int, int, int]]  # op, commit ts, id, v


class Scene:
    """Rows 1 to 3 stood at the start; then 1 is changed, 2 deleted, 4 inserted."""

    def __init__(self, cluster: DevCluster, folder: Path, mode: str) -> None:
        self.folder, self.mode, self.cluster = folder, mode, cluster
        tidb = Tidb(cluster)
        tidb.bootstrap()
        tidb.create_database("shop")
        table = tidb.create_table("shop", "t", COLUMNS)
        with tidb.begin() as txn:
            for number in (1, 2, 3):
                txn.insert(table, {"id": number, "v": 10 * number})
        self.start_ts = tidb.now()
        with tidb.begin() as txn:
            txn.update(table, {"id": 1, "v": 11})
            txn.delete(table, 2)
            txn.insert(table, {"id": 4, "v": 40})
        self.ts = txn.commit_ts
        self.end_ts = tidb.now()
        self.right: Changes = [("U", self.ts, 1, 11), ("D", self.ts, 2, 20), ("I", self.ts, 4, 40)]

    def resource(self) -> Changefeed:
        catalog = {"uri": f"sqlite:///{self.folder}/catalog.db"}
        iceberg = {"warehouse": (self.folder / "lake").as_uri(), "catalog": catalog, "mode": self.mode}
        return parse(
            json.dumps(
                {
                    "apiVersion": "changefeed.dev/v1alpha1",
                    "kind": "Changefeed",
                    "metadata": {"name": "test"},
                    "spec": {
                        "upstream": {"pdAddresses": [f"http://{self.cluster.pd_address}"]},
                        "filter": {"rules": ["shop.*"]},
                        "state": {"uri": (self.folder / "state").as_uri()},
                        "sink": {"iceberg": iceberg},
                    },
                }
            )
        )

    async def write(self, changes: Changes, commit: bool = True) -> None:
        """As a run writes it: the plan, the files, the tables, the record."""
        changefeed = self.resource()
        pd = await PdClient.connect([f"http://{self.cluster.pd_address}"])
        try:
            schema = await load_schema(Snapshot(pd, self.end_ts), self.end_ts)
        finally:
            await pd.close()
        (info,) = (table for table in schema.tables_at(self.end_ts) if table.schema_name == "shop")
        await asyncio.to_thread(self._write, changefeed, info, changes, commit)

    def _write(self, changefeed: Changefeed, info: TableInfo, changes: Changes, commit: bool) -> None:
        log = Log(open_store((self.folder / "state" / "default" / "test" / "local").as_uri()))
        cluster_id = self.cluster.cluster_id
        log.append(StartRecord(n=1, epoch=0, nonce="a", start_ts=self.start_ts, cluster_id=cluster_id, uid="local"))
        config = effective(changefeed)
        log.append(EpochRecord(n=2, epoch=1, nonce="a", attempt=0, host="h", pid=1, config=config, versions={}))
        sink = IcebergClaim(changefeed)
        sink.open()
        taken = Taken(log.state, "")
        sink.settle_in(taken, [(info.id, info, self.start_ts, True)])
        output = sink.outputs.next(sink.outputs.series(info, info.id, self.start_ts), 1, {})
        entry = PlanEntry.model_validate(
            {
                "entry": 0,
                "dispatcher": info.id,
                "table_id": info.id,
                "from": log.state.position(info.id),
                "to": Position.end_of(self.end_ts),
                "output": output,
                "table_version": self.start_ts,
                "table_info": "t",
                "estimate": 1,
                "reason": "interval",
            }
        )
        owned: dict[str, Any] = {"epoch": 1, "nonce": "a"}
        log.append(
            PlanRecord(
                n=3, pd_ms=1, resolved_ts=self.end_ts, codec="c", entries=(entry,), table_infos={"t": {}}, **owned
            )
        )
        options = config["spec"]["sink"]["iceberg"]
        claim = Claim(identity_downstream(log.state), info.id, 1, "a", 0)
        target = Entry(
            claim, EntryId(3, 0), self.end_ts, output, info, self.start_ts, info.output_columns, 1, "UTC", options
        )
        failures: list[BaseException] = []
        written: list[Written] = []
        around = Surroundings("feed", self.folder / "spool", Patience(5), Patience(5), failures.append)
        task = sink.job().open(around)
        task.write(Event(target, [self._records(info, changes)], written.append))
        task.close()
        assert (failures, len(written)) == ([], 1)
        rows = len(changes)
        file = FileCommitted(plan=3, entry=0, rows=rows, raw_rows=rows, filtered_rows=0, bytes=1, hash="h")
        record = CommitRecord(n=4, checkpoint_ts=self.end_ts, files=(file,), **owned)
        driver = sink.driver(taken, lambda: None, Patience(5))
        driver.publish([entry], record)
        driver.close()
        if commit:
            log.append(record)

    def _records(self, info: TableInfo, changes: Changes) -> Records:
        op = np.array([OPS[change[0]] for change in changes], np.uint8)
        ts = pa.array([change[1] for change in changes], pa.uint64())
        columns = [pa.array([change[place] for change in changes], pa.int64()) for place in (2, 3)]
        return Records(info, op, np.zeros(len(op), np.bool_), ts, columns, columns, info.output_columns, ts)

    async def verdict(self) -> RowsVerdict:
        return await verify(self.resource())


@pytest.fixture(params=["append", "upsert"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    with DevCluster() as cluster:
        yield Scene(cluster, tmp_path, request.param)


async def test_a_table_that_is_right(scene: Scene) -> None:
    await scene.write(scene.right)
    verdict = await scene.verdict()
    assert (verdict.ok, verdict.tables, verdict.rows, verdict.notes) == (True, 1, 3, []), verdict


async def test_a_table_that_is_wrong(scene: Scene) -> None:
    """1 has another value, 4 is missing, 5 is surplus; of 2 only its delete was to be there."""
    await scene.write([("U", scene.ts, 1, 12), ("D", scene.ts, 2, 20), ("I", scene.ts, 5, 50)])
    verdict = await scene.verdict()
    assert not verdict.ok
    assert (verdict.missing, verdict.surplus, verdict.different) == (1, 1, 1)


async def test_a_change_that_is_missing(scene: Scene) -> None:
    await scene.write(scene.right[2:])
    verdict = await scene.verdict()
    assert (verdict.ok, verdict.missing) == (False, 1), "row 1; that 2 was deleted is seen by nobody who has not had it"


async def test_what_is_not_in_the_log_is_not_judged(scene: Scene) -> None:
    await scene.write(scene.right, commit=False)
    with pytest.raises(NotVerifiable, match="killed while it wrote"):
        await scene.verdict()
