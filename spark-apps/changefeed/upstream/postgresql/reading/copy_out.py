"""What COPY writes of a query: whole lines in large pieces, from a session's socket.

The server sends a message for each row, so the client library would take a step in Python for each. Text has no zeros,
so what looks like the beginning of a message is one, but for lengths in which the bytes are that begin it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from changefeed.upstream.binary_view import take_slices
from changefeed.upstream.postgresql.failures import lost
from changefeed.upstream.postgresql.pgoutput.frames import bounds_of, copy_data
from changefeed.upstream.postgresql.server import PostgresqlSession
from changefeed.upstream.postgresql.slot.replication import error_of

#: How long the server may look for the next row.
SILENCE_S = 600.0
PIECE_BYTES, RECEIVE_BYTES = 4 << 20, 1 << 20
_HEAD = 5  # of a message: its kind, and a length that counts itself
_DATA, _ERROR, _READY = b"dEZ"


def copied(session: PostgresqlSession, query: str) -> Iterator[bytes]:
    """Lines in the text form. Who does not read them to their end, or meets an error, closes the session."""
    message = f"COPY ({query}) TO STDOUT".encode() + b"\0"
    found: list[bytes] = []
    size = 0
    for bodies in _bodies(session, b"Q" + (len(message) + 4).to_bytes(4) + message):
        found.append(bodies)
        size += len(bodies)
        if size >= PIECE_BYTES and (end := bodies.rfind(b"\n") + 1):
            yield b"".join([*found[:-1], bodies[:end]])
            found, size = [bodies[end:]], len(bodies) - end
    if size:
        yield b"".join(found)


def _bodies(session: PostgresqlSession, message: bytes) -> Iterator[bytes]:
    where, wanted = str(session.server), _HEAD
    pieces: list[bytes] = []
    try:
        session.socket.settimeout(SILENCE_S)
        session.socket.sendall(message)
        while True:
            size = sum(map(len, pieces))
            while size < wanted:
                if not (piece := session.socket.recv(RECEIVE_BYTES)):
                    raise lost(where, "the server has closed the connection")
                pieces.append(piece)
                size += len(piece)
            data = b"".join(pieces)
            bounds, length = bounds_of(data, copy_data(data))
            pieces, wanted = [data[bounds[-1] :]], _HEAD if length is None else 1 + length
            starts, ends = bounds[:-1].astype(np.int32), bounds[1:].astype(np.int32)
            is_data = np.frombuffer(data, np.uint8)[starts] == _DATA
            if is_data.any():
                rows = take_slices(pa.py_buffer(data), starts[is_data] + _HEAD, ends[is_data], None)
                yield rows.buffers()[2].to_pybytes()
            for at in np.flatnonzero(~is_data).tolist():
                kind, body = data[starts[at]], data[starts[at] + _HEAD : ends[at]]
                if kind == _ERROR and (error := error_of(where, kind, body)):
                    raise error
                if kind == _READY:
                    return
    except TimeoutError:
        raise lost(where, f"it has sent no row for {SILENCE_S:g} s") from None
    except OSError as error:
        raise lost(where, error.strerror or "the connection broke") from None
