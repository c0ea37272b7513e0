"""What becomes of a hold that is made beside others', and of one that is renewed while the server restarts."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest
from changefeed.errors import Refused, Transient
from changefeed.model.tso import compose
from changefeed.upstream.postgresql.server import PostgresqlServer
from changefeed.upstream.postgresql.slot import lease as lease_module
from changefeed.upstream.postgresql.slot import slots
from changefeed.upstream.postgresql.slot.anchors import EMIT, Said
from changefeed.upstream.postgresql.slot.chain import Chain
from changefeed.upstream.postgresql.slot.lease import SlotLease


def error(code: str, text: str) -> bytes:
    """ErrorResponse of PostgreSQL's protocol."""
    fields = b"".join(kind + value.encode() + b"\0" for kind, value in ((b"S", "FATAL"), (b"C", code), (b"M", text)))
    return b"E" + (len(fields) + 5).to_bytes(4) + fields + b"\0"


@contextmanager
def answering(*answers: bytes) -> Iterator[int]:
    """A server that gives one to each who logs in, and ends that connection; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in answers:
                with listener.accept()[0] as client:
                    client.recv(65536)
                    client.sendall(answer)

        thread = Thread(target=serve)
        thread.start()
        yield int(listener.getsockname()[1])
        thread.join()


@pytest.mark.parametrize(
    "busy",
    [
        ("57P03", "the database system is starting up"),
        ("57P01", "terminating connection due to administrator command"),
        ("53300", "sorry, too many clients already"),
    ],
)
async def test_a_server_that_restarts_or_is_full_is_asked_again(busy: tuple[str, str]) -> None:
    with answering(error(*busy), error("28P01", "password authentication failed")) as port:
        lease = SlotLease(PostgresqlServer("127.0.0.1", port, "shop", "reader", "hunter2"), "s", "n")
        with pytest.raises(Transient, match=f"127.0.0.1:{port}/shop: {busy[1]} \\({busy[0]}\\)"):
            await lease.hold(7)
        with pytest.raises(Refused, match="password authentication failed"):
            await lease.hold(7)


class Busy:
    """A session of a server into whose WAL somebody else commits a message just before each of ours is committed."""

    def __init__(self) -> None:
        self.chain = Chain("s")
        self._ms = 1_000

    def rows(self, statement: str) -> list[list[Any]]:
        assert statement == EMIT
        ours, others = compose(self._ms), compose(self._ms + 1)
        for ts in (others, ours):
            self.chain.commit(self.chain.lsn + 1, self._ms * 1000, Said(ts))
        self._ms += 2
        return [[ours, None]]

    def close(self) -> None:
        """Nothing is open."""


async def test_all_above_the_ts_of_a_first_start_is_readable_whoever_has_the_first_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = Busy()
    monkeypatch.setattr(lease_module, "PostgresqlSession", lambda *_, **__: session)
    unknown = dict.fromkeys(("kept", "safe_wal_size", "wal_status", "idle_timeout_ms", "idle_ms", "active"))
    monkeypatch.setattr(slots, "make", lambda *_: unknown | {"slot_name": "s", "now_ms": 1_000})
    ts = await SlotLease(PostgresqlServer("127.0.0.1", 1, "shop", "reader", "hunter2"), "s", "n").begin()
    assert session.chain.first_ts is not None
    assert ts >= session.chain.first_ts, "else its history seems to be lost"
