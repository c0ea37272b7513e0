"""DDL jobs (docs/design/tidb.md, DDL jobs, Job contents)."""

from __future__ import annotations

import json

import golden
import pytest
from changefeed.errors import NeedsHuman
from changefeed.schema.ddl.actions import Action
from changefeed.schema.table_info import parse_table_info
from changefeed.upstream.tikv.tidb.job import decode_job, parse_job
from schema_fixtures import column, encode_row, job_json, table

DDL_TABLE = table([column(1, "job_id", 8, 3), column(2, "reorg", 3), column(5, "job_meta", 251, charset="binary")])


@golden.each("ddl_job_json")
def test_jobs_of_the_corpus(vector):
    source, expected = vector["args"]["json"], vector["expected"]
    body = json.dumps(source).encode()
    job = decode_job(encode_row({2: b"\x00", 5: body, 6: b"\x01"}), DDL_TABLE)
    assert job == parse_job(source)
    for member in {"id", "type", "schema_id", "table_id", "state", "schema_version", "table_name", "version"} & set(
        expected
    ):
        assert getattr(job, member) == expected[member], member
    assert job.is_done == (expected["state"] == 4)
    if "table" in expected:
        # Of a job that is not done, the definition stands in the arguments only.
        wanted, created = expected["table"], job.table_info
        if created is None:
            created = parse_table_info(job.raw_args[0], job.schema_name)
        assert [getattr(created, name) for name in ("id", "name", "pk_is_handle")] == [
            wanted[name] for name in ("id", "name", "pk_is_handle")
        ]
        assert [(c.id, c.name, c.type, c.flag) for c in created.columns] == [
            (c["id"], c["name"], c["tp"], c["flag"]) for c in wanted["columns"]
        ]


@golden.each("ddl_job_filter", which=lambda vector: vector["args"]["job"])
def test_jobs_in_state_done_are_done(vector):
    """Whether their row was deleted, or is older than the changefeed, is not the job's to say."""
    job = vector["args"]["job"]
    assert parse_job(job).is_done == (job["state"] == 4)
    assert parse_job(job | {"state": 4}).is_done
    assert not parse_job(job | {"state": 6}).is_done


def exchange(expected, version):
    members = ("partition_id", "pt_schema_id", "pt_table_id", "partition_name", "with_validation")
    wanted = {member: expected[member] for member in members}
    args = wanted if version == 2 else list(wanted.values())
    assert vars(parse_job(job_json(1, 42, version=version, raw_args=args)).exchange) == wanted


def renames(expected, version):
    """One object a table."""
    ids = [table["new_schema_id"] for table in expected]
    args = {"rename_table_infos": expected} if version == 2 else [[], ids, [], [], [], []]
    job = parse_job(job_json(1, 47, version=version, raw_args=args, tables=[{"id": n + 1} for n in range(len(ids))]))
    assert [rename.schema_id for rename in job.renames] == ids


ARGUMENTS = {42: exchange, 47: renames}


@golden.each("ddl_job_args", which=lambda vector: vector["args"]["type"] in ARGUMENTS)
@pytest.mark.parametrize("version", [1, 2])
def test_arguments_of_either_version(vector, version):
    ARGUMENTS[vector["args"]["type"]](vector["expected"], version)


@golden.each("ddl_job_args", which=lambda vector: vector["expected"].get("raw_args", "") is None)
def test_null_arguments_of_the_corpus(vector):
    assert parse_job(job_json(1, vector["args"]["type"], version=1, raw_args=None)).raw_args is None


def test_null_arguments_are_read_and_named_when_needed():
    assert parse_job(job_json(1, 24, raw_args=None)).raw_args is None
    assert parse_job(job_json(1, 42, raw_args=None, state=1)).exchange is None
    with pytest.raises(NeedsHuman, match="DDL job 1"):
        parse_job(job_json(1, 42, raw_args=None))


@pytest.mark.parametrize(
    "args", [[[9], [5, 6], [], [], [], []], {"rename_table_infos": [{"new_schema_id": 5}, {"new_schema_id": 6}]}]
)
def test_new_databases_of_renamed_tables_of_either_version(args):
    job = parse_job(job_json(1, 47, raw_args=args, tables=[{"id": 1}, {"id": 2}]))
    assert [rename.schema_id for rename in job.renames] == [5, 6]


def test_job_meta_is_found_by_name_in_large_rows_too():
    body = json.dumps(job_json(7, 3)).encode()
    ddl_table = table([column(1, "job_id", 8, 3), column(300, "JOB_META", 251)])
    assert decode_job(encode_row({1: None, 2: b"x", 300: body}, large=True), ddl_table).id == 7


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "row format v2"),
        (b"\x08\x02\x08\x02", "row format v2"),
        (b"\x80\x00\x05\x00\x00\x00", "inside its header"),
        (encode_row({5: None}), "holds no job_meta"),
        (encode_row({2: b"x"}), "holds no job_meta"),
        (encode_row({5: b"{"}), "not a job's JSON"),
    ],
)
def test_an_unreadable_row_is_named(value, why):
    with pytest.raises(NeedsHuman, match=f"mysql.tidb_ddl_job .*{why}"):
        decode_job(value, DDL_TABLE)


def test_a_table_without_job_meta_is_named():
    with pytest.raises(NeedsHuman, match="no column job_meta"):
        decode_job(b"", table([column(1, "id", 8, 3)]))


def test_actions_have_names():
    assert parse_job(job_json(1, Action.TRUNCATE_TABLE)).type_name == "TRUNCATE_TABLE"
    assert parse_job(job_json(1, 200)).type_name == "ACTION_200"
