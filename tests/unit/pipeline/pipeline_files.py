"""Work for pipeline tasks, whose rows stand in real segments, and a sink that does as the test says."""

from __future__ import annotations

import itertools
import json
import struct
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from changefeed.eventstore.buffer import SpanRows
from changefeed.eventstore.run_folder import RunFolder
from changefeed.eventstore.segment import write_segment
from changefeed.eventstore.slices import SegmentSlice
from changefeed.log.records import PlanEntry
from changefeed.model.position import OP_INSERT, Position
from changefeed.model.rows import RAW_SCHEMA
from changefeed.objectstore import FileRange, Location
from changefeed.objectstore.local import LocalStore
from changefeed.pipeline.work import Work, WorkEntry
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import FLAG_NOT_NULL, FLAG_PRI_KEY, parse_table_info
from changefeed.sink.contract import Entry
from changefeed.sink.spool import Spool
from changefeed.sink.storage.event_sink import encode_entry
from pipeline_owner import DEADLINE_S, EPOCH, NONCE

TABLE_ID = 77
STORAGE = {
    "protocol": "csv",
    "terminator": "\n",
    "outputRawChangeEvent": False,
    "columnSelectors": [],
    "csv": {
        "delimiter": ",",
        "quote": '"',
        "null": "\\N",
        "includeCommitTs": True,
        "binaryEncodingMethod": "base64",
        "outputOldValue": False,
        "outputFieldHeader": False,
    },
    "canalJson": {},
}
_TABLE = parse_table_info(
    {
        "id": TABLE_ID,
        "name": {"O": "t", "L": "t"},
        "cols": [
            {
                "id": 1,
                "name": {"O": "id", "L": "id"},
                "offset": 0,
                "type": {"Tp": SqlType.BIGINT, "Flag": FLAG_NOT_NULL | FLAG_PRI_KEY, "Flen": 20},
                "state": 5,
            }
        ],
        "pk_is_handle": True,
        "state": 5,
    },
    "shop",
)
_NO_COLUMNS = bytes([128, 0]) + struct.pack("<HH", 0, 0)  # a row in format v2, whose only column is its key
_numbers = itertools.count(1)


def content_of(rows: Sequence[int]) -> bytes:
    """Return the content of a file of inserts of these keys."""
    return b"".join(b'"I","t","shop",%d,%d\n' % (5 + key, key) for key in sorted(rows))


def path_of(plan: int, entry: int) -> str:
    return f"shop/t/{plan}/{entry}.csv"


def make_work(state: Location, plan: int, files: Mapping[int, Sequence[int]]) -> Work:
    """Entries by number, each with the keys that were inserted; their rows are written, a segment an entry."""
    entries = []
    for number, rows in files.items():
        plan_entry = PlanEntry.model_validate(
            {
                "entry": number,
                "dispatcher": TABLE_ID,
                "table_id": TABLE_ID,
                "from": Position.end_of(1),
                "to": Position.end_of(1 << 40),
                "output": {"path": path_of(plan, number)},
                "table_version": 1,
                "table_info": _TABLE.hash,
                "estimate": 0,
                "reason": "size",
            }
        )
        entries.append(WorkEntry(plan_entry=plan_entry, segments=(_segment(state, rows),) if rows else ()))
    return Work(
        record=plan,
        epoch=EPOCH,
        nonce=NONCE,
        pd_ms=1,
        codec="csv",
        config=json.dumps(
            {
                "spec": {
                    "timeZone": "UTC",
                    "filter": {},
                    "integrity": {"level": "None"},
                    "sink": {"storage": STORAGE},
                }
            }
        ),
        entries=tuple(entries),
        table_infos={_TABLE.hash: json.dumps(_TABLE.to_json())},
    )


def _segment(state: Location, rows: Sequence[int]) -> SegmentSlice:
    run_folder, number = RunFolder(state, EPOCH, NONCE), next(_numbers)
    meta = write_segment(run_folder, "puller-0", number, [SpanRows.of(TABLE_ID, 1, _raw(rows))])
    (span,) = meta.spans
    return SegmentSlice(
        uri=meta.uri,
        size=meta.bytes,
        run=run_folder.run,
        seq=number,
        first_batch=span.first_batch,
        end_batch=span.end_batch,
        rows=span.rows,
    )


def _raw(rows: Sequence[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {
                "span_id": TABLE_ID,
                "commit_ts": 5 + key,
                "start_ts": 4,
                "op": OP_INSERT,
                "key": b"t" + struct.pack(">Q", TABLE_ID + (1 << 63)) + b"_r" + struct.pack(">Q", key + (1 << 63)),
                "value": _NO_COLUMNS,
                "old_value": None,
                "txn_source": 0,
            }
            for key in rows
        ],
        RAW_SCHEMA,
    )


class Sink(LocalStore):
    """A put of a path that is held back waits until it is let go; then it fails as it is to."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._tries: Counter[str] = Counter()
        self._gates: dict[str, threading.Event] = {}
        self._errors: dict[str, Iterator[Exception]] = {}
        self._changed = threading.Condition()

    def hold_back(self, *paths: str) -> None:
        self._gates |= {path: threading.Event() for path in paths}

    def let_go(self, *paths: str) -> None:
        """Those, or all."""
        for path in paths or self._gates:
            self._gates[path].set()

    def fail(self, path: str, errors: Iterable[Exception]) -> None:
        """So often as there are any."""
        self._errors[path] = iter(errors)

    def until_tried(self, path: str, times: int = 1) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._tries[path] >= times, DEADLINE_S), self._tries

    def create(self, path: str, body: bytes | tuple[FileRange, ...]) -> None:
        with self._changed:
            self._tries[path] += 1
            self._changed.notify_all()
        if (gate := self._gates.get(path)) is not None:
            assert gate.wait(DEADLINE_S), path
        if (error := next(self._errors.get(path, iter(())), None)) is not None:
            raise error
        super().create(path, body)


class Encodings:
    """Stands where `encode_entry` does: counts, and holds back the entries that it is told to, until they may go on."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.held: set[int] = set()

    def __call__(self, entry: Entry, *rest: Any) -> Spool:
        self.begun.release()
        if entry.id.entry in self.held:
            assert self.go_on.wait(DEADLINE_S)
        return encode_entry(entry, *rest)
