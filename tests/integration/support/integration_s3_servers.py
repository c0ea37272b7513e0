"""S3 servers for tests: got from package registries once, into the cache, and started on a free port.

MiniStack comes ready in a Python package, so most tests run on it. versitygw and MinIO are compiled for minutes: they
run where a store's rules are tested, or where it has to notice a wrong key or a body that was changed on its way, as
MiniStack does not. S3Proxy, from Maven, does not keep what the product needs of a store, and must be found out
(rule 28).
"""

from __future__ import annotations

import contextlib
import fcntl
import http
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import obstore
import pytest
from integration_java import jars, java_tool, leaves_in
from integration_spark_sql import packages
from integration_tools import needs_tool
from obstore.store import S3Store

KEY_ID, KEY = "testkey", "testsecret"
BUCKET = "lake"
_BUILD_S = 1500.0
_START_S = 30.0
Start = tuple[list[str], dict[str, str]]  # a command, and what is in its environment

_GO = {
    "versitygw": "github.com/versity/versitygw/cmd/versitygw@v1.8.0",
    "minio": "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c",
}
_MINISTACK = Path(__file__).parents[3] / "requirements" / "ministack.txt"
_S3PROXY = "org.gaul:s3proxy:2.9.0:jar-with-dependencies"


@dataclass(frozen=True)
class S3Server:
    """A running server. `folder`: what it stores; but for MiniStack, a folder a bucket.

    `certificates`: a folder of changefeed_devcluster's, with which versitygw speaks TLS; None: it doesn't.
    """

    name: str
    port: int
    folder: Path
    certificates: Path | None = None

    @property
    def endpoint(self) -> str:
        return f"http{'s' if self.certificates else ''}://127.0.0.1:{self.port}"

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
def running(name: str, folder: Path, certificates: Path | None = None) -> Iterator[S3Server]:
    """The server with an empty bucket; stopped at the end, whatever happens."""
    (folder if name == "ministack" else folder / BUCKET).mkdir(parents=True)
    server = S3Server(name, _free_port(), folder, certificates)
    command, settings = _SERVERS[name](server)
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder.parent), "TMPDIR": str(folder.parent), **settings}
    output = folder.parent / f"{name}.log"
    with output.open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder.parent)
    try:
        _wait_until_ready(server, process, output)
        if name == "ministack":
            _make_bucket(server)
        yield server
    finally:
        process.kill()
        process.wait()


def _ministack(server: S3Server) -> Start:
    settings = {
        "PYTHONPATH": str(packages("ministack", _MINISTACK)),
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(server.port),
        "SERVICES": "s3",
        "IOT_MTLS_ENABLED": "0",
        "AUTH": "true",
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": KEY,
        "S3_PERSIST": "1",
        "S3_DATA_DIR": str(server.folder),
    }
    return [sys.executable, "-S", "-m", "ministack"], settings


def _versitygw(server: S3Server) -> Start:
    pem = f"{server.certificates}/server.pem"
    secured = ["--cert", pem, "--key", pem] if server.certificates else []
    command = [str(_built("versitygw")), "--port", f"127.0.0.1:{server.port}", "--quiet", *secured]
    return [*command, "posix", str(server.folder)], {"ROOT_ACCESS_KEY": KEY_ID, "ROOT_SECRET_KEY": KEY}


def _minio(server: S3Server) -> Start:
    address = f"127.0.0.1:{server.port}"
    settings = {"MINIO_ROOT_USER": KEY_ID, "MINIO_ROOT_PASSWORD": KEY, "MINIO_BROWSER": "off"}
    return [str(_built("minio")), "server", "--quiet", "--address", address, str(server.folder)], settings


def _s3proxy(server: S3Server) -> Start:
    (jar,) = jars("s3proxy-2.9.0", alone=[_S3PROXY]).glob("*.jar")
    properties = {
        "s3proxy.endpoint": server.endpoint,
        "s3proxy.authorization": "aws-v4",
        "s3proxy.identity": KEY_ID,
        "s3proxy.credential": KEY,
        "s3proxy.ignore-unknown-headers": "true",  # it knows no checksums
        "jclouds.provider": "filesystem-nio2",
        "jclouds.filesystem.basedir": str(server.folder),
    }
    file = server.folder.parent / "s3proxy.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return [java_tool("java"), leaves_in(file.parent), "-Xmx256m", "-jar", str(jar), "--properties", str(file)], {}


_SERVERS: dict[str, Callable[[S3Server], Start]] = {
    "ministack": _ministack,
    "versitygw": _versitygw,
    "minio": _minio,
    "s3proxy": _s3proxy,
}


def _built(name: str) -> Path:
    """Return the binary in the cache, built when it is missing; one process builds at a time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "changefeed" / "bin"
    cache.mkdir(parents=True, exist_ok=True)
    binary = cache / name
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not binary.exists():
            with tempfile.TemporaryDirectory(dir=cache, prefix=".build-") as scratch:
                _build(["nice", needs_tool("go"), "install", _GO[name]], scratch)
                (Path(scratch) / name).rename(binary)
    return binary


def _build(command: Sequence[str], folder: str) -> None:
    shown = " ".join(command)
    environment = {**os.environ, "GOBIN": folder, "GOCACHE": f"{folder}/objects"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_BUILD_S)
    except subprocess.TimeoutExpired:
        pytest.fail(f"`{shown}` took longer than {_BUILD_S:g} s: run the test again when the machine has less to do")
    if done.returncode:
        pytest.fail(f"`{shown}` failed: {done.stderr[-2000:]}")


def _make_bucket(server: S3Server) -> None:
    keys = {"access_key_id": KEY_ID, "secret_access_key": KEY, "region": "us-east-1"}
    bucket = S3Store(BUCKET, endpoint=server.endpoint, virtual_hosted_style_request=False, **keys)  # type: ignore[arg-type]
    url = obstore.sign(bucket, "PUT", "", timedelta(minutes=1))
    urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=_START_S).close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(server: S3Server, process: subprocess.Popen[bytes], output: Path) -> None:
    """It listens, and does not say that it is still about to start."""
    until = time.monotonic() + _START_S
    context = ssl.create_default_context(cafile=server.certificates / "ca.crt") if server.certificates else None
    ready = f"{server.endpoint}/minio/health/ready"
    while time.monotonic() < until:
        if process.poll() is not None:
            pytest.fail(f"{server.name} ended with code {process.returncode}: {output.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(ready, timeout=1, context=context) as answer:
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
