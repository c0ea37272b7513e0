"""Jobs and meta keys tell of the same definitions: whoever follows the DDLs knows what whoever reads anew does."""

from __future__ import annotations

import pytest
from changefeed.schema.ddl.job import decode_job
from changefeed.schema.keys import DDL_JOB_SPAN
from changefeed.schema.snapshot import load_schema
from changefeed.schema.storage import SchemaStorage
from changefeed.upstream.kv import Snapshot
from changefeed.upstream.pd import PdClient
from changefeed.verify.upstream.history import Collected, read_history
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.tidb import Tidb
from changefeed_devcluster.workload.ddl_storm import DdlStorm

DDLS = 150


async def followed(pd: PdClient, schema: SchemaStorage, from_ts: int, to_ts: int) -> None:
    """Takes all jobs in between in."""
    found = Collected()
    await read_history(pd, *DDL_JOB_SPAN, from_ts, to_ts, into=found)
    rows = found.table().to_pylist()
    for row in sorted(rows, key=lambda row: row["commit_ts"]):
        job = decode_job(row["value"], schema.ddl_job_table) if row["value"] else None
        if job is not None and job.is_done:
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
                # A column that comes or goes is so in the keys before its job is done.
                if not storm.is_amid_ddl and storm.done.total() >= DDLS * (len(moments) + 1) // 5:
                    moments.append(tidb.now())
            storm.settle()
            end = tidb.now()
            await followed(pd, schema, start, end)
            for ts in (*moments, end):
                read = await load_schema(Snapshot(pd, ts), ts)
                assert schema.tables_at(ts) == read.tables_at(ts)
        finally:
            await pd.close()
    assert len(storm.done) > 20, storm.done
