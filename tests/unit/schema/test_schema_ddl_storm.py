"""Jobs and meta keys tell of the same definitions: whoever follows the DDLs knows what whoever reads anew does."""

from __future__ import annotations

import pytest
from changefeed.schema.history import SchemaHistory
from changefeed.upstream.tikv.client.kv import Snapshot
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.tidb.effects import Effects
from changefeed.upstream.tikv.tidb.job import decode_job
from changefeed.upstream.tikv.tidb.keys import DDL_JOB_SPAN
from changefeed.upstream.tikv.tidb.snapshot import load_schema
from changefeed.verify.upstream.history import Collected, read_history
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.tidb import Tidb
from changefeed_devcluster.workload.ddl_storm import DdlStorm

DDLS, MOMENTS = 120, 10


async def followed(pd: PdClient, schema: SchemaHistory, from_ts: int, to_ts: int) -> None:
    """Takes all jobs in between in, each when it takes effect."""
    effects = Effects(schema, lambda ts: Snapshot(pd, ts))
    found = Collected()
    await read_history(pd, *DDL_JOB_SPAN, from_ts, to_ts, into=found)
    rows = found.table().to_pylist()
    for row in sorted(rows, key=lambda row: row["commit_ts"]):
        if row["value"]:
            job = await effects.of(decode_job(row["value"], schema.ddl_job_table), row["commit_ts"])
            if job is not None:
                schema.apply(job, row["commit_ts"])


@pytest.mark.parametrize("seed", range(4))
async def test_definitions_that_jobs_made_are_those_of_the_meta_keys(seed: int) -> None:
    with DevCluster(stores=1) as cluster:
        tidb = Tidb(cluster)
        tidb.bootstrap()
        storm = DdlStorm(tidb, seed=seed, limit=DDLS)
        storm.create()
        pd = await PdClient.connect([cluster.pd_address])
        try:
            start = tidb.now()
            schema = await load_schema(Snapshot(pd, start), start)
            moments = []
            while storm.done.total() < DDLS:
                storm.step()
                is_due = storm.done.total() >= DDLS * len(moments) // MOMENTS
                if is_due and (storm.is_amid_ddl or len(moments) % 4 == 0):
                    moments.append(tidb.now())
            storm.settle()
            end = tidb.now()
            await followed(pd, schema, start, end)
            for ts in (*moments, end):
                read = await load_schema(Snapshot(pd, ts), ts)
                assert schema.tables_at(ts) == read.tables_at(ts)
                await followed(pd, read, ts, end)
                assert schema.tables_at(end) == read.tables_at(end), "who begins there comes to the same"
        finally:
            await pd.close()
    assert len(storm.done) > 20, storm.done
    assert len(moments) > MOMENTS // 2
