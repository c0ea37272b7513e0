"""The ports of a cluster's servers: each keeps its port, whether it runs, is started again, or is down."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

import grpc

_LAST_WORDS_SECONDS = 0.05
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
)


class PortServer(Protocol):
    """One life of a server."""

    def bind(self, host: str, port: int) -> int:
        """The port that it has; 0 takes a free one. Raises OSError."""

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Ends all calls at once."""


class GrpcServer:
    """Services over gRPC, with TLS if there are `credentials`."""

    def __init__(
        self,
        handlers: Sequence[grpc.GenericRpcHandler],
        credentials: grpc.ServerCredentials | None = None,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        self._credentials = credentials
        self._server = grpc.aio.server(interceptors=interceptors, options=_OPTIONS)
        self._server.add_generic_rpc_handlers(tuple(handlers))

    def bind(self, host: str, port: int) -> int:
        address = f"{host}:{port}"
        try:
            if self._credentials is not None:
                return self._server.add_secure_port(address, self._credentials)
            return self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(errno.EADDRINUSE, f"port {port} of {host} can't be bound, it is in use") from error

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)


class Ports:
    """Holds ports by number. All methods but `address` run in the server's event loop."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._make: dict[int, Callable[[], PortServer]] = {}
        self._bound: dict[int, int] = {}
        self.servers: dict[int, PortServer] = {}
        self._held: dict[int, socket.socket] = {}

    def address(self, number: int) -> str:
        return f"{self._host}:{self._bound[number]}"

    def bind(self, number: int, port: int, make: Callable[[], PortServer]) -> None:
        """`make` gives a new life of the server. Raises OSError that names a port which is in use."""
        if port:
            check_free(self._host, port)
        server = make()
        self._bound[number] = server.bind(self._host, port)
        self._make[number] = make
        self.servers[number] = server

    async def start(self) -> None:
        for server in self.servers.values():
            await server.start()

    async def restart(self, number: int) -> None:
        """Breaks all connections. A new server takes over the port before the old one stops, so nobody else can."""
        old = self.servers.pop(number, None)
        new = self.servers[number] = self._make[number]()
        new.bind(self._host, self._bound[number])
        await new.start()
        if old is not None:
            await old.stop()
        if (held := self._held.pop(number, None)) is not None:
            held.close()

    async def kill(self, number: int) -> None:
        """Breaks all connections, and refuses new ones until a restart."""
        if number in self._held:
            return
        self._held[number] = reusable(self._host, self._bound[number])
        await self.servers.pop(number).stop()

    async def close(self) -> None:
        """Stops all servers, then waits for what gRPC still has to tell this loop: a closed loop would log errors."""
        await asyncio.gather(*(server.stop() for server in self.servers.values()))
        for held in self._held.values():
            held.close()
        await asyncio.sleep(_LAST_WORDS_SECONDS)


def reusable(host: str, port: int) -> socket.socket:
    """A socket that may have the port beside others of this kind, as those of gRPC are; it takes no connections yet."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind((host, port))
    return made


def check_free(host: str, port: int) -> None:
    """Raises OSError for a busy port, before gRPC tells the terminal of it in words of its own."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise OSError(error.errno, f"port {port} of {host} is in use or not allowed, take another one") from error
