"""A network of its own for nodes and their pods: no port and no address of this machine is used. Needs root.

Nodes have 10.87.0.1 and 10.87.0.2, pods 10.88.0.0/16 on a bridge, services 10.96.0.0/16. Nothing in it reaches the
internet. What has to cross its border (tests to the API server, pods to a server of this machine) goes through a
`Bridge`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

NODE_ADDRESSES = ("10.87.0.1", "10.87.0.2")
NODE_ADDRESS = NODE_ADDRESSES[0]
PODS = "10.88.0.0/16"
POD_GATEWAY = "10.88.0.1"
SERVICES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
DNS_SERVICE = "10.96.0.10"
POD_BRIDGE = "pods0"
_BRIDGE_ADDRESS = "0a:58:0a:58:00:01"
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET of setns(2)
_START_S = 30.0

Address = tuple[str, int]


class NetworkFailed(Exception):
    """The network could not be made or entered; the message holds what the system said."""


@dataclass(frozen=True)
class Network:
    """A network namespace by its name; `None` in its place means this machine's own."""

    name: str

    @property
    def enter(self) -> tuple[str, ...]:
        """The command prefix that runs a program in it."""
        return ("nsenter", f"--net=/run/netns/{self.name}", "--")

    def run(self, *command: str) -> None:
        done = subprocess.run([*self.enter, *command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise NetworkFailed(f"`{' '.join(command)}` in {self.name}: {done.stderr.strip()}")

    def new_socket(self) -> socket.socket:
        """A TCP socket that stays in this network, whoever uses it."""
        made: list[socket.socket | OSError] = []
        # Only the thread that calls setns moves, and it ends here.
        thread = threading.Thread(target=lambda: made.append(self._socket_inside()))
        thread.start()
        thread.join()
        if isinstance(made[0], OSError):
            raise made[0]
        return made[0]

    def _socket_inside(self) -> socket.socket | OSError:
        try:
            with Path("/run/netns", self.name).open() as inside:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(inside.fileno(), _NEW_NETWORK):
                    return OSError(ctypes.get_errno(), "setns")
            return socket.socket()
        except OSError as error:
            return error


@contextlib.contextmanager
def new_network(name: str) -> Iterator[Network]:
    """With a bridge for pods and the routes that kube-proxy relies on; deleted at the end, with all in it."""
    _ip("netns", "add", name)
    network = Network(name)
    try:
        for command in (
            "ip link set lo up",
            *(f"ip address add {address}/32 dev lo" for address in NODE_ADDRESSES),
            f"ip address add {DNS_SERVICE}/32 dev lo",
            # Without an address of its own a bridge has the lowest of its ports', and another one when that pod ends:
            # for half a minute all others send their packets to nobody.
            f"ip link add {POD_BRIDGE} address {_BRIDGE_ADDRESS} type bridge",
            f"ip address add {POD_GATEWAY}/16 dev {POD_BRIDGE}",
            f"ip link set {POD_BRIDGE} up",
            # Without a route a packet to a service's address would not get as far as kube-proxy's rules.
            f"ip route add {SERVICES} dev {POD_BRIDGE}",
            "sysctl -qw net.ipv4.ip_forward=1",
            "sysctl -qw net.bridge.bridge-nf-call-iptables=1",
        ):
            network.run(*command.split())
        yield network
    finally:
        _ip("netns", "delete", name)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkFailed(f"`ip {' '.join(arguments)}`: {done.stderr.strip()}")


class Bridge:
    """`with Bridge(inside, listen, target)`: TCP from `listen` to `target`, of which one is inside the network.

    `from_inside`: it listens inside and connects on this machine; otherwise the other way about. It runs in a thread.
    """

    def __init__(self, network: Network, listen: Address, target: Address, from_inside: bool = False) -> None:
        self._target = target
        self._new_target: Callable[[], socket.socket] = socket.socket if from_inside else network.new_socket
        self._listener = network.new_socket() if from_inside else socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(listen)
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"bridge-{self.port}", daemon=True)
        self._listening = threading.Event()

    def __enter__(self) -> Bridge:
        self._thread.start()
        if not self._listening.wait(_START_S):
            raise TimeoutError(f"the bridge does not listen after {_START_S:g} s")
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._connect, sock=self._listener)
        self._listening.set()
        await self._stopping.wait()
        server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with self._new_target() as target:
                target.setblocking(False)
                await self._loop.sock_connect(target, self._target)
                theirs, upstream = await asyncio.open_connection(sock=target)
                try:
                    await asyncio.gather(_pump(reader, upstream), _pump(theirs, writer))
                finally:
                    upstream.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass  # refused, broken, or the end of the bridge: the close below says so to the other side
        finally:
            self._connections.discard(task)
            writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(1 << 16):
        writer.write(chunk)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
