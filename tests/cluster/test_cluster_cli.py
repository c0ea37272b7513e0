"""The verbs of the command line, and of the kubectl plugin, against a real API server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from changefeed.cli.main import main
from changefeed_operator.manifests.last_log import last_log
from cluster_api import Namespace
from cluster_control_plane import ControlPlane
from cluster_processes import wait_until
from cluster_programs import program

ROOT = Path(__file__).parents[2]
ORDERS = yaml.safe_load((ROOT / "examples/orders-to-s3.yaml").read_text()) | {"metadata": {"name": "orders"}}
TIME = "2026-01-31T12:00:00Z"
pytestmark = pytest.mark.usefixtures("crd")


@pytest.fixture
def orders(cluster: ControlPlane, namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A Changefeed; the kubeconfig is the cluster's."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    return namespace.api.create(namespace.changefeeds(), ORDERS)


def _show(namespace: Namespace, reason: str, generation: int, ready: str = "True") -> None:
    """What an operator would write."""
    condition = {"type": "Ready", "status": ready, "reason": reason, "message": "So it is.", "lastTransitionTime": TIME}
    status = {"observedGeneration": generation, "state": "Stopped", "checkpointTs": "449", "conditions": [condition]}
    body = {"apiVersion": ORDERS["apiVersion"], "kind": ORDERS["kind"], "metadata": {"name": "orders"}}
    namespace.api.apply(namespace.changefeeds("orders", "status"), body | {"status": status}, "changefeed-operator")


def test_get_and_describe(orders: dict[str, Any], namespace: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["get", "-n", namespace.name]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[0] == "orders"
    _show(namespace, "Paused", 1)
    reference = {"kind": "Changefeed", "name": "orders", "namespace": namespace.name, "uid": orders["metadata"]["uid"]}
    event = {
        "metadata": {"generateName": "orders-"},
        "involvedObject": reference,
        "type": "Warning",
        "reason": "SinkUnavailable",
        "message": "s3://lake does not answer.",
        "count": 3,
        "lastTimestamp": TIME,
    }
    namespace.api.create(namespace.core("events"), event)
    assert main(["describe", "orders", "-n", namespace.name]) == 0
    out = capsys.readouterr().out
    assert f"{namespace.name}/orders: Stopped" in out
    assert "storage s3://lake/orders?region=eu-central-1 (csv)" in out
    assert "s3://lake does not answer." in out
    assert main(["get", "-A", "--json"]) == 0
    assert "orders" in [each["name"] for each in json.loads(capsys.readouterr().out)["changefeeds"]]


def test_pause_owns_one_field(orders: dict[str, Any], namespace: Namespace) -> None:
    assert main(["pause", "orders", "-n", namespace.name]) == 0
    stored = namespace.api.get(namespace.changefeeds("orders"))
    assert stored["spec"] == ORDERS["spec"] | {"paused": True}
    (ours,) = [each for each in stored["metadata"]["managedFields"] if each["manager"] == "changefeed-cli"]
    assert ours["fieldsV1"] == {"f:spec": {"f:paused": {}}}
    assert main(["resume", "orders", "-n", namespace.name]) == 0
    assert namespace.api.get(namespace.changefeeds("orders"))["spec"]["paused"] is False


def test_the_log_of_the_last_attempt_that_failed(
    orders: dict[str, Any], namespace: Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs", "orders", "-n", namespace.name, "--previous"]) == 1
    assert "that failed: there is none" in capsys.readouterr().err
    kept = last_log("orders", orders, 3, "first\nlast\n")
    namespace.api.create(namespace.core("configmaps"), kept)
    assert main(["logs", "orders", "-n", namespace.name, "--previous", "--tail", "1"]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("last\n", "The log of attempt 3, which failed:\n")


def test_pause_waits_until_the_operator_says_so(
    cluster: ControlPlane, orders: dict[str, Any], namespace: Namespace
) -> None:
    _show(namespace, "Paused", 1)  # of the spec before: it must not count
    command = [sys.executable, "-m", "changefeed.cli.main", "pause", "orders", "-n", namespace.name, "--wait", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting:
        try:
            wait_until(lambda: namespace.api.get(namespace.changefeeds("orders"))["spec"].get("paused"), "it is asked")
            _show(namespace, "Draining", 2, "False")
            assert waiting.poll() is None
            _show(namespace, "Paused", 2)
            out, _ = waiting.communicate(timeout=60)
        finally:
            waiting.kill()
    assert waiting.returncode == 0
    assert (json.loads(out)["reason"], json.loads(out)["checkpointTs"]) == ("Paused", "449")


def test_refusals_are_plain(orders: dict[str, Any], namespace: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pause", "nothing", "-n", namespace.name]) == 1
    assert f"Changefeed {namespace.name}/nothing: there is none." in capsys.readouterr().err
    assert main(["logs", "orders", "-n", namespace.name]) == 1
    assert f"The driver's pod {namespace.name}/changefeed-orders-driver: there is none." in capsys.readouterr().err


def test_what_import_writes_is_applied(cluster: ControlPlane, namespace: Namespace, tmp_path: Path) -> None:
    uri = "s3://lake/x?protocol=canal-json&access-key=a&secret-access-key=b&flush-interval=2s"
    command = [sys.executable, "-m", "changefeed.cli.main", "import", "--sink-uri", uri, "--pd", "http://pd:2379"]
    made = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    file = tmp_path / "imported.yaml"
    file.write_text(made.stdout)
    cluster.kubectl("apply", "-n", namespace.name, "-f", file)
    stored = namespace.api.get(namespace.changefeeds("imported"))
    assert stored["spec"]["sink"]["storage"]["credentials"] == {"secretRef": {"name": "imported-sink"}}
    assert "imported-sink" in made.stderr


def test_kubectl_finds_the_plugin(
    cluster: ControlPlane, orders: dict[str, Any], namespace: Namespace, tmp_path: Path
) -> None:
    plugin = tmp_path / "kubectl-changefeed"
    plugin.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m changefeed.cli.main "$@"\n')
    plugin.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [program("kubectl"), "changefeed", "get", "orders", "-n", namespace.name, "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=60)
    assert json.loads(done.stdout)["changefeeds"][0]["name"] == "orders"
