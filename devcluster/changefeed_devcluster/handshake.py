"""PD's `cert-allowed-cn`: a client whose certificate has no allowed common name is refused in the handshake.

gRPC's servers can't ask for that, so one without TLS stands behind a gate that does the handshakes and passes on what
comes through. The gate speaks TLS 1.2, where a server may still say why it refuses once it has seen the certificate.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Collection

from .certificates import common_names
from .ports import GrpcServer, reusable

_CHUNK = 1 << 16
_BAD_CERTIFICATE = bytes((21, 3, 3, 0, 2, 2, 42))  # the record of an alert: TLS 1.2, two bytes, fatal, bad certificate


class GatedServer:
    """Lets connections through to a server once their handshake has succeeded.

    `context`: for the next handshake; `allowed`: common names; `inner`: a server without TLS.
    """

    def __init__(self, inner: GrpcServer, context: Callable[[], ssl.SSLContext], allowed: Collection[str]) -> None:
        self._inner = inner
        self._context = context
        self._allowed = frozenset(allowed)
        self._socket: socket.socket | None = None
        self._inner_port = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    def bind(self, host: str, port: int) -> int:
        self._inner_port = self._inner.bind("127.0.0.1", 0)
        self._socket = reusable(host, port)
        return int(self._socket.getsockname()[1])

    async def start(self) -> None:
        await self._inner.start()
        self._server = await asyncio.start_server(self._accept, sock=self._socket)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._inner.stop()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                tls = await self._shaken(_TlsConnection(self._context(), reader, writer))
                if tls is not None:
                    await self._pass_on(tls)
        finally:
            writer.transport.abort()

    async def _shaken(self, tls: _TlsConnection) -> _TlsConnection | None:
        """After the handshake; None if the client was refused."""
        if not await tls.handshake():
            return None
        certificate = tls.object.getpeercert(binary_form=True)
        if certificate and not self._allowed.isdisjoint(common_names(certificate)):
            await tls.flush()
            return tls
        tls.writer.write(_BAD_CERTIFICATE)  # instead of what the handshake would have ended with
        with contextlib.suppress(OSError):
            await tls.writer.drain()
            tls.writer.write_eof()
            await tls.reader.read(_CHUNK)
        return None

    async def _pass_on(self, tls: _TlsConnection) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._inner_port)

        async def inward() -> None:
            while data := await tls.read():
                writer.write(data)
                await writer.drain()

        async def outward() -> None:
            while data := await reader.read(_CHUNK):
                tls.object.write(data)
                await tls.flush()

        ways = [asyncio.create_task(inward()), asyncio.create_task(outward())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            writer.transport.abort()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)


class _TlsConnection:
    """A connection in TLS; what it wants to send waits in memory until `flush`."""

    def __init__(self, context: ssl.SSLContext, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    async def handshake(self) -> bool:
        """True when the server's last messages wait to be sent; False when it failed, which the client was told."""
        while True:
            try:
                self.object.do_handshake()
            except ssl.SSLWantReadError:
                await self.flush()
                if not await self._receive():
                    return False
            except ssl.SSLError:
                await self.flush()
                return False
            else:
                return True

    async def read(self) -> bytes:
        """Empty at the end."""
        while True:
            try:
                return self.object.read(_CHUNK)
            except ssl.SSLWantReadError:
                if not await self._receive():
                    return b""
            except ssl.SSLError:
                return b""

    async def flush(self) -> None:
        if self._outgoing.pending:
            self.writer.write(self._outgoing.read())
            await self.writer.drain()

    async def _receive(self) -> bool:
        data = await self.reader.read(_CHUNK)
        self._incoming.write(data)
        return bool(data)
