"""Cuts the bytes of a replication connection into messages.

The server sends messages of a kind, a length and a body. All that belongs to the stream is in bodies of kind CopyData:
XLogData, around one message of pgoutput, and keep-alives. Their lengths chain them. A walk from one to the next is a
step a message, which costs more than all that is done for many at once. So first all places are found that look like
the beginning of a message: nearly always these are the messages, and they are if their lengths chain them. The walk is
for what is left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from changefeed.upstream.binary_view import Ints
from changefeed.upstream.postgresql.failures import broken_stream

KEEP_ALIVE = ord("k")
_COPY_DATA, _XLOG_DATA = ord("d"), ord("w")
_HEAD = 5  # of a message: its kind, and a length that counts itself
_XLOG_HEAD = 25  # of XLogData: its kind, start LSN, end LSN, the server's clock
_MAX_LENGTH = (1 << 30) + (1 << 20)  # the server builds no message above 1 GiB


@dataclass(frozen=True)
class Reply:
    """A message beside the stream: an error, a notice, a parameter, the end."""

    kind: int
    body: bytes


@dataclass(frozen=True)
class CopyMessages:
    """Whole ones, in their order: `data[starts[i]:ends[i]]`, from the byte on that is its kind.

    `kinds`: KEEP_ALIVE, or those of pgoutput.
    """

    data: bytes
    starts: Ints
    ends: Ints
    kinds: npt.NDArray[np.uint8]
    replies: list[Reply]


class CopyStream:
    """Gathers what has arrived until it is whole."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._wanted = _HEAD  # bytes, with which the next message may be whole

    def take(self, data: bytes) -> CopyMessages:
        """The messages that are whole with these bytes. Raises ProtocolViolation for what is none."""
        self._pieces.append(data)
        self._size += len(data)
        if self._size < self._wanted:
            return _messages(b"", np.zeros(1, np.int64))
        whole = data if self._size == len(data) else b"".join(self._pieces)
        bounds, length = bounds_of(whole, _looks(whole))
        end = int(bounds[-1])
        self._pieces, self._size = ([whole[end:]] if end < len(whole) else []), len(whole) - end
        self._wanted = _HEAD if length is None else 1 + length
        return _messages(whole, bounds)


def _looks(data: bytes) -> Ints:
    """What looks like the beginning of a message with changes or a keep-alive."""
    looks = copy_data(data)
    inner = np.frombuffer(data, np.uint8)[looks + _HEAD]
    found: Ints = looks[(inner == _XLOG_DATA) | (inner == KEEP_ALIVE)]
    return found


def copy_data(data: bytes) -> Ints:
    """What looks like the beginning of CopyData that is shorter than 16 MiB, and has a body."""
    view = np.frombuffer(data, np.uint8)
    found: Ints = np.flatnonzero((view[:-_HEAD] == _COPY_DATA) & (view[1 : 1 - _HEAD] == 0))
    return found


def bounds_of(data: bytes, looks: Ints) -> tuple[Ints, int | None]:
    """Where whole messages begin, and the last of them ends; the length of what follows, if known.

    `looks`: where they may begin, in order: as far as each ends at the next, they do.
    """
    seen = np.zeros(1, np.int64)
    if len(looks) and not looks[0]:
        lengths = np.ndarray((len(data) - 3,), ">u4", buffer=data, strides=(1,))[looks + 1]
        chained = looks[:-1] + 1 + lengths[:-1].astype(np.int64) == looks[1:]
        seen = looks if chained.all() else looks[: int(chained.argmin()) + 1]
    walked, length = walk(data, int(seen[-1]))
    return np.append(seen[:-1], np.array(walked, np.int64)), length


def walk(data: bytes, at: int = 0) -> tuple[list[int], int | None]:
    """Where whole messages begin, from `at` on, and the last of them ends; the length of what follows, if known."""
    bounds: list[int] = []
    add, size = bounds.append, len(data)
    length_at = np.ndarray((max(size - 3, 0),), ">u4", buffer=data, strides=(1,)).item
    add(at)
    while at + _HEAD <= size:
        length = length_at(at + 1)
        behind = at + 1 + length
        if behind > size or length < 4:
            _check_length(length, data[at])
            return bounds, length
        add(behind)
        at = behind
    return bounds, None


def _check_length(length: int, kind: int) -> None:
    if not 4 <= length <= _MAX_LENGTH:
        raise broken_stream(f"The server's stream has a message of kind {chr(kind)!r} with length {length}.")


def _messages(data: bytes, bounds: Ints) -> CopyMessages:
    starts, ends = bounds[:-1], bounds[1:]
    view = np.frombuffer(data, np.uint8)
    outer = view[starts]
    replies: list[Reply] = []
    if (outer != _COPY_DATA).any():
        beside = np.flatnonzero(outer != _COPY_DATA)
        replies = [Reply(data[starts[i]], data[starts[i] + _HEAD : ends[i]]) for i in beside.tolist()]
        starts, ends = np.delete(starts, beside), np.delete(ends, beside)
    sizes = ends - starts
    inner = view[np.minimum(starts + _HEAD, ends - 1)]
    is_row_data = inner == _XLOG_DATA
    broken = (sizes <= np.where(is_row_data, _HEAD + _XLOG_HEAD, _HEAD)) | ~(is_row_data | (inner == KEEP_ALIVE))
    if broken.any():
        first = int(broken.argmax())
        raise broken_stream(
            f"The server's stream has {int(sizes[first])} bytes of CopyData that are neither changes nor a keep-alive."
        )
    starts = starts + np.where(is_row_data, _HEAD + _XLOG_HEAD, _HEAD)
    return CopyMessages(data, starts, ends, view[starts], replies)
