"""The data plane's entrypoint with stand-ins for Python, Java and the init: what it becomes, told what."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ENTRYPOINT = ROOT / "images" / "entrypoint.sh"
#: Says what it is: its arguments, its environment, its process.
SAYS = f"""#!{sys.executable}
import json, os, sys
print(json.dumps({{"argv": sys.argv, "env": dict(os.environ), "pid": os.getpid()}}))
"""
#: As the kubelet starts a driver's container.
DRIVER = [
    "driver",
    "--properties-file",
    "/opt/spark/conf/spark.properties",
    "--class",
    "org.apache.spark.deploy.PythonRunner",
    "local:///opt/changefeed/changefeed_app.py",
]
RUN = ["run", "-f", "/etc/changefeed/changefeed.yaml", "--attempt", "3", "--take-over"]
EXECUTOR = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver-svc.shop.svc:7078",
    "SPARK_EXECUTOR_ID": "2",
    "SPARK_EXECUTOR_CORES": "4",
    "SPARK_EXECUTOR_MEMORY": "1024m",
    "SPARK_EXECUTOR_POD_IP": "10.88.0.7",
    "SPARK_EXECUTOR_POD_NAME": "changefeed-orders-3-exec-2",
    "SPARK_APPLICATION_ID": "spark-1f",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_JAVA_OPT_10": "-Dten=10",
    "SPARK_JAVA_OPT_2": "-Dtwo=a b",
}


@dataclass(frozen=True)
class Became:
    """What the container's process became, and whether it is that process still."""

    argv: list[str]
    env: dict[str, str]
    same_process: bool


class Image:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("bin/python", "bin/changefeed", "java/bin/java"):
            self.add(name, SAYS)
        self.env = {
            "PATH": f"{folder / 'bin'}:{self._tools()}",
            "JAVA_HOME": str(folder / "java"),
            "SPARK_HOME": str(folder / "spark"),
            "SPARK_CONF_DIR": "/opt/spark/conf",
        }

    def add(self, name: str, script: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script)
        path.chmod(0o755)

    def _tools(self) -> Path:
        """What the script calls, without whatever else this machine has."""
        tools = self.folder / "tools"
        tools.mkdir()
        for name in ("bash", "sort"):
            (tools / name).symlink_to(str(shutil.which(name)))
        return tools

    def start(self, *arguments: str, **env: str) -> Became:
        process = subprocess.Popen([ENTRYPOINT, *arguments], env={**self.env, **env}, stdout=subprocess.PIPE, text=True)
        out, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        said = json.loads(out)
        return Became(said["argv"], said["env"], said["pid"] == process.pid)


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


def test_a_driver_is_python_itself(image: Image) -> None:
    became = image.start(*DRIVER, *RUN)
    assert became.argv == [str(image.folder / "bin/python"), "/opt/changefeed/changefeed_app.py", *RUN]
    assert became.same_process
    assert became.env["CHANGEFEED_SPARK_PROPERTIES"] == "/opt/spark/conf/spark.properties"
    assert "SPARK_CONF_DIR" not in became.env


def test_an_executor_is_sparks_back_end(image: Image) -> None:
    jars = image.folder / "spark" / "jars"
    for name in ("slf4j-api-2.0.17.jar", "spark-core.jar", "Jaxb.jar", "a.jar"):
        image.add(f"spark/jars/{name}", "")
    in_order = [f"{jars}/{name}" for name in ("slf4j-api-2.0.17.jar", "Jaxb.jar", "a.jar", "spark-core.jar")]
    became = image.start("executor", **EXECUTOR)
    assert became.same_process
    assert became.argv == [
        str(image.folder / "java/bin/java"),
        "-Dtwo=a b",
        "-Dten=10",
        "-Dspark.master=k8s://",
        "-Xms1024m",
        "-Xmx1024m",
        "-cp",
        ":".join(in_order),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        "--driver-url",
        "spark://CoarseGrainedScheduler@driver-svc.shop.svc:7078",
        "--executor-id",
        "2",
        "--cores",
        "4",
        "--app-id",
        "spark-1f",
        "--hostname",
        "10.88.0.7",
        "--resourceProfileId",
        "0",
        "--podName",
        "changefeed-orders-3-exec-2",
    ]


def test_an_executor_without_java_options(image: Image) -> None:
    env = {name: value for name, value in EXECUTOR.items() if not name.startswith("SPARK_JAVA_OPT")}
    assert image.start("executor", **env).argv[1:3] == ["-Dspark.master=k8s://", "-Xms1024m"]


def test_another_command_is_run_as_it_is(image: Image) -> None:
    became = image.start("changefeed", "hold", "-f", "a file.yaml")
    assert became.argv[1:] == ["hold", "-f", "a file.yaml"]
    assert became.same_process


def test_an_init_stands_before_each(image: Image) -> None:
    image.add("bin/tini", SAYS)
    assert image.start(*DRIVER, *RUN).argv[1:4] == ["-s", "--", "python"]
    assert image.start("executor", **EXECUTOR).argv[1:3] == ["-s", "--"]
    assert image.start("changefeed", "hold").argv[1:] == ["-s", "--", "changefeed", "hold"]


def test_what_is_missing_is_said(image: Image) -> None:
    for arguments, said in ((["driver"], "driver: no main file"), (["executor"], "SPARK_EXECUTOR_MEMORY")):
        done = subprocess.run([ENTRYPOINT, *arguments], env=image.env, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert said in done.stderr


def test_scripts_and_dockerfile_name_only_what_is_there() -> None:
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        words = [word for word in line.split() if not word.startswith("--chmod=")]
        if words[:1] == ["COPY"] and not words[1].startswith("--from"):
            assert all((ROOT / source).exists() for source in words[1:-1]), line
    for script in (ROOT / "images").glob("*.sh"):
        assert os.access(script, os.X_OK), f"{script} can't be run"
        assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
