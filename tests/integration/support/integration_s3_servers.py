"""Real S3 servers for tests: built from their package registries once, into the cache, and started on a free port.

versitygw and MinIO keep what the product needs of a store; s3s-fs does not, and must be found out (rule 28).
"""

from __future__ import annotations

import contextlib
import fcntl
import http
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

KEY_ID, KEY = "testkey", "testsecret"
BUCKET = "lake"
_BUILD_S = 1500.0
_START_S = 30.0

_GO = {
    "versitygw": "github.com/versity/versitygw/cmd/versitygw@v1.8.0",
    "minio": "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c",
}
_CARGO = {"s3s-fs": ["s3s-fs", "--version", "0.14.1", "--locked", "--features", "binary"]}


@dataclass(frozen=True)
class S3Server:
    """A running server. `folder`: what it stores, a folder a bucket."""

    name: str
    port: int
    folder: Path

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def uri(self, path: str = "", bucket: str = BUCKET) -> str:
        return f"s3://{bucket}{path and '/'}{path}?endpoint={self.endpoint}&region=us-east-1"


def write_secret(folder: Path, name: str, key_id: str = KEY_ID, key: str = KEY) -> Path:
    """The files of a Secret, as a pod mounts them."""
    secret = folder / name
    secret.mkdir(parents=True)
    (secret / "access-key-id").write_text(key_id)
    (secret / "secret-access-key").write_text(f"{key}\n")
    return secret


@contextlib.contextmanager
def running(name: str, folder: Path) -> Iterator[S3Server]:
    """The server with an empty bucket; stopped at the end, whatever happens."""
    binary = _installed(name)
    (folder / BUCKET).mkdir(parents=True)
    server = S3Server(name, _free_port(), folder)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder.parent),
        "ROOT_ACCESS_KEY": KEY_ID,
        "ROOT_SECRET_KEY": KEY,
        "MINIO_ROOT_USER": KEY_ID,
        "MINIO_ROOT_PASSWORD": KEY,
        "MINIO_BROWSER": "off",
    }
    output = folder.parent / f"{name}.log"
    with output.open("wb") as log:
        process = subprocess.Popen(
            [binary, *_ARGUMENTS[name](server)], env=environment, stdout=log, stderr=log, cwd=folder.parent
        )
    try:
        _wait_until_ready(server, process, output)
        yield server
    finally:
        process.kill()
        process.wait()


_ARGUMENTS: dict[str, Callable[[S3Server], list[str]]] = {
    "versitygw": lambda s: ["--port", f"127.0.0.1:{s.port}", "--quiet", "posix", str(s.folder)],
    "minio": lambda s: ["server", "--quiet", "--address", f"127.0.0.1:{s.port}", str(s.folder)],
    "s3s-fs": lambda s: [
        *("--host", "127.0.0.1", "--port", str(s.port), "--access-key", KEY_ID, "--secret-key", KEY, str(s.folder)),
    ],
}


def _installed(name: str) -> Path:
    """The binary in the cache, built when it is missing; one process builds at a time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "changefeed" / "bin"
    cache.mkdir(parents=True, exist_ok=True)
    binary = cache / name
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if binary.exists():
            return binary
        with tempfile.TemporaryDirectory(dir=cache, prefix=".build-") as scratch:
            if name in _GO:
                _build(name, ["go", "install", _GO[name]], {"GOBIN": scratch, "GOCACHE": f"{scratch}/objects"})
                built = Path(scratch) / name
            else:
                build = {"CARGO_TARGET_DIR": f"{scratch}/target"}
                _build(name, ["cargo", "install", *_CARGO[name], "--root", scratch], build)
                built = Path(scratch) / "bin" / name
            built.rename(binary)
    return binary


def _build(name: str, command: Sequence[str], environment: dict[str, str]) -> None:
    tool = command[0]
    if shutil.which(tool) is None:
        pytest.fail(f"the test server {name} is built with {tool}, which is not in PATH: install it")
    shown = " ".join(command)
    try:
        done = subprocess.run(
            ["nice", *command], env={**os.environ, **environment}, capture_output=True, text=True, timeout=_BUILD_S
        )
    except subprocess.TimeoutExpired:
        pytest.fail(f"`{shown}` took longer than {_BUILD_S:g} s: run the test again when the machine has less to do")
    if done.returncode:
        pytest.fail(f"`{shown}` failed: {done.stderr[-2000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(server: S3Server, process: subprocess.Popen[bytes], output: Path) -> None:
    """It listens, and does not say that it is still about to start."""
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            pytest.fail(f"{server.name} ended with code {process.returncode}: {output.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(f"{server.endpoint}/minio/health/ready", timeout=1) as answer:
                if "X-Minio-Server-Status" not in answer.headers:  # "offline": it answers 200, and requests by 503
                    return
        except urllib.error.HTTPError as answer:
            with answer:
                if answer.code != http.HTTPStatus.SERVICE_UNAVAILABLE:
                    return  # the others know no such path, but they know that
        except OSError:
            pass
        time.sleep(0.02)
    pytest.fail(f"{server.name} is not ready after {_START_S:g} s: {output.read_text()[-2000:]}")
