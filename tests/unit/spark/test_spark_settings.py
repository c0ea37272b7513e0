"""What Spark is told on a laptop and in a driver's pod."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from changefeed.errors import NeedsHuman
from changefeed.spark import settings as module
from changefeed.spark.settings import ClusterDeployment, LaptopDeployment

POD = {
    "CHANGEFEED_SPARK_PROPERTIES": "/opt/spark/conf/spark.properties",
    "SPARK_DRIVER_BIND_ADDRESS": "10.1.2.3",
    "PYSPARK_PYTHON": "/opt/changefeed/worker-python",
}


@pytest.fixture(autouse=True)
def _java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "java_options", lambda: "-XX:SharedArchiveFile=classes.jsa")


def test_a_pods_settings_leave_the_submissions_alone(tmp_path: Path) -> None:
    cluster = ClusterDeployment.of(POD)
    settings = cluster.settings(tmp_path)
    # The properties file's: where the cluster is, who we are there, how large pods are.
    theirs = {"spark.master", "spark.app.name", "spark.driver.host", "spark.local.dir", "spark.driver.memory"}
    assert not theirs & settings.keys()
    assert not [name for name in settings if name.startswith(("spark.kubernetes.", "spark.executor.memory"))]
    assert settings["spark.driver.bindAddress"] == "10.1.2.3"
    assert settings["spark.executor.defaultJavaOptions"] == "-XX:SharedArchiveFile=classes.jsa"
    assert shlex.split(cluster.environment(tmp_path)["PYSPARK_SUBMIT_ARGS"]) == [
        "--properties-file",
        "/opt/spark/conf/spark.properties",
        "--deploy-mode",
        "client",
        "pyspark-shell",
    ]


def test_executors_get_the_same_environment_everywhere(tmp_path: Path) -> None:
    def of_executors(settings: dict[str, str]) -> dict[str, str]:
        return {name: value for name, value in settings.items() if name.startswith("spark.executorEnv.")}

    laptop = of_executors(LaptopDeployment("local[4,8]").settings(tmp_path))
    assert of_executors(ClusterDeployment.of(POD).settings(tmp_path)) == laptop
    assert laptop["spark.executorEnv.POLARS_MAX_THREADS"] == "1"


def test_lost_executors_are_noticed_and_forgiven(tmp_path: Path) -> None:
    settings = ClusterDeployment.of(POD).settings(tmp_path)

    def seconds(name: str) -> int:
        return int(settings[f"spark.{name}"].removesuffix("s"))

    patience, beat = seconds("network.timeout"), seconds("executor.heartbeatInterval")
    assert beat * 4 < patience
    assert seconds("network.timeoutInterval") < patience  # Spark does not start otherwise
    assert beat * int(settings["spark.executor.heartbeat.maxFailures"]) >= patience
    # Without it, a handful of lost executors over months would end the driver.
    assert settings["spark.executor.failuresValidityInterval"] == "10m"


@pytest.mark.parametrize("missing", sorted(POD))
def test_a_pod_of_another_image_is_told_so(missing: str) -> None:
    with pytest.raises(NeedsHuman, match=f"A driver's pod needs {missing} in its environment"):
        ClusterDeployment.of({name: value for name, value in POD.items() if name != missing})


def test_a_laptops_workers_are_this_python(tmp_path: Path) -> None:
    environment = LaptopDeployment("local[4,8]").environment(tmp_path)
    python = environment["PYSPARK_PYTHON"]
    done = subprocess.run([python, "-c", "import pyspark"], check=False, env={"PYTHONPATH": "/nowhere"})
    assert done.returncode == 0
    assert shutil.which(environment["PYSPARK_DRIVER_PYTHON"]) is None  # it would look for data sources
