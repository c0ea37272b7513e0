"""A replication connection: the bytes that the server sends of a slot, in large pieces, and what we say of them.

A shell: it knows no message but the first. The server sends each change by itself, so a reader that takes what is
there costs more than the rows do: after the first bytes it waits a little for many.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from collections.abc import Sequence

from changefeed.errors import ChangefeedError, Unavailable
from changefeed.upstream.contract import GATHER_SECONDS
from changefeed.upstream.postgresql.failures import failure, lost
from changefeed.upstream.postgresql.pgoutput.messages import EPOCH_US
from changefeed.upstream.postgresql.server import PostgresqlServer, PostgresqlSession, quoted
from changefeed.upstream.postgresql.slot.chain import lsn_text
from changefeed.upstream.postgresql.slot.timelines import Switch, switches

#: The server is told where we are so often, and asked for an answer; a fourth of what it waits for, if that is less.
STATUS_S = 10.0
#: A server that has sent nothing for so long, asked or not, is dead.
SILENCE_S = 60.0
#: What is there is taken at once when it is so much; and never more than that at a time.
_GATHER_BYTES, _MAX_BYTES = 1 << 20, 8 << 20
_STATUS = struct.Struct(">ciBQQQqB")
_HEAD = struct.Struct(">ci")
_COPY_BOTH, _ERROR, _END = b"WEc"


class Replication:
    """Reads `slot` from where its reader has last said that it has all; `start_lsn`: or from there, if that is later.

    One thread at a time. Each method raises what `failures` says of an error. After one, close it.
    """

    def __init__(
        self,
        server: PostgresqlServer,
        slot: str,
        publications: Sequence[str],
        start_lsn: int = 0,
        silence_s: float = SILENCE_S,
        name: str = "changefeed",
    ) -> None:
        """`name`: how the server lists the connection."""
        self._where, self._silence_s = str(server), silence_s
        self._session = PostgresqlSession(server, is_replication=True, name=name)
        try:
            ((self.system_id, self.timeline),) = [row[:2] for row in self._session.rows("IDENTIFY_SYSTEM")]
            self.switches = _switches(self._session, self.timeline)
            self._status_s = min(STATUS_S, silence_s / 4, *_quarter(self._session.rows("SHOW wal_sender_timeout")))
            self._socket = self._session.socket
            self._first = self._begun(_command(slot, publications, start_lsn), slot)
        except BaseException:
            self._session.close()
            raise
        self._buffer = memoryview(bytearray(_MAX_BYTES))
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._heard = self._told = time.monotonic()
        self._received = self._recorded = 0

    def read(self, wait_s: float = 1.0, gather_s: float = GATHER_SECONDS) -> bytes:
        """What has arrived, in whatever pieces. Waits for it so long at most, then it is nothing.

        Also tells the server what is due. Raises Transient when it is gone, or silent for too long.
        """
        if self._first:
            first, self._first = self._first, b""
            return first
        self.tell()
        if self._has(1, wait_s):
            self._has(_GATHER_BYTES, gather_s)
        found = self._arrived()
        now = time.monotonic()
        if found:
            self._heard = now
        elif now - self._heard > self._silence_s:
            raise lost(self._where, f"it has sent nothing for {self._silence_s:g} s")
        return found

    def confirm(self, received: int, recorded: int) -> None:
        """Tell the server at once: all before `recorded` is durable here, and need not be sent ever again.

        `received`: the end of what has come, which shows in pg_stat_replication. None of them goes back.
        """
        self._received, self._recorded = max(self._received, received), max(self._recorded, recorded)
        self._told = float("-inf")
        self.tell()

    def tell(self) -> None:
        """Tell it that we live, if that is due. Who does not read for a while calls it all the same."""
        now = time.monotonic()
        if now - self._told < self._status_s:
            return
        self._told = now
        clock = time.time_ns() // 1000 - EPOCH_US
        positions = (max(self._received, self._recorded), self._recorded, self._recorded)
        message = _STATUS.pack(b"d", _STATUS.size - 1, ord("r"), *positions, clock, 1)
        self._socket.settimeout(self._silence_s)
        try:
            self._socket.sendall(message)
        except OSError as error:
            raise self._broken(error) from None

    def close(self) -> None:
        """The slot is free again once the server has noticed."""
        self._session.close()

    def _begun(self, command: str, slot: str) -> bytes:
        """What has come behind the answer to START_REPLICATION."""
        query = command.encode() + b"\0"
        try:
            self._socket.sendall(_HEAD.pack(b"Q", 4 + len(query)) + query)
            data = b""
            while True:
                while len(data) < _HEAD.size or len(data) < (end := 1 + _HEAD.unpack_from(data)[1]):
                    if not (piece := self._socket.recv(1 << 16)):
                        raise ConnectionResetError
                    data += piece
                if error := error_of(self._where, data[0], data[_HEAD.size : end], slot):
                    raise error
                kind, data = data[0], data[end:]
                if kind == _COPY_BOTH:
                    return data
        except OSError as error:
            raise self._broken(error) from None

    def _has(self, size: int, wait_s: float) -> bool:
        """Wait until so many bytes are there, or the end of all."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() >= size:
            return True  # taken from the socket already, where poll sees nothing of them
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
        return bool(self._poll.poll(wait_s * 1000))

    def _arrived(self) -> bytes:
        self._socket.settimeout(0)
        size = 0
        try:
            while size < _MAX_BYTES:
                if not (count := self._socket.recv_into(self._buffer[size:])):
                    if not size:
                        raise lost(self._where, "the server has closed the connection")
                    break
                size += count
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        except OSError as error:
            raise self._broken(error) from None
        return bytes(self._buffer[:size])

    def _broken(self, error: OSError) -> ChangefeedError:
        late = isinstance(error, TimeoutError)
        return lost(self._where, "it takes nothing any more" if late else error.strerror or "the connection broke")


def error_of(where: str, kind: int, body: bytes, slot: str = "") -> ChangefeedError | None:
    """What a message beside the stream means for it; None: nothing. `slot`: it answers START_REPLICATION."""
    if kind == _END:
        return Unavailable(f"{where}: it has ended the stream.", "Start the server again.")
    if kind != _ERROR:
        return None
    fields = {part[:1]: part[1:].decode(errors="replace") for part in body.split(b"\0") if part}
    return failure(where, fields.get(b"C", ""), fields.get(b"M", ""), slot)


def _command(slot: str, publications: Sequence[str], start_lsn: int) -> str:
    names = ",".join(map(quoted, publications)).replace("'", "''")
    options = f"proto_version '1', messages 'true', publication_names '{names}'"
    position = lsn_text(start_lsn)
    return f"START_REPLICATION SLOT {quoted(slot)} LOGICAL {position} ({options})"


def _switches(session: PostgresqlSession, timeline: int) -> list[Switch]:
    """Each point at which another server has taken over, in their order."""
    if timeline == 1:
        return []
    ((_, history),) = session.rows(f"TIMELINE_HISTORY {timeline}")
    return switches(history, timeline)


def _quarter(rows: list[list[str]]) -> list[float]:
    """Give a fourth of the wal_sender_timeout, in seconds; nothing if the server waits for ever."""
    ((text,),) = rows
    units = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    return [int(number) * units[text[len(number) :]] / 4] if int(number) else []
