"""Azurite, the emulator of Azure's blob storage: got by npm once, into the cache, and started on a free port."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import hmac
import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest
from integration_s3_servers import BUCKET, S3Server
from integration_tools import needs_tool

#: Of every Azurite: not a secret.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_AZURITE = "azurite@3.35.0"
_VERSION = "2021-12-02"
_INSTALL_S = 900.0
_START_S = 60.0


class AzureServer(S3Server):
    """A running server; its `folder` is empty, all is in memory."""

    def uri(self, path: str = "", bucket: str = BUCKET) -> str:
        return f"az://{bucket}{path and '/'}{path}?endpoint={self.endpoint}&account-name={ACCOUNT}"


def write_key(folder: Path, key: str = KEY) -> Path:
    """The files of a Secret, as a pod mounts them."""
    folder.mkdir(parents=True)
    (folder / "account-key").write_text(f"{key}\n")
    return folder


@contextlib.contextmanager
def running(folder: Path) -> Iterator[AzureServer]:
    """The server with an empty container; stopped at the end, whatever happens."""
    program = _installed()
    folder.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    server = AzureServer("azurite", port, folder)
    listening = ("--blobHost", "127.0.0.1", "--blobPort", str(port))
    quiet = ("--silent", "--disableTelemetry", "--skipApiVersionCheck", "--inMemoryPersistence")
    output = folder / "azurite.log"
    with output.open("wb") as log:
        process = subprocess.Popen(["node", program, *listening, *quiet], stdout=log, stderr=log, cwd=folder)
    try:
        until = time.monotonic() + _START_S
        while not _container_made(server):
            if process.poll() is not None or time.monotonic() > until:
                pytest.fail(f"azurite is not ready after {_START_S:g} s: {output.read_text()[-2000:]}")
            time.sleep(0.05)
        yield server
    finally:
        process.kill()
        process.wait()


def _container_made(server: AzureServer) -> bool:
    """False while nobody listens."""
    path = f"{ACCOUNT}/{BUCKET}"
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _VERSION}
    named = "".join(f"{name}:{value}\n" for name, value in headers.items())
    signature = _signature("PUT" + "\n" * 12 + f"{named}/{ACCOUNT}/{path}\nrestype:container")
    headers |= {"Authorization": f"SharedKey {ACCOUNT}:{signature}", "Content-Length": "0"}
    url = f"{server.endpoint}/{path}?restype=container"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers, method="PUT"), timeout=10):
            return True
    except (ConnectionError, urllib.error.URLError) as error:
        if isinstance(error, urllib.error.HTTPError):
            raise
        return False


def _signature(text: str) -> str:
    return base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)).decode()


def _installed() -> Path:
    """The program in the cache, got when it is missing; one process gets it at a time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "changefeed" / "bin"
    cache.mkdir(parents=True, exist_ok=True)
    home = cache / "azurite"
    program = home / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if program.exists():
            return program
        with tempfile.TemporaryDirectory(dir=cache, prefix=".build-") as scratch:
            command = ["nice", needs_tool("npm"), "install", "--no-audit", "--no-fund", "--prefix", scratch, _AZURITE]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_INSTALL_S)
            if done.returncode:
                pytest.fail(f"`{' '.join(command)}` failed: {done.stderr[-2000:]}")
            home.mkdir(exist_ok=True)
            (Path(scratch) / "node_modules").rename(home / "node_modules")
    return program
