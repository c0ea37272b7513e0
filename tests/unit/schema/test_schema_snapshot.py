"""Reading the schema at a ts from meta keys."""

from __future__ import annotations

import json

import pytest
from changefeed.errors import NeedsHuman
from changefeed.upstream.tikv.tidb import keys
from changefeed.upstream.tikv.tidb.snapshot import load_schema
from schema_fixtures import column, table_json


class Meta:
    """Meta keys in memory."""

    def __init__(self) -> None:
        self.pairs = {
            keys.SCHEMA_VERSION_KEY: b"53",
            keys.meta_hash_key(b"DB:1", b"TID:42"): b"17",
            keys.meta_hash_key(b"DB:1", b"IID:42"): b"x",
            keys.meta_hash_key(keys.DATABASES, b"Other:1"): b"x",
        }

    def database(self, id_, name, state=5):
        info = {"id": id_, "db_name": {"O": name, "L": name.lower()}, "state": state}
        self.pairs[keys.database_key(id_)] = json.dumps(info).encode()

    def table(self, database, id_, name, **more):
        info = table_json(id_, name, [column(1, "id", 3, 3)], **more)
        self.pairs[keys.table_key(database, id_)] = json.dumps(info).encode()

    async def get(self, key):
        return self.pairs.get(key)

    async def scan(self, start, end):
        for key in sorted(self.pairs):
            if start <= key < end:
                yield key, self.pairs[key]


@pytest.fixture
def meta():
    meta = Meta()
    meta.database(1, "shop")
    meta.database(11, "Blog")
    meta.database(2, "mysql")
    meta.database(3, "INFORMATION_SCHEMA")
    meta.database(4, "dropping", state=4)
    meta.table(1, 42, "orders")
    meta.table(1, 43, "dropping", state=4)
    meta.table(11, 44, "posts")
    meta.table(2, 5, "user")
    meta.table(2, keys.DDL_JOB_TABLE_ID, "tidb_ddl_job")
    meta.table(4, 45, "gone")
    return meta


async def test_public_tables_of_public_user_databases_are_read(meta):
    schema = await load_schema(meta, 500)
    assert [(t.id, t.full_name) for t in schema.tables_at(500)] == [(42, "shop.orders"), (44, "Blog.posts")]
    assert schema.snapshot_ts == 500
    assert schema.ddl_job_table.id == keys.DDL_JOB_TABLE_ID


async def test_an_upstream_without_ddl_jobs_is_refused(meta):
    del meta.pairs[keys.table_key(2, keys.DDL_JOB_TABLE_ID)]
    with pytest.raises(NeedsHuman, match=r"no table mysql\.tidb_ddl_job at ts 500"):
        await load_schema(meta, 500)


@pytest.mark.parametrize("value", [b"{", b"[]"])
async def test_a_broken_definition_is_named_by_its_key(meta, value):
    key = keys.table_key(1, 42)
    meta.pairs[key] = value
    with pytest.raises(NeedsHuman, match=key.hex()):
        await load_schema(meta, 500)


@pytest.mark.parametrize(
    ("partition", "ids"),
    [
        ({"definitions": [7, 8]}, (7, 8)),
        ({"definitions": [7, 8], "adding_definitions": [9]}, (7, 8)),  # reorganised, rows being copied
        ({"definitions": [7, 9], "adding_definitions": [9], "dropping_definitions": [8]}, (7, 8)),  # copied
        ({"definitions": [7], "dropping_definitions": [8]}, (7, 8)),  # dropped
        ({"definitions": [42], "adding_definitions": [9]}, ()),  # about to get partitions
        ({"definitions": [9], "adding_definitions": [9], "dropping_definitions": [42]}, ()),
    ],
)
async def test_rows_are_in_the_old_partitions_until_the_job_that_changes_them_has_finished(meta, partition, ids):
    lists = {name: [{"id": id_} for id_ in ids] for name, ids in partition.items()}
    meta.table(1, 42, "orders", partition={"enable": True, **lists})
    schema = await load_schema(meta, 500)
    assert schema.table(42, 500).partition_ids == ids
