"""Memory of a puller for tasks of other machines, over Arrow Flight; those of its own map it (arena.py).

Both ends show the run's key, over TLS: whoever has not been given it by the owner can neither ask nor answer. What is
sent is a copy that was made while the slot was valid, in the messages of the segment's own file: still compressed.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from changefeed.eventstore.arena import SharedArena, SlotGone
from changefeed.eventstore.slices import SegmentSlice
from changefeed.model.rows import RAW_SCHEMA
from changefeed.wire.owner import TASK_NAME, RunKey

if TYPE_CHECKING:
    from pyarrow.flight import FlightClient

FETCH_S = 10.0  # a slice is some MiB
SERVED = 4  # at once: each holds a copy of one record batch
_CONNECTIONS = 64  # that a process keeps open
_MAGIC = 8  # bytes before the first message of an Arrow file
_TRACE = re.compile(r"\. (?:Detail: Python exception|gRPC client debug context):")
_MESSAGES = pa.schema([("message", pa.binary())])


class ArenaServer:
    """The puller's side: from now on until it is closed. `host`: an address of this machine by which tasks reach it."""

    def __init__(self, arena: SharedArena, key: RunKey, host: str) -> None:
        from pyarrow import flight

        room = threading.BoundedSemaphore(SERVED)

        class FlightServer(flight.FlightServerBase):  # type: ignore[misc]
            def do_get(self, _: object, ticket: flight.Ticket) -> flight.FlightDataStream:
                piece = SegmentSlice.model_validate_json(ticket.ticket)
                return flight.GeneratorStream(_MESSAGES, messages_of(arena, piece, room))

        host = f"[{host}]" if ":" in host else host
        self._server = FlightServer(
            f"grpc+tls://{host}:0",
            tls_certificates=[(key.certificate, key.private)],
            verify_client=True,
            root_certificates=key.certificate,
        )
        self.address = f"{host}:{self._server.port}"

    def close(self) -> None:
        """Close it once what is being read is read, or given up: nobody waits for that."""
        threading.Thread(target=self._server.shutdown, name="arena-server-end", daemon=True).start()


class RemoteArenas:
    """A reader's side of all arenas of other machines. `host`: this machine. Any thread."""

    def __init__(self, key: RunKey, host: str) -> None:
        self._key = key
        self._host = host
        self._client = lru_cache(_CONNECTIONS)(self._connect)

    def has(self, piece: SegmentSlice) -> bool:
        """Tell whether it is to be fetched; else it is mapped, or in a file."""
        return piece.slot is not None and bool(piece.slot.address) and piece.slot.host != self._host

    def fetch(self, piece: SegmentSlice) -> list[pa.RecordBatch]:
        """A copy of the slice's record batches, of RAW_SCHEMA. Raises SlotGone.

        They come without the segment's footer, which is long where there are many tables: its puller vouches for it.
        """
        from pyarrow import flight

        assert piece.slot is not None
        ticket = flight.Ticket(piece.model_dump_json().encode())
        try:
            reader = self._client(piece.slot.address).do_get(ticket, flight.FlightCallOptions(timeout=FETCH_S))
            messages = [message for chunk in reader for message in _contents(chunk.data)]
        except (OSError, pa.ArrowException) as error:
            why = _TRACE.split(str(error))[0]
            raise SlotGone(f"the puller at {piece.slot.address} does not give it ({why})") from error
        return [pa.ipc.read_record_batch(message, RAW_SCHEMA) for message in messages]

    def _connect(self, address: str) -> FlightClient:
        from pyarrow import flight

        return flight.FlightClient(
            f"grpc+tls://{address}",
            tls_root_certs=self._key.certificate,
            cert_chain=self._key.certificate,
            private_key=self._key.private,
            override_hostname=TASK_NAME,
        )


def messages_of(arena: SharedArena, piece: SegmentSlice, room: threading.BoundedSemaphore) -> Iterator[pa.RecordBatch]:
    """Return those of the slice's record batches. Raises SlotGone."""
    assert piece.slot is not None
    with room:
        memory = arena.opened(piece.slot)
        content = memory.read(piece.slot)
        messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(content[_MAGIC:]))
        for number, message in zip(range(-1, piece.end_batch), messages, strict=False):  # the first is the schema's
            if number >= piece.first_batch:
                copied = message.serialize()
                memory.check(piece.slot)
                yield one_value(copied)


def one_value(content: pa.Buffer) -> pa.RecordBatch:
    """Without another copy."""
    offsets = pa.py_buffer(np.array([0, content.size], np.int32))
    return pa.record_batch([pa.Array.from_buffers(pa.binary(), 1, [None, offsets, content])], _MESSAGES)


def _contents(batch: pa.RecordBatch) -> list[pa.Buffer]:
    return [value.as_buffer() for value in batch.column(0)]
