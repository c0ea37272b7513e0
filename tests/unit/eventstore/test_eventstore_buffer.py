from __future__ import annotations

import pyarrow as pa
import pytest
from changefeed.eventstore.buffer import EventBuffer
from changefeed.model.rows import RAW_SCHEMA, ROW_OVERHEAD, raw_bytes


def rows(count: int, value: bytes = b"") -> pa.RecordBatch:
    columns = [
        [1] * count,
        [2] * count,
        [1] * count,
        [0] * count,
        [b""] * count,
        [value] * count,
        [None] * count,
        [0] * count,
    ]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, RAW_SCHEMA, strict=True)], schema=RAW_SCHEMA)


def append(buffer: EventBuffer[str], sub_id: int, span_id: int, batch: pa.RecordBatch, token: str, now: float) -> None:
    buffer.append(sub_id, span_id, batch, raw_bytes(batch), token, now)


def test_nothing_waits() -> None:
    buffer: EventBuffer[str] = EventBuffer()
    assert buffer.next_deadline() is None
    assert not buffer.due(1e9)
    with pytest.raises(ValueError, match="nothing waits"):
        buffer.take()


def test_due_after_the_interval_from_the_first_row() -> None:
    buffer: EventBuffer[str] = EventBuffer(roll_interval=0.25)
    append(buffer, 1, 10, rows(1), "a", now=5.0)
    append(buffer, 1, 10, rows(1), "b", now=5.2)
    assert buffer.next_deadline() == 5.25
    assert not buffer.due(5.24)
    assert buffer.due(5.25)


def test_due_by_bytes() -> None:
    buffer: EventBuffer[str] = EventBuffer(roll_bytes=1000)
    append(buffer, 1, 10, rows(1, b"x" * (999 - ROW_OVERHEAD)), "a", now=0.0)
    assert not buffer.due(0.0)
    append(buffer, 2, 11, rows(1), "b", now=0.0)
    assert buffer.due(0.0)
    assert buffer.take().bytes == 999 + ROW_OVERHEAD


def test_full_rolls_wait_in_order_and_do_not_grow() -> None:
    buffer: EventBuffer[str] = EventBuffer(roll_bytes=1000, roll_interval=0.25)
    for number in range(5):
        append(buffer, 1, 10, rows(1, b"x" * 600), str(number), now=float(number))
    assert buffer.next_deadline() == 0.25
    assert [(roll.seq, roll.tokens) for roll in (buffer.take(), buffer.take())] == [(1, ["0", "1"]), (2, ["2", "3"])]
    assert not buffer.due(4.0)
    assert buffer.next_deadline() == 4.25
    assert (buffer.take().seq, buffer.next_deadline()) == (3, None)


def test_a_roll_holds_every_token_with_its_rows_and_the_next_number() -> None:
    buffer: EventBuffer[str] = EventBuffer()
    first, second, other = rows(1), rows(2), rows(3)
    append(buffer, 1, 10, first, "a", now=0.0)
    append(buffer, 2, 10, other, "b", now=0.1)  # the same span, assigned anew
    append(buffer, 1, 10, second, "c", now=0.2)
    seq, spans, tokens, _, first_at = buffer.take()
    assert (seq, first_at) == (1, 0.0)
    assert [(s.span_id, s.sub_id, s.batches) for s in spans] == [(10, 1, (first, second)), (10, 2, (other,))]
    assert tokens == ["a", "b", "c"]
    assert buffer.next_deadline() is None

    append(buffer, 2, 10, first, "d", now=9.0)
    assert buffer.next_deadline() == 9.25
    assert (buffer.take().seq, tokens) == (2, ["a", "b", "c"])


def test_what_cannot_be_stored_is_refused() -> None:
    buffer: EventBuffer[str] = EventBuffer()
    with pytest.raises(ValueError, match="no rows"):
        append(buffer, 1, 10, rows(0), "a", now=0.0)
    append(buffer, 1, 10, rows(1), "a", now=0.0)
    with pytest.raises(ValueError, match="sub_id 1 is span 10, not 11"):
        append(buffer, 1, 11, rows(1), "a", now=0.0)
