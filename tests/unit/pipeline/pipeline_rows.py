"""What the pipeline tests share: a table, its rows as TiKV has them, and the work of one plan entry."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from changefeed.eventstore.slices import SegmentSlice
from changefeed.log.records import FileCommitted, PlanEntry
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE, Position
from changefeed.model.rows import RAW_SCHEMA
from changefeed.objectstore import Location
from changefeed.objectstore.digest import Digest
from changefeed.objectstore.patience import Patience
from changefeed.pipeline.recipe import Recipe, Recipes
from changefeed.pipeline.run import EntryRows
from changefeed.pipeline.task import entry_of
from changefeed.pipeline.work import Work, WorkEntry
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import FLAG_NOT_NULL, FLAG_PRI_KEY, TableInfo, parse_table_info
from changefeed.sink.spool import Spool
from changefeed.sink.stages import CpuTime
from changefeed.sink.storage import event_sink

#: As the storage sink wants rows.
mounts = event_sink.StorageJob(Location("file:///lake")).mounting

TABLE_ID = 77
CSV = {
    "delimiter": ",",
    "quote": '"',
    "null": "\\N",
    "includeCommitTs": True,
    "binaryEncodingMethod": "base64",
    "outputOldValue": False,
    "outputFieldHeader": False,
}
CANAL_JSON = {
    "enableTidbExtension": False,
    "contentCompatible": False,
    "onlyOutputUpdatedColumns": False,
    "deleteOnlyOutputHandleKeyColumns": False,
}
PARQUET = {"oldValues": False, "compression": "zstd"}
STORAGE = {
    "protocol": "csv",
    "terminator": "\n",
    "outputRawChangeEvent": False,
    "columnSelectors": [],
    "csv": CSV,
    "canalJson": CANAL_JSON,
    "parquet": PARQUET,
    "compression": "none",
}


def column(id_: int, name: str, tp: int, flag: int = 0, charset: str = "utf8mb4") -> dict[str, Any]:
    field_type = {"Tp": tp, "Flag": flag, "Flen": 20, "Decimal": 0, "Charset": charset}
    return {"id": id_, "name": {"O": name, "L": name}, "offset": id_ - 1, "type": field_type, "state": 5}


def index(*columns: str, unique: bool = True) -> dict[str, Any]:
    names = [{"name": {"O": name}, "length": -1} for name in columns]
    return {"id": 1, "idx_name": {"O": "i"}, "idx_cols": names, "is_unique": unique, "state": 5}


def make_table(columns: Sequence[Mapping[str, Any]], name: str = "t", **more: Any) -> TableInfo:
    info = {"id": TABLE_ID, "name": {"O": name}, "cols": list(columns), "pk_is_handle": True, "state": 5} | more
    return parse_table_info(info, "shop")


#: id bigint primary key, k bigint not null, name varchar.
PEOPLE = make_table(
    [
        column(1, "id", SqlType.BIGINT, FLAG_NOT_NULL | FLAG_PRI_KEY),
        column(2, "k", SqlType.BIGINT, FLAG_NOT_NULL),
        column(3, "name", SqlType.VARCHAR),
    ]
)


def with_index(table: TableInfo, *indexes: Mapping[str, Any]) -> TableInfo:
    return TableInfo.from_json(table.to_json() | {"index_info": list(indexes)})


def key(handle: int, table_id: int = TABLE_ID) -> bytes:
    return b"t" + struct.pack(">Q", table_id + (1 << 63)) + b"_r" + struct.pack(">Q", handle + (1 << 63))


def value(k: int, name: str | None) -> bytes:
    """A row of PEOPLE in row format v2 (docs/design/tidb.md, Row format v2)."""
    cells = [struct.pack("<q", k)] + ([] if name is None else [name.encode()])
    ids, nulls = ([2, 3], []) if name is not None else ([2], [3])
    ends = [sum(map(len, cells[: i + 1])) for i in range(len(cells))]
    return (
        bytes([128, 0])
        + struct.pack("<HH", len(cells), len(nulls))
        + bytes([*ids, *nulls])
        + struct.pack(f"<{len(ends)}H", *ends)
        + b"".join(cells)
    )


class Row(NamedTuple):
    commit_ts: int
    op: int
    handle: int
    value: bytes = b""
    old_value: bytes | None = None
    start_ts: int = 1


def insert(ts: int, handle: int, k: int = 0, name: str | None = "n", **more: Any) -> Row:
    return Row(ts, OP_INSERT, handle, value(k, name), None, **more)


def update(ts: int, handle: int, old: tuple[int, str | None], new: tuple[int, str | None]) -> Row:
    return Row(ts, OP_UPDATE, handle, value(*new), value(*old))


def delete(ts: int, handle: int, k: int = 0, name: str | None = "n", **more: Any) -> Row:
    return Row(ts, OP_DELETE, handle, b"", value(k, name), **more)


def raw(rows: Sequence[Row], table_id: int = TABLE_ID) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "span_id": table_id,
                "commit_ts": row.commit_ts,
                "start_ts": row.start_ts,
                "op": row.op,
                "key": key(row.handle, table_id),
                "value": row.value,
                "old_value": row.old_value,
                "txn_source": 0,
            }
            for row in rows
        ],
        RAW_SCHEMA,
    )


def segment(seq: int, rows: int = 0) -> SegmentSlice:
    return SegmentSlice(
        uri=f"file:///events/{seq}.arrow", size=1, run="1-a", seq=seq, first_batch=0, end_batch=1, rows=rows
    )


def make_work(
    segments: Sequence[SegmentSlice],
    table: TableInfo = PEOPLE,
    from_: Position | None = None,
    to: Position | None = None,
    filter_: Mapping[str, Any] | None = None,
    integrity: Mapping[str, Any] | None = None,
    time_zone: str = "UTC",
    **storage: Any,
) -> tuple[Work, WorkEntry]:
    """An entry over every ts unless bounds are given; `storage` are members of sink.storage or of its csv."""
    csv = CSV | {name: option for name, option in storage.items() if name in CSV}
    settings = STORAGE | {name: option for name, option in storage.items() if name in STORAGE} | {"csv": csv}
    plan = PlanEntry.model_validate(
        {
            "entry": 3,
            "dispatcher": TABLE_ID,
            "table_id": TABLE_ID,
            "from": from_ or Position.end_of(0),
            "to": to or Position.end_of(1 << 63),
            "output": {"path": "shop/t/1/CDC00000000000000000001.csv", "directory": "shop/t/1", "index": 1, "date": ""},
            "table_version": "1",
            "table_info": table.hash,
            "estimate": 0,
            "reason": "size",
        }
    )
    entry = WorkEntry(plan_entry=plan, segments=tuple(segments))
    work = Work(
        record=9,
        epoch=1,
        nonce="a",
        pd_ms=0,
        codec="",
        config=json.dumps(
            {
                "spec": {
                    "timeZone": time_zone,
                    "filter": filter_ or {},
                    "integrity": integrity or {"level": "None"},
                    "sink": {"storage": settings},
                }
            }
        ),
        entries=(entry,),
        table_infos={table.hash: json.dumps(table.to_json())},
    )
    return work, entry


def recipe_of(work: Work, entry: WorkEntry) -> Recipe:
    return Recipes(mounts).of(work, entry.plan_entry.table_info)


@dataclass(frozen=True)
class Encoded:
    """A plan entry's file, complete."""

    path: str
    file: FileCommitted
    spool: Spool
    cpu: dict[str, float]


def encode_entry(
    work: Work,
    entry: WorkEntry,
    read: Callable[[SegmentSlice], pa.Table],
    folder: Path,
    patience: Patience | None = None,
    readers: Executor | None = None,
) -> Encoded:
    """As a pipeline task and its storage sink do it."""
    rows, cpu = EntryRows(recipe_of(work, entry), entry, read, readers), CpuTime()
    target = entry_of("shop/feed", work, entry, rows.recipe)
    spool = event_sink.encode_entry(target, rows, folder, patience, cpu)
    file = FileCommitted(
        plan=work.record,
        entry=entry.plan_entry.entry,
        rows=rows.rows,
        raw_rows=rows.raw_rows,
        filtered_rows=rows.filtered_rows,
        bytes=spool.length,
        hash=spool.hash,
    )
    spent = {stage: rows.cpu.seconds[stage] + cpu.seconds[stage] for stage in rows.cpu.seconds}
    return Encoded(target.output["path"], file, spool, spent)


def encode_file(
    folder: Path, *segments: Sequence[Row], table: TableInfo = PEOPLE, **options: Any
) -> tuple[FileCommitted, bytes]:
    """Run an entry over segments of rows: what becomes of it and the file's bytes, which what becomes of it fits."""
    tables = {number: raw(rows) for number, rows in enumerate(segments)}
    work, entry = make_work([segment(number) for number in tables], table, **options)
    encoded = encode_entry(work, entry, lambda piece: tables[piece.seq], folder)
    content = content_of(encoded)
    assert encoded.path == entry.plan_entry.output["path"]
    assert (encoded.file.bytes, encoded.file.hash) == (len(content), Digest(content).hexdigest())
    return encoded.file, content


def content_of(encoded: Encoded) -> bytes:
    """What would be put; nothing is left on the disk."""
    body = encoded.spool.body()
    if not isinstance(body, bytes):
        body = b"".join(piece.path.read_bytes()[piece.offset :][: piece.length] for piece in body)
    encoded.spool.discard()
    return body


def shuffled(rows: Sequence[Row], seed: int, segments: int) -> list[list[Row]]:
    """The rows in another order, cut at other places."""
    chance = random.Random(seed)
    mixed = chance.sample(list(rows), len(rows))
    cuts = sorted(chance.choices(range(len(mixed) + 1), k=segments - 1))
    return [mixed[start:end] for start, end in zip([0, *cuts], [*cuts, len(mixed)], strict=True)]
