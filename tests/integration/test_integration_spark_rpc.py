"""Spark's own RPC, as a driver's pod opens it: strangers are refused, and who listens on the wire reads nothing.

The driver's executors are threads of its JVM here; a second JVM plays what asks it from elsewhere.
"""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from changefeed.errors import Unavailable
from changefeed.kube.connection import in_pod
from changefeed.owner.pod import Pod
from changefeed.spark.rpc_secret import MountedSecret
from integration_api_server import ApiServer, api_server
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

pytestmark = pytest.mark.timeout(300)
_ROOT = Path(__file__).parents[2]
_ENDPOINT = "HeartbeatReceiver"  # one that every driver has
_SECRET = "spark.authenticate.secret"
_OURS = ("spark.authenticate", "spark.network.crypto.")


#: A driver in a process of its own, until its standard input ends. It says its settings and its secret.
_DRIVER = """
import json, sys
from pathlib import Path
from changefeed.spark.launch import Launch
from changefeed.spark.settings import ClusterDeployment
from test_integration_spark_rpc import security_manager
launch = Launch(ClusterDeployment(Path(sys.argv[1]), "127.0.0.1", sys.executable))
context = launch.context()
secret = security_manager(context._jvm, context._jsc.sc().conf()).getSecretKey()
print(json.dumps([dict(context.getConf().getAll()), secret or ""]), flush=True)
sys.stdin.read()
launch.end(keep_log=False)
"""


class Driver(NamedTuple):
    port: int
    settings: dict[str, str]  # those that an executor is started with, and the secret


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    properties = tmp_path_factory.mktemp("pod") / "properties"
    properties.write_text("spark.master=local[1]\nspark.app.name=test\nspark.driver.host=127.0.0.1\n")
    command = [sys.executable, "-c", _DRIVER, str(properties)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:  # type: ignore[call-overload]
        said, secret = json.loads(process.stdout.readline())
        settings = {name: value for name, value in said.items() if name.startswith(_OURS)}
        yield Driver(int(said["spark.driver.port"]), settings | {_SECRET: secret})
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.fixture(scope="module")
def stranger() -> Iterator[Any]:
    """The JVM of somebody else."""
    gateway = launch_gateway(SparkConf(loadDefaults=False))
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


def _look_up(jvm: Any, port: int, settings: dict[str, str]) -> str:
    """Ask the driver for an endpoint, as an executor's first step does; its address, as Spark shows it."""
    conf = jvm.org.apache.spark.SparkConf(False)
    for name, value in {"spark.rpc.lookupTimeout": "20s", **settings}.items():
        conf.set(name, value)
    env = jvm.org.apache.spark.rpc.RpcEnv.create("stranger", "127.0.0.1", 0, conf, security_manager(jvm, conf), True)
    try:
        address = jvm.org.apache.spark.rpc.RpcAddress("127.0.0.1", port)
        return str(env.setupEndpointRef(address, _ENDPOINT).toString())
    finally:
        env.shutdown()
        env.awaitTermination()


def security_manager(jvm: Any, conf: Any) -> Any:
    """Spark's, of these settings; in a driver's JVM it finds that driver's secret."""
    made = jvm.org.apache.spark.SecurityManager
    return made(conf, *(getattr(made, f"$lessinit$greater$default${number}")() for number in (2, 3)))


def test_who_has_no_secret_or_another_one_is_refused(driver: Driver, stranger: Any) -> None:
    assert _ENDPOINT in _look_up(stranger, driver.port, driver.settings)

    guessed = base64.b64encode(bytes(32)).decode()
    unencrypted = {"spark.authenticate": "true", _SECRET: driver.settings[_SECRET]}  # by SASL, the older way
    for settings in ({}, driver.settings | {_SECRET: guessed}, unencrypted):
        with pytest.raises(Py4JJavaError):
            _look_up(stranger, driver.port, settings)


def test_an_executor_reads_it_from_the_file_that_it_mounts(driver: Driver, stranger: Any, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(base64.b64decode(driver.settings[_SECRET]))  # Spark encodes what is in the file
    settings = {name: value for name, value in driver.settings.items() if name != _SECRET}
    settings |= {f"{_SECRET}.file": str(tmp_path / "secret")}
    with pytest.raises(Py4JJavaError):
        _look_up(stranger, driver.port, settings)
    in_kubernetes = re.search(r"-D(spark\.master)=(\S+)\)", (_ROOT / "images" / "entrypoint.sh").read_text())
    assert in_kubernetes
    settings[in_kubernetes[1]] = in_kubernetes[2]
    assert _ENDPOINT in _look_up(stranger, driver.port, settings)


def test_what_is_said_can_be_neither_read_nor_changed_on_the_wire(driver: Driver, stranger: Any) -> None:
    with Wire(driver.port) as wire:
        _look_up(stranger, wire.port, driver.settings)
    assert len(wire.heard) > 100
    assert _ENDPOINT.encode() not in wire.heard
    assert b"java." not in wire.heard
    assert driver.settings["spark.network.crypto.cipher"] == "AES/GCM/NoPadding"


def _mounted(api: ApiServer, folder: Path) -> dict[str, str]:
    pod = Pod("shop", "orders", "0f-1", "127.0.0.1")
    server = in_pod({"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(api.port)}, api.account)
    return MountedSecret(pod, server, "changefeed-orders-driver", "0f-2").settings(folder)


def test_the_secret_is_one_that_executors_mount_and_that_goes_with_the_driver(tmp_path: Path) -> None:
    with api_server(tmp_path / "api") as api:
        settings = _mounted(api, tmp_path)
    (asked,) = api.asked
    body = asked["body"]
    assert urlsplit(asked["path"]).path == "/api/v1/namespaces/shop/secrets"
    assert (body["kind"], body["immutable"]) == ("Secret", True)
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", "changefeed-orders-driver", "0f-2")
    assert body["metadata"]["labels"]["changefeed.dev/name"] == "orders"
    folder = settings["spark.kubernetes.executor.secrets.given"]
    assert settings["spark.authenticate.secret.executor.file"] == f"{folder}/secret"

    value = base64.b64decode(body["data"]["secret"])
    assert len(value) == 32
    assert Path(settings["spark.authenticate.secret.driver.file"]).read_bytes() == value
    assert not [text for text in (value.hex(), base64.b64encode(value).decode()) if text in str(settings)]


@pytest.mark.parametrize("answer", [403, 500])
def test_a_secret_that_is_not_created_is_tried_again_and_shown_to_nobody(tmp_path: Path, answer: int) -> None:
    with api_server(tmp_path / "api") as api:
        api.answer = answer
        with pytest.raises(Unavailable, match=f"the API server answered {answer}") as caught:
            _mounted(api, tmp_path)
    assert api.asked[0]["body"]["data"]["secret"] not in str(caught.value)
    (tmp_path / "rpc-secret").unlink()
    with pytest.raises(Unavailable, match="the API server does not answer"):
        _mounted(api, tmp_path)


class Wire:
    """Between two who talk, and hears all of it. The driver's address is not checked: only its port is known."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept)]
        self.port = int(self._listener.getsockname()[1])
        self.heard = b""

    def __enter__(self) -> Wire:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [near, far]
                for a, b in ((near, far), (far, near)):
                    self._threads.append(threading.Thread(target=self._pump, args=(a, b)))
                    self._threads[-1].start()

    def _pump(self, a: socket.socket, b: socket.socket) -> None:
        with suppress(OSError):
            while chunk := a.recv(1 << 16):
                self.heard += chunk
                b.sendall(chunk)
            b.shutdown(socket.SHUT_WR)
