"""What a laptop's Spark starts as a Python worker: it asks the run's fork server for one, and lives as long as that.

`python -I -S worker_client.py KIND`; without a fork server it becomes worker_daemon. The first row waits for it: so it
loads next to nothing, not even Python's own packages, and none of ours.
"""

import os
import signal
import socket
import sys

ADDRESS = "CHANGEFEED_FORK_SERVER"  # in the environment: the fork server's socket
LENGTH_BYTES = 4
DAEMON = "changefeed.spark.worker.worker_daemon"


def encode(program: list[str]) -> bytes:
    """A program and this process's environment, parted by what neither can hold; an empty part stands between them."""
    environment = [f"{name}={value}" for name, value in os.environ.items()]
    return b"\0".join(map(os.fsencode, [*program, "", *environment]))


def decode(request: bytes) -> tuple[list[str], dict[str, str]]:
    parts = list(map(os.fsdecode, request.split(b"\0")))
    between = parts.index("")
    return parts[:between], dict(each.split("=", 1) for each in parts[between + 1 :])


def is_in_our_place(program: list[str]) -> bool:
    """Whether the fork server has been there, which is over when this returns; SIGTERM, Spark's wish, reached it."""
    address = os.environ.get(ADDRESS)
    if address is None:
        return False
    with socket.socket(socket.AF_UNIX) as server:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until it can be handed on
        answer = _ask(server, address, program)
        if answer:
            signal.signal(signal.SIGTERM, lambda *_: os.kill(int.from_bytes(answer), signal.SIGTERM))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if answer:
            server.recv(1)
        return bool(answer)


def _ask(server: socket.socket, address: str, program: list[str]) -> bytes:
    """The number of the process that is in our place; empty: there is none."""
    request = encode(program)
    try:
        server.connect(address)
        socket.send_fds(server, [len(request).to_bytes(LENGTH_BYTES)], [0, 1, 2])
        server.sendall(request)
        return server.recv(LENGTH_BYTES)
    except OSError:
        return b""  # it was killed


if __name__ == "__main__" and not is_in_our_place(sys.argv[1:]):
    os.execv(sys.executable, [sys.executable, "-m", DAEMON, *sys.argv[1:]])
