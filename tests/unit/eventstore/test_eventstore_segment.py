from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from changefeed.errors import AlreadyExists, Transient, Unavailable
from changefeed.eventstore import reader
from changefeed.eventstore.buffer import SpanRows
from changefeed.eventstore.reader import KeptSegments, read_slice
from changefeed.eventstore.run_folder import RunFolder
from changefeed.eventstore.segment import CURVE_STEP, MAX_BATCH_ROWS, METADATA_KEY, write_segment
from changefeed.eventstore.slices import SegmentSlice
from changefeed.model.position import Position
from changefeed.model.rows import RAW_SCHEMA, raw_bytes
from changefeed.objectstore import Location
from changefeed.objectstore.open import local_path
from changefeed.objectstore.patience import Patience
from changefeed.wire import owner_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

Row = tuple[int, int, int, int, bytes, bytes, bytes | None, int]


def to_batch(rows: list[Row]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True))
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, RAW_SCHEMA, strict=True)], schema=RAW_SCHEMA)


def many_rows(count: int, span: int = 1, value: int = 100) -> pa.RecordBatch:
    rng = np.random.default_rng(span)
    keys = pa.array([b"k%d" % number for number in range(99)], pa.binary()).take(rng.integers(0, 99, count))
    columns = [
        np.full(count, span, np.uint64),
        rng.integers(0, 1 << 60, count).astype(np.uint64),
        rng.integers(0, 9, count).astype(np.uint64),
        rng.integers(0, 3, count).astype(np.uint8),
        keys,
        pa.repeat(pa.scalar(b"v" * value, pa.binary()), count),
        pa.nulls(count, pa.binary()),
        np.zeros(count, np.uint64),
    ]
    return pa.record_batch(columns, schema=RAW_SCHEMA)


def slice_of(run_folder: RunFolder, meta: owner_pb2.SegmentMeta, span: int = 0) -> SegmentSlice:
    found = meta.spans[span]
    return SegmentSlice(
        uri=meta.uri,
        size=meta.bytes,
        run=run_folder.run,
        seq=meta.seq,
        first_batch=found.first_batch,
        end_batch=found.end_batch,
        rows=found.rows,
    )


def position(wire: owner_pb2.Position) -> Position:
    return Position(wire.commit_ts, wire.start_ts, wire.op, wire.key)


def curve(span: owner_pb2.SegmentSpan) -> list[tuple[Position, int]]:
    """With its last point."""
    return [*((position(point.position), point.bytes) for point in span.curve), (position(span.max), span.bytes)]


def positions(table: pa.Table) -> list[Position]:
    return [Position(*row.values()) for row in table.select(["commit_ts", "start_ts", "op", "key"]).to_pylist()]


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    return RunFolder(Location(tmp_path.as_uri()), 7, "nonce")


small_row = st.tuples(
    st.just(1),
    st.integers(0, 3) | st.integers((1 << 64) - 3, (1 << 64) - 1),
    st.integers(0, 2),
    st.integers(0, 2),
    st.binary(max_size=3),
    st.sampled_from([b"", b"v", b"w" * 700_000]),
    st.sampled_from([None, b"", b"o" * 400_000]),
    st.integers(0, 1),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.lists(small_row, min_size=1, max_size=8), min_size=1, max_size=3), min_size=1, max_size=4))
def test_rows_are_sorted_and_the_curve_measures_them(batches_of: list[list[list[Row]]]) -> None:
    """Small spans are sorted together, the others alone."""
    with TemporaryDirectory() as folder:
        run_folder = RunFolder(Location(Path(folder).as_uri()), 7, "nonce")
        spans = [
            SpanRows.of(number, number + 10, *(to_batch(rows) for rows in batches))
            for number, batches in enumerate(batches_of)
        ]
        meta = write_segment(run_folder, "t0", 1, spans)
        tables = [read_slice(run_folder, slice_of(run_folder, meta, number)) for number in range(len(spans))]
    assert [span.sub_id for span in meta.spans] == [given.sub_id for given in spans]
    for span, given_, table, batches in zip(meta.spans, spans, tables, batches_of, strict=True):
        everything = [row for rows in batches for row in rows]
        assert sorted(map(repr, everything)) == sorted(repr(tuple(row.values())) for row in table.to_pylist())
        places = positions(table)
        assert places == sorted(places)
        assert (position(span.min), position(span.max)) == (places[0], places[-1])

        sizes = [raw_bytes(to_batch([tuple(row.values())])) for row in table.to_pylist()]
        total = [sum(sizes[: n + 1]) for n in range(len(sizes))]
        assert span.bytes == total[-1] == given_.bytes
        marks = range(CURVE_STEP, total[-1], CURVE_STEP)
        crossings = {next(n for n, t in enumerate(total) if t >= mark) for mark in marks}
        expected = sorted(crossings | {len(total) - 1})
        assert curve(span) == [(places[n], total[n]) for n in expected]


def test_spans_never_share_a_record_batch(run_folder: RunFolder) -> None:
    counts = [1, MAX_BATCH_ROWS + 1, MAX_BATCH_ROWS, 5]
    spans = [SpanRows.of(n, n + 10, many_rows(count, n, value=3)) for n, count in enumerate(counts)]
    meta = write_segment(run_folder, "t0", 1, spans)
    assert [(s.span_id, s.sub_id, s.rows, s.first_batch, s.end_batch) for s in meta.spans] == [
        (0, 10, 1, 0, 1),
        (1, 11, MAX_BATCH_ROWS + 1, 1, 3),
        (2, 12, MAX_BATCH_ROWS, 3, 4),
        (3, 13, 5, 4, 5),
    ]
    for n, count in enumerate(counts):
        table = read_slice(run_folder, slice_of(run_folder, meta, n))
        assert table.num_rows == count
        assert table.column("span_id").unique().to_pylist() == [n]
    part = slice_of(run_folder, meta, 1).model_copy(update={"first_batch": 2, "end_batch": 3, "rows": 1})
    assert positions(read_slice(run_folder, part)) == [position(meta.spans[1].max)]


def test_the_file_tells_what_the_report_tells(run_folder: RunFolder, tmp_path: Path) -> None:
    meta = write_segment(
        run_folder, "attempt-3", 5, [SpanRows.of(1, 10, many_rows(20_000)), SpanRows.of(2, 11, many_rows(3, 2))]
    )
    path = tmp_path / "events" / "7-nonce" / "attempt-3" / "00000000000000000005.arrow"
    assert (meta.uri, meta.seq, meta.bytes) == (path.as_uri(), 5, path.stat().st_size)
    with pa.ipc.open_file(path) as segment:
        assert segment.schema.remove_metadata() == RAW_SCHEMA
        footer = json.loads(segment.schema.metadata[METADATA_KEY])
    spans = footer.pop("spans")
    assert footer == {"v": 1, "epoch": 7, "nonce": "nonce", "task": "attempt-3", "seq": 5}
    for told, reported in zip(spans, meta.spans, strict=True):
        assert (told["id"], told["sub_id"], told["rows"]) == (reported.span_id, reported.sub_id, reported.rows)
        assert told["bytes"] == reported.bytes
        assert told["batches"] == [reported.first_batch, reported.end_batch]
        assert [Position.from_json(told[end]) for end in ("min", "max")] == [
            position(reported.min),
            position(reported.max),
        ]
        assert [(Position.from_json(p), b) for p, b in told["curve"]] == curve(reported)
    assert len(spans[0]["curve"]) == spans[0]["bytes"] // CURVE_STEP + 1 > 2


def test_a_segment_is_created_once(run_folder: RunFolder) -> None:
    meta = write_segment(run_folder, "t0", 1, [SpanRows.of(1, 10, many_rows(5))])
    with pytest.raises(AlreadyExists, match=r"00001\.arrow exists already"):
        write_segment(run_folder, "t0", 1, [SpanRows.of(1, 10, many_rows(6))])
    assert read_slice(run_folder, slice_of(run_folder, meta)).num_rows == 5


def test_a_full_disk_leaves_no_half_segment(run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pa.ipc, "new_file", full)
    with pytest.raises(Unavailable, match="No space left"):
        write_segment(replace(run_folder, patience=Patience(0)), "t0", 1, [SpanRows.of(1, 10, many_rows(5))])
    monkeypatch.undo()
    assert write_segment(run_folder, "t0", 1, [SpanRows.of(1, 10, many_rows(5))]).spans[0].rows == 5


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"run": "6-nonce"}, "is number 1 of run 7-nonce"),
        ({"run": "7-other"}, "is number 1 of run 7-nonce"),
        ({"seq": 2}, "is number 1 of run 7-nonce"),
        ({"size": 12}, "bytes, not 12"),
        ({"rows": 6}, "has 5 rows there, not 6"),
        ({"end_batch": 2}, "has 1 record batches"),
    ],
)
def test_rule_3_a_different_segment_fails_the_task(run_folder: RunFolder, change: dict[str, object], says: str) -> None:
    meta = write_segment(run_folder, "t0", 1, [SpanRows.of(1, 10, many_rows(5))])
    piece = slice_of(run_folder, meta).model_copy(update=change)
    with pytest.raises(Transient, match=says) as caught:
        read_slice(run_folder, piece)
    assert meta.uri in caught.value.message


@pytest.mark.parametrize(
    ("footer", "says"),
    [
        ({METADATA_KEY: b'{"v":2,"spans":[]}'}, "has version 2, not 1"),
        ({METADATA_KEY: b'{"v":2}'}, "has version 2, not 1"),
        ({METADATA_KEY: b'{"v":1,"epoch'}, "cannot be read"),
        ({}, "has version None, not 1"),
    ],
)
def test_rule_3_a_file_that_is_no_segment_of_this_version_fails_the_task(
    run_folder: RunFolder, footer: dict[bytes, bytes], says: str
) -> None:
    def fill(file: object) -> None:
        with pa.ipc.new_file(file, RAW_SCHEMA.with_metadata(footer)) as writer:
            writer.write_batch(many_rows(5))

    uri, size = run_folder.create_segment("t0", 1, fill)
    piece = SegmentSlice(uri=uri, size=size, run=run_folder.run, seq=1, first_batch=0, end_batch=1, rows=5)
    with pytest.raises(Transient, match=says):
        read_slice(run_folder, piece)


def test_rule_3_a_missing_segment_fails_the_task(run_folder: RunFolder) -> None:
    meta = write_segment(run_folder, "t0", 1, [SpanRows.of(1, 10, many_rows(5))])
    run_folder.delete_segment(meta.uri)
    with pytest.raises(Transient, match=r"00001\.arrow .* is missing"):
        read_slice(run_folder, slice_of(run_folder, meta))


def test_a_small_segment_is_opened_once_for_all_its_slices(
    run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "KEPT", 2)
    metas = [write_segment(run_folder, "t0", 1 + n, [SpanRows.of(1, 10, many_rows(5))]) for n in range(3)]
    pieces = [slice_of(run_folder, meta) for meta in metas]
    kept = KeptSegments()
    rows = [read_slice(run_folder, piece, kept=kept) for piece in pieces]
    for piece in pieces:
        run_folder.delete_segment(piece.uri)
    assert [kept.is_at_hand(piece) for piece in pieces] == [False, True, True]
    assert [read_slice(run_folder, piece, kept=kept) for piece in pieces[1:]] == rows[1:]
    for other in (pieces[0], pieces[2].model_copy(update={"size": 12})):
        with pytest.raises(Transient, match="is missing"):
            read_slice(run_folder, other, kept=kept)
    with pytest.raises(Transient, match="is number 2 of run 7-nonce"):
        read_slice(run_folder, pieces[1].model_copy(update={"seq": 1}), kept=kept)


def test_a_large_segment_is_not_kept(run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    meta = write_segment(run_folder, "t0", 1, [SpanRows.of(1, 10, many_rows(5))])
    monkeypatch.setattr(reader, "SMALL", meta.bytes - 1)
    kept = KeptSegments()
    assert read_slice(run_folder, slice_of(run_folder, meta), kept=kept).num_rows == 5
    assert not kept.is_at_hand(slice_of(run_folder, meta))


def test_rule_3_a_torn_segment_fails_the_task(run_folder: RunFolder) -> None:
    meta = write_segment(run_folder, "t0", 1, [SpanRows.of(1, 10, many_rows(500))])
    path = local_path(meta.uri)
    whole = path.read_bytes()
    for start, end in ((0, len(whole)), (len(whole) - 600, len(whole))):
        path.write_bytes(whole[:start] + bytes(end - start) + whole[end:])
        with pytest.raises(Transient, match="cannot be read"):
            read_slice(run_folder, slice_of(run_folder, meta))
    os.truncate(path, 100)
    with pytest.raises(Transient, match="has 100 bytes"):
        read_slice(run_folder, slice_of(run_folder, meta))
