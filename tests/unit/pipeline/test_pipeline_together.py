"""Entries that are made together are what each is by itself, whatever its neighbours."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from changefeed.errors import NeedsHuman, ProtocolViolation, Transient
from changefeed.eventstore.reader import MemoryGone
from changefeed.eventstore.slices import SegmentSlice
from changefeed.model.position import OP_DELETE, OP_INSERT, Position
from changefeed.pipeline import together
from changefeed.pipeline.recipe import Recipes
from changefeed.pipeline.run import EntryRows
from changefeed.pipeline.task import entry_of
from changefeed.pipeline.together import MadeRows, make_together
from changefeed.pipeline.work import Work
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import TableInfo
from changefeed.sink.storage.event_sink import encode_entry
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pipeline_rows import (
    PEOPLE,
    Row,
    column,
    delete,
    index,
    insert,
    key,
    make_table,
    make_work,
    mounts,
    raw,
    recipe_of,
    segment,
    shuffled,
    update,
    with_index,
)


@dataclass(frozen=True)
class Order:
    """Entries of some tables, one for each, and what stands in their segments."""

    work: Work
    segments: Mapping[int, pa.Table]

    def read(self, piece: SegmentSlice) -> pa.Table:
        return self.segments[piece.seq]

    def made(self, read: Callable[[SegmentSlice], pa.Table] | None = None) -> dict[int, MadeRows]:
        return make_together(self.work, Recipes(mounts), read or self.read, lambda _: None)

    def alone(self) -> dict[int, EntryRows]:
        return {
            entry.plan_entry.entry: EntryRows(recipe_of(self.work, entry), entry, self.read)
            for entry in self.work.entries
        }

    def files(self, rows: Mapping[int, EntryRows | MadeRows], folder: Path) -> dict[int, tuple[bytes, int, int, int]]:
        """Return the bytes of each entry's file, and how many rows there were."""
        files = {}
        for entry in self.work.entries:
            found = rows[entry.plan_entry.entry]
            spool = encode_entry(entry_of("shop/feed", self.work, entry, found.recipe), found, folder)
            content = spool.body()
            assert isinstance(content, bytes)
            files[entry.plan_entry.entry] = content, found.rows, found.raw_rows, found.filtered_rows
        return files


def like(table: TableInfo, number: int) -> TableInfo:
    """Another one with the same columns and keys, which may be called otherwise."""
    indexes = tuple(replace(each, id=each.id + number, name=f"t{number}_{each.name}") for each in table.indexes)
    return replace(table, id=table.id + 10 * number, name=f"t{number}", indexes=indexes)


def order(
    contents: Sequence[tuple[TableInfo, Sequence[Sequence[Row]]]], to: Position | None = None, **options: Any
) -> Order:
    """`contents`: of each table its segments."""
    entries, infos, segments = [], {}, {}
    work = None
    for number, (table, parts) in enumerate(contents):
        pieces = []
        for rows in parts:
            pieces.append(segment(len(segments), len(rows)))
            segments[len(segments)] = raw(rows, table.id)
        work, entry = make_work(pieces, table, to=to, **options)
        plan = entry.plan_entry.model_copy(update={"entry": number, "dispatcher": table.id, "table_id": table.id})
        entries.append(entry.model_copy(update={"plan_entry": plan}))
        infos |= work.table_infos
    assert work is not None
    return Order(work.model_copy(update={"entries": tuple(entries), "table_infos": infos}), segments)


def changed(ts: int, handle: int, action: str) -> Row:
    if action == "u":
        return update(ts, handle, (ts % 2, "a"), (1, "b"))
    if action == "n":
        return Row(ts, OP_DELETE, handle, b"", None)
    return insert(ts, handle, ts, f"n{handle}") if action == "i" else delete(ts, handle, ts, None)


CHANGES = st.dictionaries(st.tuples(st.integers(1, 9), st.integers(0, 5)), st.sampled_from("iudn"), max_size=8)
OPTIONS = st.sampled_from(
    [
        {},
        {"outputOldValue": True, "outputFieldHeader": True},
        {"outputRawChangeEvent": True},
        {"protocol": "canal-json"},
        {"protocol": "parquet", "parquet": {"oldValues": True, "compression": "zstd"}},
        {"columnSelectors": [{"matcher": ["shop.*"], "columns": ["*", "!name"]}]},
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(st.lists(CHANGES, min_size=2, max_size=5), st.booleans(), OPTIONS, st.integers(), st.integers(1, 3))
def test_rule_10_each_is_what_it_is_alone(tmp_path, tables, is_unique, options, seed, segments):
    table = with_index(PEOPLE, index("k")) if is_unique else PEOPLE
    contents = []
    for number, changes in enumerate(tables):
        rows = [changed(ts, handle, action) for (ts, handle), action in changes.items()]
        contents.append((like(table, number), shuffled([*rows, *rows[::2]], seed + number, segments)))
    given_ = order(contents, to=Position.end_of(7), **options)
    made = given_.made()
    assert len(made) == len(tables)
    assert given_.files(made, tmp_path) == given_.files(given_.alone(), tmp_path)


def test_partitions_of_a_table_are_made_together(tmp_path):
    table = replace(PEOPLE, partition_ids=(71, 72))
    given_ = order([(table, [[insert(5, 1)]])] * 2)
    entries = [
        entry.model_copy(
            update={"plan_entry": entry.plan_entry.model_copy(update={"dispatcher": id_, "table_id": id_})}
        )
        for entry, id_ in zip(given_.work.entries, (71, 72), strict=True)
    ]
    segments = {0: raw([insert(5, 1)], 71), 1: raw([delete(6, 2), insert(7, 2)], 72)}
    given_ = Order(given_.work.model_copy(update={"entries": tuple(entries)}), segments)
    made = given_.made()
    assert [rows.rows for rows in made.values()] == [1, 2]
    assert given_.files(made, tmp_path) == given_.files(given_.alone(), tmp_path)


OTHER = make_table([column(1, "id", SqlType.BIGINT)], name="other")
WHOLE = [[insert(5, 1)]]


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (order([(PEOPLE, WHOLE), (OTHER, [[]])]), []),
        (order([(PEOPLE, WHOLE), (like(PEOPLE, 1), WHOLE), (replace(OTHER, id=3), [[]])]), [0, 1]),
        (order([(PEOPLE, WHOLE)] * 2), []),
        (order([(PEOPLE, WHOLE), (like(PEOPLE, 1), WHOLE)], to=Position(5, 1, 2, key(1))), []),
        (order([(PEOPLE, WHOLE), (like(PEOPLE, 1), WHOLE)], integrity={"level": "Correctness"}), []),
        (
            order(
                [(PEOPLE, WHOLE), (like(PEOPLE, 1), WHOLE)],
                filter_={"eventFilters": [{"matcher": ["*.t1"], "ignoreEvent": ["insert"]}]},
            ),
            [],
        ),
    ],
    ids=["other columns", "two of three", "one dispatcher's", "inside a ts", "checksums", "event filters"],
)
def test_whose_rows_must_be_told_apart_is_made_alone(given_, expected):
    assert list(given_.made()) == expected


def test_large_ones_are_made_alone(monkeypatch):
    given_ = order([(PEOPLE, WHOLE), (like(PEOPLE, 1), WHOLE)])
    (first, second) = given_.work.entries
    large = first.plan_entry.model_copy(update={"estimate": together.SMALL_BYTES + 1})
    entries = first.model_copy(update={"plan_entry": large}), second
    assert Order(given_.work.model_copy(update={"entries": entries}), given_.segments).made() == {}
    monkeypatch.setattr(together, "MOST_BYTES", 100)
    assert given_.made() == {}


def lost(piece: SegmentSlice) -> pa.Table:
    raise MemoryGone(piece.uri, "its slot is in use again") if piece.seq else Transient("It is missing.")


SPOILT = [[Row(5, OP_INSERT, 1, b"\x80broken")]]
DIFFER = [[insert(5, 1, 1)], [insert(5, 1, 2)]]


@pytest.mark.parametrize(("rows", "error"), [(SPOILT, NeedsHuman), (DIFFER, ProtocolViolation)])
def test_an_error_is_told_of_its_own_table(rows, error):
    given_ = order([(PEOPLE, WHOLE), (like(PEOPLE, 1), rows)])
    assert given_.made() == {}
    sound, broken = given_.alone().values()
    assert sum(len(records.op) for records in sound) == 1
    with pytest.raises(error, match=key(1, like(PEOPLE, 1).id).hex()):
        list(broken)


def test_a_key_of_another_table_is_not_taken_for_the_own():
    given_ = order([(PEOPLE, WHOLE), (like(PEOPLE, 1), WHOLE)])
    stray = Order(given_.work, {**given_.segments, 1: raw([insert(5, 1)], 1234)})
    assert stray.made() == {}
    short = given_.segments[1].set_column(4, "key", pa.array([b"t"], pa.binary())).cast(given_.segments[1].schema)
    assert Order(given_.work, {**given_.segments, 1: short}).made() == {}


def test_what_cannot_be_read_is_told_by_who_reads_it_alone():
    assert order([(PEOPLE, WHOLE), (like(PEOPLE, 1), WHOLE)]).made(lost) == {}


def test_memory_is_checked_after_it_was_copied():
    given_ = order([(PEOPLE, WHOLE), (like(PEOPLE, 1), WHOLE)])
    checked = []
    made = make_together(given_.work, Recipes(mounts), given_.read, checked.append)
    assert [piece.seq for piece in checked] == [0, 1]
    read = {buffer.address for rows in given_.segments.values() for buffer in _buffers(rows.columns)}
    shown = [records for rows in made.values() for records in rows]
    kept = {buffer.address for records in shown for buffer in _buffers([records.commit_ts, *records.columns])}
    assert kept
    assert not kept & read

    def gone(piece: SegmentSlice) -> None:
        raise MemoryGone(piece.uri, "its slot is in use again")

    assert make_together(given_.work, Recipes(mounts), given_.read, gone) == {}


def _buffers(arrays: Sequence[pa.Array | pa.ChunkedArray]) -> list[pa.Buffer]:
    chunks = [chunk for each in arrays for chunk in (each.chunks if isinstance(each, pa.ChunkedArray) else [each])]
    return [buffer for chunk in chunks for buffer in chunk.buffers() if buffer is not None and buffer.size]


def test_even_a_single_slice_is_copied():
    given_ = order([(PEOPLE, WHOLE), (like(PEOPLE, 1), [])])
    ((first, nothing),) = [given_.made().values()]
    read = {buffer.address for buffer in _buffers(given_.segments[0].columns)}
    (records,) = first
    assert not read & {buffer.address for buffer in _buffers([records.commit_ts, *records.columns])}
    assert (nothing.rows, list(nothing)) == (0, [])


def test_segments_of_a_store_are_read_several_at_a_time():
    given_ = order([(PEOPLE, WHOLE), (like(PEOPLE, 1), WHOLE)])
    with ThreadPoolExecutor(2) as readers:
        made = make_together(given_.work, Recipes(mounts), given_.read, lambda _: None, readers)
    assert [rows.rows for rows in made.values()] == [1, 1]


def test_the_first_one_has_what_all_have_cost():
    first, second = order([(PEOPLE, WHOLE), (like(PEOPLE, 1), WHOLE)]).made().values()
    assert sum(first.cpu.seconds.values()) > 0
    assert sum(second.cpu.seconds.values()) == 0


def test_tables_are_told_by_what_they_decode_with():
    given_ = order([(PEOPLE, WHOLE), (like(PEOPLE, 1), WHOLE), (with_index(like(PEOPLE, 2), index("k")), WHOLE)])
    likenesses = [rows.recipe.likeness for rows in given_.alone().values()]
    assert likenesses[0] == likenesses[1] != likenesses[2]
    assert json.loads(likenesses[0] or "")
