"""A sink as a right changefeed leaves it, written by hand from the development cluster's own history."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from changefeed.log.log import Log
from changefeed.log.records import CommitRecord, EpochRecord, FileCommitted, PlanEntry, PlanRecord, StartRecord
from changefeed.model.position import Position
from changefeed.objectstore.open import open_store
from changefeed.reading.schema.schema_file import schema_checksum
from changefeed.spec.parse import effective, parse
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from changefeed_devcluster.tidb.tidb import Tidb

EOL = b"\r\n"
ITEMS = (
    NewColumn("id", "bigint"),
    NewColumn("code", "int", unique=True),
    NewColumn("note", "varchar(40)", nullable=True),
    NewColumn("amount", "decimal(10,2)", nullable=True),
)
ITEM = (NewColumn("id", "bigint unsigned"), NewColumn("amount", "bigint"))


@dataclass
class Shop:
    """An upstream with a history: `shop.items` (split in regions), `shop.item`, and `other.things`, not selected."""

    cluster: DevCluster
    tidb: Tidb
    start_ts: int
    checkpoint_ts: int
    last_ts: int  # of the rows above the checkpoint

    @property
    def pd(self) -> list[str]:
        return [f"http://{self.cluster.pd_address}"]

    @property
    def tables(self) -> list[NamedTable]:
        return [self.tidb.tables["shop.item"], self.tidb.tables["shop.items"]]


def open_shop(cluster: DevCluster) -> Shop:
    tidb = Tidb(cluster)
    tidb.bootstrap()
    tidb.create_database("shop")
    tidb.create_database("other")
    items = tidb.create_table("shop", "items", ITEMS, regions=3, handles=12)
    item = tidb.create_table("shop", "item", ITEM)
    things = tidb.create_table("other", "things", ITEM)
    with tidb.begin() as txn:
        txn.insert(items, {"id": 1, "code": 1, "note": "old", "amount": "100.50"})
        txn.insert(items, {"id": 2, "code": 2, "note": None, "amount": None})
        txn.insert(item, {"id": 1, "amount": 7})
    start_ts = tidb.now()
    with tidb.begin() as txn:
        for pk, note in enumerate(("", "\\N", 'say "hi", you', "two\nlines", None), start=3):
            txn.insert(items, {"id": pk, "code": pk, "note": note, "amount": None})
        txn.insert(things, {"id": 1, "amount": 1})
    with tidb.begin() as txn:  # an update, a split one, a delete, an insert: in one transaction
        txn.update(items, {"id": 1, "note": "new"})
        txn.update(items, {"id": 2, "code": 20})
        txn.delete(items, 3)
        txn.insert(items, {"id": 12, "code": 12, "note": "x", "amount": "0"})
    with tidb.begin() as txn:  # money moves between tables
        txn.update(items, {"id": 1, "amount": "90.50"})
        txn.update(item, {"id": 1, "amount": 17})
    with tidb.begin() as txn:
        txn.insert(items, {"id": 3, "code": 3, "note": "back", "amount": None})
        txn.insert(item, {"id": 2**63 + 5, "amount": 0})
        txn.insert(item, {"id": 2, "amount": 0})
    checkpoint_ts = tidb.now()
    with tidb.begin() as txn:
        txn.update(items, {"id": 1, "note": "later"})
        txn.delete(item, 2)
    return Shop(cluster, tidb, start_ts, checkpoint_ts, tidb.now())


class HandSink:
    """`lake`: the sink; `state`: the changefeed's state."""

    def __init__(self, folder: Path) -> None:
        self.lake = folder / "lake"
        self.state = folder / "state"

    @property
    def uri(self) -> str:
        return self.lake.as_uri()

    def copy(self, folder: Path) -> HandSink:
        """The same sink elsewhere; its state stays where it is."""
        shutil.copytree(self.lake, folder / "lake")
        copied = HandSink(folder)
        copied.state = self.state
        return copied

    def file(self, table: str, number: int) -> Path:
        """A table's data file, counted over its directories in order; negative from the end."""
        return sorted((self.lake / table).rglob("CDC0*"))[number]

    def name(self, path: Path) -> str:
        return path.relative_to(self.lake).as_posix()

    def lines(self, path: Path) -> list[bytes]:
        return path.read_bytes().split(EOL)[:-1]

    def put(self, path: Path, lines: list[bytes]) -> None:
        path.write_bytes(b"".join(line + EOL for line in lines))

    def metadata(self, ts: int) -> None:
        (self.lake / "metadata").write_text(json.dumps({"checkpoint-ts": ts}))


def write_sink(folder: Path, shop: Shop, *, adopted: bool = False, **options: Any) -> HandSink:
    """`options`: of sink.storage and its csv. Each table has two dates; in the first one a file is empty.

    Of canal-json only what a reader looks at is as TiCDC has it.
    """
    sink = HandSink(folder)
    sink.lake.mkdir(parents=True)
    config = _config(sink, shop, options)
    storage = config["spec"]["sink"]["storage"]
    log = Log(open_store(sink.state.as_uri()))
    start = StartRecord(
        n=1,
        epoch=0,
        nonce="a",
        start_ts=shop.start_ts,
        cluster_id=shop.cluster.cluster_id,
        uid="local",
        adopted=adopted,
    )
    log.append(start)
    log.append(EpochRecord(n=2, epoch=1, nonce="a", attempt=0, host="h", pid=1, config=config, versions={}))
    (sink.lake / ".changefeed-owner.json").write_text(json.dumps({"uid": "local", "stateUri": sink.state.as_uri()}))
    for table in shop.tables:
        _write_table(sink, shop, table, log, storage)
    log.append(CommitRecord(n=log.state.n + 1, epoch=1, nonce="a", checkpoint_ts=shop.checkpoint_ts, files=()))
    sink.metadata(shop.checkpoint_ts)
    return sink


def _config(sink: HandSink, shop: Shop, options: dict[str, Any]) -> dict[str, Any]:
    filter_ = {"rules": ["shop.*"], **options.pop("filter_", {})}
    storage = {"uri": sink.uri, "protocol": "csv", **options}
    if storage["protocol"] == "csv":
        storage["csv"] = {"includeCommitTs": True, **options.get("csv", {})}
    elif storage["protocol"] == "canal-json":
        storage["canalJson"] = {"enableTidbExtension": True}
    resource = {
        "apiVersion": "changefeed.dev/v1alpha1",
        "kind": "Changefeed",
        "metadata": {"name": "test"},
        "spec": {
            "upstream": {"pdAddresses": shop.pd},
            "filter": filter_,
            "sink": {"storage": storage},
        },
    }
    return effective(parse(json.dumps(resource)))


def _write_table(sink: HandSink, shop: Shop, table: NamedTable, log: Log, storage: dict[str, Any]) -> None:
    place = sink.lake / table.db.name / table.info.name
    (place / "meta").mkdir(parents=True)
    write_schema(place / "meta", shop.start_ts, _schema(table, shop.start_ts))
    written = list(transactions(shop, table, storage))
    first = written[:1]
    for date, groups in (("2026-01-01", [first, []]), ("2026-01-02", [written[1:2], written[2:]])):
        directory = place / str(shop.start_ts) / date
        (directory / "meta").mkdir(parents=True)
        for index, group in enumerate(groups, start=1):
            path = directory / f"CDC{index:020}{_extension(storage)}"
            path.write_bytes(_content(table, [line for _, lines in group for line in lines], storage))
            (directory / "meta" / "CDC.index").write_text(f"{path.name}\n")
            to = group[-1][0] if group else first[0][0] + 1
            _record(sink, log, table, path, index, date, to, shop.last_ts)


def _schema(table: NamedTable, version: int) -> dict[str, Any]:
    """A schema file's content, without defaults."""
    columns = []
    for column in table.info.columns:
        kind = column.type
        name = {3: "INT", 8: "BIGINT", 15: "VARCHAR", 246: "DECIMAL"}[int(kind.tp)]
        has = {"ColumnName": column.name, "ColumnType": f"{name} UNSIGNED" if kind.unsigned else name}
        lengths = {3: "11", 8: "20"}
        has["ColumnPrecision"] = lengths.get(int(kind.tp), str(kind.flen)) if kind.flen < 0 else str(kind.flen)
        if name == "DECIMAL":
            has["ColumnScale"] = str(kind.decimal)
        if not column.nullable:
            has["ColumnNullable"] = "false"
        if kind.flag & 2:
            has["ColumnIsPk"] = "true"
        columns.append(has)
    names = {"Table": table.info.name, "Schema": table.db.name, "Version": 1, "TableVersion": version}
    return {**names, "Query": "", "Type": 0, "TableColumns": columns, "TableColumnsTotal": len(columns)}


def write_schema(folder: Path, version: int, content: dict[str, Any]) -> Path:
    """Under the name that its content asks for."""
    path = folder / f"schema_{version}_{schema_checksum(content):010}.json"
    path.write_text(json.dumps(content, indent=4, ensure_ascii=False))
    return path


def _record(
    sink: HandSink, log: Log, table: NamedTable, path: Path, index: int, date: str, to: int, resolved: int
) -> None:
    owned = {"epoch": 1, "nonce": "a"}
    entry = PlanEntry.model_validate(
        {
            "entry": 0,
            "dispatcher": table.id,
            "table_id": table.id,
            "from": log.state.position(table.id),
            "to": Position.end_of(to),
            "output": {"path": sink.name(path), "directory": sink.name(path.parent), "index": index, "date": date},
            "table_version": 1,
            "table_info": table.name,
            "estimate": 1,
            "reason": "interval",
        }
    )
    infos: dict[str, dict[str, Any]] = {table.name: {}}
    n = log.state.n + 1
    log.append(PlanRecord(n=n, pd_ms=1, resolved_ts=resolved, codec="c", entries=(entry,), table_infos=infos, **owned))
    committed = FileCommitted(plan=n, entry=0, rows=1, raw_rows=1, filtered_rows=0, bytes=1, hash="h")
    log.append(CommitRecord(n=n + 1, checkpoint_ts=log.state.checkpoint_ts, files=(committed,), **owned))


def _extension(storage: dict[str, Any]) -> str:
    name = {"csv": ".csv", "canal-json": ".json", "parquet": ".parquet"}[storage["protocol"]]
    return name + {"none": "", "gzip": ".gz", "zstd": ".zst"}[storage["compression"]]


def _content(table: NamedTable, lines: list[Any], storage: dict[str, Any]) -> bytes:
    if storage["protocol"] == "parquet":
        return parquet_of(pa.Table.from_pylist(lines, _typed(table, storage)))
    text = _header(table, storage) + b"".join(lines)
    if storage["compression"] == "gzip":
        return gzip.compress(text)
    return zstd(text) if storage["compression"] == "zstd" else text


def zstd(text: bytes) -> bytes:
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as stream:
        stream.write(text)
    return bytes(out.getvalue())


def parquet_of(rows: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    pyarrow.parquet.write_table(rows, out)
    return bytes(out.getvalue())


def _typed(table: NamedTable, storage: dict[str, Any]) -> pa.Schema:
    kinds = {3: pa.int32(), 8: pa.int64(), 15: pa.string(), 246: pa.decimal128(10, 2)}
    fields = [
        (column.name, pa.decimal128(20, 0) if column.type.unsigned else kinds[int(column.type.tp)])
        for column in table.info.columns
    ]
    old = [("_old", pa.struct(fields))] if storage["parquet"]["oldValues"] else []
    return pa.schema([("_op", pa.string()), ("_commit_ts", pa.int64()), *fields, *old])


def _header(table: NamedTable, storage: dict[str, Any]) -> bytes:
    if storage["protocol"] != "csv" or not storage["csv"]["outputFieldHeader"]:
        return b""
    meta = [f"ticdc-meta${name}" for name in ("operation", "table", "schema", "commit-ts")]
    return storage["csv"]["delimiter"].join([*meta, *(c.name for c in table.info.columns)]).encode() + EOL


def transactions(shop: Shop, table: NamedTable, storage: dict[str, Any]) -> Iterator[tuple[int, list[Any]]]:
    """(commit ts, lines) of each; deletes before updates before inserts, then by the key's bytes."""
    unsigned = table.info.columns[0].type.unsigned
    history = shop.tidb.history(table, shop.start_ts, shop.last_ts)
    for commit_ts, changes in groupby(history, key=lambda change: change.commit_ts):
        found = []
        for change in changes:
            key = change.pk - (1 << 64) if unsigned and change.pk >= 1 << 63 else change.pk
            split = change.op == "update" and change.row.get("code") != change.old_row.get("code")
            if split and not storage["outputRawChangeEvent"]:
                found += [(0, key, "D", change.old_row, None), (2, key, "I", change.row, None)]
            else:
                rank, op = {"delete": (0, "D"), "update": (1, "U"), "insert": (2, "I")}[change.op]
                found.append((rank, key, op, change.row or change.old_row, change.old_row if op == "U" else None))
        found.sort(key=lambda one: one[:2])
        yield commit_ts, [_line(table, commit_ts, op, row, old, storage) for _, _, op, row, old in found]


def _line(
    table: NamedTable, commit_ts: int, op: str, row: dict[str, Any], old: dict[str, Any] | None, storage: dict[str, Any]
) -> Any:
    """Bytes; of parquet a row."""
    if storage["protocol"] == "parquet":
        return {"_op": op, "_commit_ts": commit_ts, **_cells(table, row), "_old": old and _cells(table, old)}
    if storage["protocol"] != "csv":
        return _message(table, commit_ts, op, row)
    csv = storage["csv"]
    meta = [f'"{text}"' for text in (op, table.info.name, table.db.name)]
    cells = [_cell(row[column.name], csv) for column in table.info.columns]
    return csv["delimiter"].join([*meta, str(commit_ts), *cells]).encode(errors="surrogateescape") + EOL


def _cells(table: NamedTable, row: dict[str, Any]) -> dict[str, Any]:
    """Numbers that the history has as text are decimals."""
    wide = {column.name for column in table.info.columns if column.type.unsigned or int(column.type.tp) == 246}
    return {name: Decimal(value) if name in wide and value is not None else value for name, value in row.items()}


def _message(table: NamedTable, commit_ts: int, op: str, row: dict[str, Any]) -> bytes:
    kind = {"D": "DELETE", "U": "UPDATE", "I": "INSERT"}[op]
    data = {name: None if value is None else _replaced(str(value)) for name, value in row.items()}
    names = {"database": table.db.name, "table": table.info.name, "isDdl": False, "type": kind, "data": [data]}
    return json.dumps({**names, "_tidb": {"commitTs": commit_ts}}).encode() + EOL


def _replaced(text: str) -> str:
    """Go has U+FFFD for what "surrogateescape" stands for."""
    return "".join("\ufffd" if "\udc80" <= character <= "\udcff" else character for character in text)


def _cell(value: object, csv: dict[str, Any]) -> str:
    if value is None:
        return str(csv["null"])
    return str(value) if isinstance(value, int) else '"' + str(value).replace('"', '""') + '"'
