"""A standard TiKV client, `org.tikv:tikv-client-java`, against the development cluster: the facts from another side.

`conformance/Conformance.java` holds the checks. Maven fetches the client once into the user's cache.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from changefeed_devcluster.server import DevCluster

HERE = Path(__file__).parent / "conformance"
CLIENT_VERSION = "3.3.5"
FETCH_S = 600.0
RUN_S = 90.0
CHECKS = [
    "timestamps rise",
    "split and scatter",
    "two-phase commit over two regions",
    "scan over two regions",
    "batch get",
    "old snapshot",
    "write conflict",
    "reader passes a living lock",
    "abandoned lock is rolled back",
    "abandoned secondary is committed",
    "unlocked commit is refused",
    "commit after split, merge and transfer",
]

pytestmark = pytest.mark.timeout(FETCH_S + 2 * RUN_S)


def tool(name: str, package: str) -> str:
    """The path of a program of Java's, or a failure that says how to get it."""
    java_home = os.environ.get("JAVA_HOME")
    found = shutil.which(name, path=f"{java_home}/bin") if java_home else None
    found = found or shutil.which(name)
    if found is None:
        pytest.fail(f"{name} is needed for the conformance test and is not there: apt-get install {package}")
    return found


def checked(command: list[str], what: str, timeout_s: float) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s)
    if done.returncode:
        pytest.fail(f"{what} failed with exit code {done.returncode}:\n{done.stdout}\n{done.stderr}")


@pytest.fixture(scope="module")
def client_jars() -> Path:
    """The folder with the client's jars; filled aside and renamed, so it is whole or not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "changefeed"
    folder = cache / f"tikv-client-java-{CLIENT_VERSION}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as aside:
            jars = Path(aside) / "jars"
            command = [tool("mvn", "maven"), "-q", "-B", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies"]
            command += [f"-Dtikv.version={CLIENT_VERSION}", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
            checked(command, f"fetching org.tikv:tikv-client-java {CLIENT_VERSION} with mvn", FETCH_S)
            jars.rename(folder)
    return folder


@pytest.fixture
def classes(client_jars: Path, tmp_path: Path) -> str:
    """The class path with the compiled checks."""
    path = f"{client_jars}/*"
    command = [
        tool("javac", "openjdk-17-jdk-headless"),
        "-cp",
        path,
        "-d",
        str(tmp_path),
        str(HERE / "Conformance.java"),
    ]
    checked(command, "compiling Conformance.java", RUN_S)
    return f"{tmp_path}{os.pathsep}{path}"


@pytest.fixture
def cluster() -> Iterator[DevCluster]:
    with DevCluster() as cluster:
        yield cluster


def disturb(cluster: DevCluster) -> None:
    """Makes every region that the client has cached a wrong one."""
    first, middle, last = cluster.regions.all()
    cluster.regions.transfer(first.id, next(store for store, _ in first.peers if store != first.leader_store))
    cluster.split(b"k2")
    cluster.merge(middle.id, last.id)


def run(classes: str, cluster: DevCluster) -> list[dict[str, Any]]:
    """The answers of the checks; the last one is a failed one unless all went well."""
    answers = []
    process = subprocess.Popen(
        [tool("java", "openjdk-17-jre-headless"), "-Xmx256m", "-cp", classes, "Conformance", cluster.pd_address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            for line in process.stdout:
                answer = json.loads(line) if line.startswith("{") else {"output": line.rstrip()}
                if "ready" in answer:
                    disturb(cluster)
                    process.stdin.write("go on\n")
                    process.stdin.flush()
                else:
                    answers.append(answer)
        finally:
            if process.poll() is None:
                process.kill()
    return answers


def test_a_standard_client_agrees_with_the_development_cluster(classes: str, cluster: DevCluster) -> None:
    answers = run(classes, cluster)
    assert answers == [{"check": name, "ok": True} for name in CHECKS]
    assert cluster.store.scan_locks(cluster.oracle.next()) == [], "no lock is left behind"
