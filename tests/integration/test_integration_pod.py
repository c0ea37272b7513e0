"""A driver's pod but for Kubernetes: the image's entrypoint, a mounted properties file, an object store, SIGTERM.

Its executors are threads of its JVM, for the properties file says so; the API server is away.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from changefeed.objectstore.open import open_store
from changefeed_devcluster.tidb.schema import NewColumn
from conftest import BIN, DEADLINE_S, Changefeed, Upstream, wait_for
from integration_s3_servers import S3Server, running, write_secret

pytestmark = pytest.mark.timeout(1800)  # the first run builds the server
ROOT = Path(__file__).parents[2]
UID = "5f1c-7"
#: As spark-submit writes it, but for the master.
PROPERTIES = """#Java properties built from Kubernetes config map with name: spark-drv-1-conf-map
spark.master=local[3,8]
spark.submit.deployMode=cluster
spark.submit.pyFiles=
spark.app.name=changefeed-test
spark.app.id=spark-5474
spark.driver.host=127.0.0.1
spark.driver.memory=512m
spark.driver.cores=1
spark.executor.instances=1
"""


class Pod:
    """The container of one attempt after the other."""

    def __init__(self, changefeed: Changefeed, server: S3Server, folder: Path) -> None:
        self.changefeed = changefeed
        self.server = server
        self.folder = folder
        self.secret = write_secret(folder / "secrets", "writer")
        credentials = {"secretRef": {"name": "writer"}}
        changefeed.spec["state"] = {"uri": server.uri("state"), "credentials": credentials}
        changefeed.spec["sink"]["storage"] |= {"uri": server.uri("lake"), "credentials": credentials}
        (folder / "spark.properties").write_text(PROPERTIES)

    @property
    def output(self) -> Path:
        return self.folder / "output"

    @property
    def termination_log(self) -> Path:
        return self.folder / "termination-log"

    def start(self, attempt: int) -> None:
        metadata = {"name": "test", "namespace": "shop", "uid": UID}
        resource = {"apiVersion": "changefeed.dev/v1alpha1", "kind": "Changefeed", "metadata": metadata}
        self.changefeed.file.write_text(json.dumps(resource | {"spec": self.changefeed.spec}))
        self.termination_log.unlink(missing_ok=True)
        environment = {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
            "CHANGEFEED_NAMESPACE": "shop",
            "CHANGEFEED_NAME": "test",
            "CHANGEFEED_UID": UID,
            "CHANGEFEED_ATTEMPT": str(attempt),
            "CHANGEFEED_TERMINATION_LOG": str(self.termination_log),
            "POD_IP": "127.0.0.1",
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": "1",
            "SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1",
            "SPARK_CONF_DIR": str(self.folder),
            "PYSPARK_PYTHON": sys.executable,
        } | ({"JAVA_HOME": os.environ["JAVA_HOME"]} if "JAVA_HOME" in os.environ else {})
        command = [str(ROOT / "images" / "entrypoint.sh"), "driver"]
        command += ["--properties-file", str(self.folder / "spark.properties")]
        command += ["--class", "org.apache.spark.deploy.PythonRunner"]
        command += [f"local://{ROOT / 'spark-apps' / 'changefeed_app.py'}", "run", "-f", str(self.changefeed.file)]
        command += [
            "--secrets-dir",
            str(self.folder / "secrets"),
            "--attempt",
            str(attempt),
            "--take-over",
            "--metrics-port",
            "0",
        ]
        with self.output.open("ab") as output:
            self.changefeed.process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)

    def passed(self, ts: int) -> bool:
        assert self.changefeed.process is not None
        assert self.changefeed.process.poll() is None, self.output.read_text()
        return self.checkpoint() >= ts

    def end(self, stop: bool) -> int:
        """Its exit code, after SIGTERM or by itself."""
        process = self.changefeed.process
        assert process is not None
        if stop:
            process.terminate()
        return process.wait(DEADLINE_S)

    def checkpoint(self) -> int:
        store = open_store(self.server.uri("lake"), secret=self.secret)
        found = [path for path, _ in store.list() if path == "metadata"]
        return int(json.loads(store.get("metadata").body)["checkpoint-ts"]) if found else 0

    def ended(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self.termination_log.read_text())
        return said


@pytest.fixture
def pod(tmp_path: Path, new_changefeed: Callable[..., Changefeed]) -> Iterator[Pod]:
    with running("ministack", tmp_path / "server" / "data") as server:
        yield Pod(new_changefeed(["shop.*"]), server, tmp_path)


def test_attempts_of_a_pod(pod: Pod, upstream: Upstream) -> None:
    tidb = upstream.tidb
    tidb.create_database("shop")
    orders = tidb.create_table("shop", "orders", (NewColumn("id", "bigint"),))

    def insert(number: int) -> int:
        with tidb.begin() as txn:
            txn.insert(orders, {"id": number})
        return txn.commit_ts

    pod.start(attempt=1)
    inserted = insert(1)
    wait_for(lambda: pod.passed(inserted), "the checkpoint has passed a row")
    assert pod.end(stop=True) == 0, pod.output.read_text()
    assert pod.ended()["class"] == "Drained"
    assert str(pod.checkpoint()) in pod.ended()["message"]

    pod.start(attempt=1)
    assert pod.end(stop=False) == 75, pod.output.read_text()
    assert pod.ended()["class"] == "Fenced"
    assert "attempt 1 has already started" in pod.ended()["message"]

    pod.changefeed.spec["targetTs"] = str(insert(2))
    pod.start(attempt=2)
    assert pod.end(stop=False) == 0, pod.output.read_text()
    assert pod.ended()["class"] == "Finished"
    assert str(pod.checkpoint()) == pod.changefeed.spec["targetTs"]
    assert "testsecret" not in pod.output.read_text()
