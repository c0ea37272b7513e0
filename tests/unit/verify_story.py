"""A sink as a right changefeed leaves it behind some DDLs, written by hand from an upstream's history."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
from changefeed.filter.ddl import ignores_ddl
from changefeed.filter.selection import Selection
from changefeed.log.log import Log
from changefeed.log.records import CommitRecord, EpochRecord, StartRecord
from changefeed.objectstore.open import open_store
from changefeed.owner.planning.timeline import Timeline
from changefeed.reading.rows.formats import Format
from changefeed.reading.schema.schema_file import schema_checksum
from changefeed.sink.storage.schema_file import SchemaFile, files_of, write
from changefeed.spec.filter.filters import Filter
from changefeed.spec.parse import effective, parse
from changefeed.upstream.tikv.access import TikvAccess
from changefeed.upstream.tikv.client.kv import Snapshot
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.tidb.effects import Effects
from changefeed.upstream.tikv.tidb.job import decode_job
from changefeed.upstream.tikv.tidb.keys import DDL_JOB_SPAN, table_span
from changefeed.upstream.tikv.tidb.snapshot import load_schema
from changefeed.verify.upstream.expected import images
from changefeed.verify.upstream.history import Collected, read_history
from changefeed.verify.upstream.lives import Life, read_lives
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.schema import NamedTable
from changefeed_devcluster.tidb.tidb import Tidb

DATE = "2026-01-01"
_LATER = 1 << 40  # when data is written, so that a schema file that is changed is still older


@dataclass
class Story:
    """What happens in the databases `db` and `too`, which are selected, and `out`, which is not."""

    cluster: DevCluster
    tidb: Tidb
    db: str
    start_ts: int = 0

    @property
    def too(self) -> str:
        return f"{self.db}_too"

    @property
    def out(self) -> str:
        return f"out_{self.db}"

    @property
    def pd(self) -> list[str]:
        return [f"http://{self.cluster.pd_address}"]

    def table(self, name: str) -> NamedTable:
        """As it is now; `name` with a database, or of `db`."""
        return self.tidb.tables[name if "." in name else f"{self.db}.{name}"]

    def insert(self, name: str, ids: Iterable[int], **row: Any) -> None:
        with self.tidb.begin() as txn:
            for number in ids:
                txn.insert(self.table(name), {"id": number, **row})

    def update(self, name: str, number: int, **row: Any) -> None:
        with self.tidb.begin() as txn:
            txn.update(self.table(name), {"id": number, **row})

    def delete(self, name: str, number: int) -> None:
        with self.tidb.begin() as txn:
            txn.delete(self.table(name), number)


@dataclass
class StorySink:
    story: Story
    lake: Path

    @property
    def uri(self) -> str:
        return self.lake.as_uri()

    @property
    def checkpoint_ts(self) -> int:
        return int(json.loads((self.lake / "metadata").read_text())["checkpoint-ts"])

    def schema_files(self, table: str, type_: int | None = None) -> list[Path]:
        """By version; `table`: in `db`, "" for the database's own."""
        found = sorted((self.lake / self.story.db / table / "meta").glob("schema_*.json"))
        return [path for path in found if type_ is None or json.loads(path.read_text())["Type"] == type_]

    def rewrite(self, path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
        """A schema file with another content, under the name that it asks for."""
        content = json.loads(path.read_text())
        change(content)
        path.unlink()
        new = path.with_name(f"schema_{content['TableVersion']}_{schema_checksum(content):010}.json")
        new.write_text(json.dumps(content, indent=4, ensure_ascii=False))
        return new

    def data_file(self, table: str, number: int) -> Path:
        """By version."""
        return sorted((self.lake / self.story.db / table).rglob("CDC*.csv"))[number]


async def write_story(folder: Path, story: Story, **filter_: Any) -> StorySink:
    """Each table has one file for each version; `filter_`: members of spec.filter."""
    lake = folder / "lake"
    lake.mkdir()
    config = _config(lake, story, filter_)
    upto_ts = story.tidb.now()
    upstream = await TikvAccess(tuple(story.pd)).connect()
    try:
        await _write(lake, upstream.pd, story, config, upto_ts)
    finally:
        await upstream.close()
    log = Log(open_store((folder / "state").as_uri()))
    log.append(
        StartRecord(n=1, epoch=0, nonce="a", start_ts=story.start_ts, cluster_id=story.cluster.cluster_id, uid="local")
    )
    log.append(EpochRecord(n=2, epoch=1, nonce="a", attempt=0, host="h", pid=1, config=config, versions={}))
    log.append(CommitRecord(n=3, epoch=1, nonce="a", checkpoint_ts=upto_ts, files=()))
    (lake / ".changefeed-owner.json").write_text(json.dumps({"uid": "local", "stateUri": (folder / "state").as_uri()}))
    (lake / "metadata").write_text(json.dumps({"checkpoint-ts": upto_ts}))
    return StorySink(story, lake)


def _config(lake: Path, story: Story, filter_: dict[str, Any]) -> dict[str, Any]:
    spec = {
        "upstream": {"pdAddresses": story.pd},
        "filter": {"rules": [f"{story.db}*.*"], **filter_},
        "sink": {"storage": {"uri": lake.as_uri(), "protocol": "csv", "csv": {"includeCommitTs": True}}},
    }
    resource = {"apiVersion": "changefeed.dev/v1alpha1", "kind": "Changefeed", "metadata": {"name": "test"}}
    return effective(parse(json.dumps({**resource, "spec": spec})))


async def _write(lake: Path, pd: PdClient, story: Story, config: dict[str, Any], upto_ts: int) -> None:
    rules = Filter.model_validate(config["spec"]["filter"])
    tables, ignores = rules.table_filter(), partial(ignores_ddl, rules)
    lives = await read_lives(
        pd, lambda table: tables.matches(table.schema_name, table.name), ignores, story.start_ts, upto_ts
    )
    store = open_store(lake.as_uri())
    first = {life.physical_id: life.info for life in lives.all if life.is_first}
    for info in first.values():
        write(store, SchemaFile.of(info, story.start_ts))
    timeline = Timeline(tables.matches, tables.matches_schema, ignores, first)
    schema = await load_schema(Snapshot(pd, story.start_ts), story.start_ts)
    jobs = Collected()
    await read_history(pd, *DDL_JOB_SPAN, story.start_ts, upto_ts, into=jobs)
    found = zip(jobs.table()["commit_ts"].to_pylist(), jobs.table()["value"].to_pylist(), strict=True)
    effects = Effects(schema, lambda ts: Snapshot(pd, ts))
    decoded = [(ts, decode_job(value, schema.ddl_job_table)) for ts, value in found if value]
    for ts, row in sorted(decoded, key=lambda each: (each[0], each[1].id)):
        if (job := await effects.of(row, ts)) is not None:
            schema.apply(job, ts)
            ddl = timeline.follow(job, ts, schema.touches(job))
            for file in files_of(ddl) if ddl else ():
                write(store, file)
    for life in lives.all:
        await _write_rows(lake, pd, life, config)


async def _write_rows(lake: Path, pd: PdClient, life: Life, config: dict[str, Any]) -> None:
    versions = Collected()
    await read_history(pd, *table_span(life.physical_id), life.from_ts, life.to_ts, into=versions)
    selection = Selection.of(config, life.info)
    frame = images(life.info, versions.table(), selection, Format.of(config["spec"]), print)
    texts = [f"c{n}" for n, column in enumerate(selection.columns) if not column.is_binary]
    frame = frame.with_columns(pl.col(name).cast(pl.String) for name in texts if frame.schema[name] == pl.Binary)
    directory = lake / life.directory_stem / DATE
    (directory / "meta").mkdir(parents=True)
    path = directory / f"CDC{1:020}.csv"
    lines = (_line(life, row) for row in frame.sort("commit_ts", "start_ts", "rank", "key").iter_rows(named=True))
    path.write_text("".join(lines), newline="")
    os.utime(path, (_LATER, _LATER))
    (directory / "meta" / "CDC.index").write_text(f"{path.name}\n")


def _line(life: Life, row: dict[str, Any]) -> str:
    values = [value for name, value in row.items() if name[0] == "c" and name[1:].isdecimal()]
    names = (row["op"], life.info.name, life.info.schema_name)
    meta = ",".join([*(f'"{text}"' for text in names), str(row["commit_ts"])])
    return f"{meta},{','.join(map(_cell, values))}\r\n"


def _cell(value: object) -> str:
    if value is None:
        return "\\N"
    if isinstance(value, bytes):
        return f'"{base64.b64encode(value).decode()}"'
    return '"' + value.replace('"', '""') + '"' if isinstance(value, str) else str(value)
