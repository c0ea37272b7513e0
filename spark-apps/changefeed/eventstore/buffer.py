"""Rows of all spans of a task that wait for their segment: decides when to roll, and hands out segment numbers.

Pure: time is handed in. It must never let go of a token before its rows are in a roll.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import pyarrow as pa

from changefeed.model.rows import raw_bytes

Token = TypeVar("Token")


@dataclass(frozen=True)
class SpanRows:
    """Rows of one subscription, in any order; batches of model.rows.RAW_SCHEMA."""

    span_id: int
    sub_id: int
    batches: tuple[pa.RecordBatch, ...]
    bytes: int  # raw

    @classmethod
    def of(cls, span_id: int, sub_id: int, *batches: pa.RecordBatch) -> SpanRows:
        return cls(span_id, sub_id, batches, sum(map(raw_bytes, batches)))


class Roll(NamedTuple, Generic[Token]):
    """What one segment will hold; `tokens` are to be given back to the span pipeline once it is written."""

    seq: int
    spans: list[SpanRows]
    tokens: list[Token]
    bytes: int  # raw
    first_at: float  # when its first row came


class EventBuffer(Generic[Token]):
    """A roll is due when it is full, with `roll_bytes` of raw bytes, or `roll_interval` seconds after its first row.

    Full ones wait in order until they are taken.
    """

    def __init__(self, roll_bytes: int = 32 << 20, roll_interval: float = 0.25) -> None:
        self._roll_bytes = roll_bytes
        self._roll_interval = roll_interval
        self._last_seq = 0
        self._full: deque[Roll[Token]] = deque()
        self._clear()

    def _clear(self) -> None:
        self._span_ids: dict[int, int] = {}
        self._batches: dict[int, list[pa.RecordBatch]] = {}
        self._sizes: Counter[int] = Counter()
        self._tokens: list[Token] = []
        self._first_at: float | None = None
        self._bytes = 0  # raw bytes

    def append(self, sub_id: int, span_id: int, batch: pa.RecordBatch, size: int, token: Token, now: float) -> None:
        """`token` comes back with the roll that holds `batch`: rows of `size` raw bytes. `now`: monotonic seconds."""
        if batch.num_rows == 0:
            raise ValueError(f"no rows to store for sub_id {sub_id}")
        if self._span_ids.setdefault(sub_id, span_id) != span_id:
            raise ValueError(f"sub_id {sub_id} is span {self._span_ids[sub_id]}, not {span_id}")
        self._batches.setdefault(sub_id, []).append(batch)
        self._sizes[sub_id] += size
        self._tokens.append(token)
        self._bytes += size
        if self._first_at is None:
            self._first_at = now
        if self._bytes >= self._roll_bytes:
            self._full.append(self._close())

    def due(self, now: float) -> bool:
        deadline = self.next_deadline()
        return bool(self._full) or (deadline is not None and now >= deadline)

    def next_deadline(self) -> float | None:
        """Say when it will be due without another row; None: nothing waits."""
        first_at = self._full[0].first_at if self._full else self._first_at
        return None if first_at is None else first_at + self._roll_interval

    def take(self) -> Roll[Token]:
        """The oldest full roll, or else everything that waits. ValueError when nothing does."""
        return self._full.popleft() if self._full else self._close()

    def _close(self) -> Roll[Token]:
        """Everything that is in no full roll, under the next segment number, from 1."""
        if self._first_at is None:
            raise ValueError("nothing waits for a segment")
        self._last_seq += 1
        spans = [
            SpanRows(span_id, sub_id, tuple(self._batches[sub_id]), self._sizes[sub_id])
            for sub_id, span_id in self._span_ids.items()
        ]
        roll = Roll(self._last_seq, spans, self._tokens, self._bytes, self._first_at)
        self._clear()
        return roll
