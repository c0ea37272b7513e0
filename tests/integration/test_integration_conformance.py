"""A standard TiKV client, `org.tikv:tikv-client-java`, against the development cluster.

`conformance/Conformance.java` holds the checks. Maven fetches the client once into the user's cache.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from changefeed_devcluster.server import DevCluster
from integration_java import FETCH_S, compiled, jars, java_tool

SOURCE = Path(__file__).parent / "conformance" / "Conformance.java"
CLIENT_VERSION = "3.3.5"
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


@pytest.fixture
def classes(tmp_path: Path) -> str:
    """The class path with the compiled checks."""
    client = f"org.tikv:tikv-client-java:{CLIENT_VERSION}"
    libraries = jars(f"tikv-client-java-{CLIENT_VERSION}", client, "org.slf4j:slf4j-nop:1.7.36")
    return compiled(SOURCE, tmp_path, libraries)


@pytest.fixture
def cluster() -> Iterator[DevCluster]:
    with DevCluster() as cluster:
        yield cluster


def disturb(cluster: DevCluster) -> None:
    """Makes every region that the client has cached a wrong one."""
    first, middle, last, *_ = cluster.regions.all()
    cluster.regions.transfer(first.id, next(store for store, _ in first.peers if store != first.leader_store))
    cluster.split(b"k2")
    cluster.merge(middle.id, last.id)


def run(classes: str, cluster: DevCluster) -> list[dict[str, Any]]:
    """The answers of the checks; the last one is a failed one unless all went well."""
    answers = []
    process = subprocess.Popen(
        [java_tool("java"), "-Xmx256m", "-cp", classes, "Conformance", cluster.pd_address],
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
