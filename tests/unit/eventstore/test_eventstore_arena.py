"""Shared memory: another process reads what is in a slot, and learns when it is another's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from changefeed.errors import Transient
from changefeed.eventstore.arena import SharedArena, SlotGone, can_share_memory, mapped
from changefeed.eventstore.buffer import SpanRows
from changefeed.eventstore.reader import KeptSegments, MemoryGone, check_slice, read_slice
from changefeed.eventstore.realtime_buffer import Slot
from changefeed.eventstore.run_folder import RunFolder
from changefeed.eventstore.segment import sort_segment
from changefeed.eventstore.slices import SegmentSlice, SlotAddress
from changefeed.model.rows import RAW_SCHEMA
from changefeed.objectstore import Location

pytestmark = pytest.mark.skipif(not can_share_memory(), reason="this system has no memory without a name to share")

FIRST, SECOND = Slot(0, 1, 0, 5), Slot(0, 2, 0, 5)


@pytest.fixture
def arena() -> Iterator[SharedArena]:
    made = SharedArena(1 << 16)
    yield made
    made.close()


def write(arena: SharedArena, slot: Slot, content: bytes) -> SlotAddress:
    with arena.writer(slot) as file:
        file.write(content)
    return arena.address(slot)


def test_another_process_reads_it_for_as_long_as_it_is_valid(arena: SharedArena) -> None:
    address = write(arena, FIRST, b"hello")
    code = f"""
from changefeed.eventstore.arena import mapped
from changefeed.eventstore.slices import SlotAddress
address = SlotAddress.model_validate_json({address.model_dump_json()!r})
print(mapped(address).read(address).to_pybytes())
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout == "b'hello'\n"


def test_a_slot_that_is_used_again_is_noticed(arena: SharedArena) -> None:
    address = write(arena, FIRST, b"hello")
    view = mapped(address).read(address)
    mapped(address).check(address)
    arena.clear(FIRST)
    with pytest.raises(SlotGone, match=r"slot 0 of process \d+ holds another segment"):
        mapped(address).check(address)
    again = write(arena, SECOND, b"world")
    assert view.to_pybytes() == b"world", "the same memory"
    with pytest.raises(SlotGone):
        mapped(address).read(address)
    assert mapped(again).read(again).to_pybytes() == b"world"


def test_memory_of_a_process_that_has_ended_cannot_be_opened() -> None:
    ended = SharedArena(1 << 16)
    address = write(ended, FIRST, b"hello")
    ended.close()
    with pytest.raises(SlotGone, match="can't be opened"):
        mapped(address)


def test_another_file_with_the_same_number_is_not_taken_for_it(tmp_path: Path) -> None:
    ended = SharedArena(1 << 16)
    address = write(ended, FIRST, b"hello")
    ended.close()
    (tmp_path / "other").write_bytes(bytes(1 << 17))
    with (tmp_path / "other").open("rb") as other:
        os.dup2(other.fileno(), address.file)
        with pytest.raises(SlotGone, match="has another file"):
            mapped(address)
        if address.file != other.fileno():
            os.close(address.file)


def test_a_segment_is_read_where_it_stands_and_not_once_it_is_gone(arena: SharedArena, tmp_path: Path) -> None:
    run_folder = RunFolder(Location(tmp_path.as_uri()), 7, "nonce")
    slot, piece, row = segment_in(arena, run_folder, seq=1, generation=9)
    kept = KeptSegments()
    assert read_slice(run_folder, piece, kept=kept).to_pylist() == [row]
    assert read_slice(run_folder, piece, kept=kept).to_pylist() == [row]
    check_slice(piece)
    arena.clear(slot)
    for use in (lambda: read_slice(run_folder, piece, kept=kept), lambda: check_slice(piece)):
        with pytest.raises(MemoryGone, match=r"00001\.arrow can't be read in memory: slot 3") as gone:
            use()
        assert gone.value.uri == piece.uri


def test_rule_3_a_segment_is_not_taken_for_the_one_that_stood_there_before(arena: SharedArena, tmp_path: Path) -> None:
    run_folder = RunFolder(Location(tmp_path.as_uri()), 7, "nonce")
    _, first, _ = segment_in(arena, run_folder, seq=1, generation=9)
    kept = KeptSegments()
    read_slice(run_folder, first, kept=kept)
    _, second, row = segment_in(arena, run_folder, seq=2, generation=10)
    assert read_slice(run_folder, second, kept=kept).to_pylist() == [row]
    for other in (first, second.model_copy(update={"slot": first.slot})):
        with pytest.raises(MemoryGone, match="slot 3"):
            read_slice(run_folder, other, kept=kept)
    with pytest.raises(Transient, match="is number 2 of run 7-nonce"):
        read_slice(run_folder, second.model_copy(update={"seq": 1}), kept=kept)
    with pytest.raises(Transient, match="is missing"):  # it is to be read in its file, and there is none
        read_slice(run_folder, first.model_copy(update={"slot": None}), kept=kept)


def segment_in(
    arena: SharedArena, run_folder: RunFolder, seq: int, generation: int
) -> tuple[Slot, SegmentSlice, dict[str, object]]:
    """One of a single row, which its number decides, in slot 3."""
    row = dict(zip(RAW_SCHEMA.names, (1, 20 + seq, 10, 2, b"k", b"v%d" % seq, None, 0), strict=True))
    segment = sort_segment(run_folder, "t0", seq, [SpanRows.of(1, 10, pa.RecordBatch.from_pylist([row], RAW_SCHEMA))])
    slot = Slot(3, generation, 128, segment.size())
    with arena.writer(slot) as file:
        segment.write(file)
    piece = SegmentSlice(
        uri=run_folder.segment_uri("t0", seq),
        size=slot.size,
        slot=arena.address(slot),
        run=run_folder.run,
        seq=seq,
        first_batch=0,
        end_batch=1,
        rows=1,
    )
    return slot, piece, row
