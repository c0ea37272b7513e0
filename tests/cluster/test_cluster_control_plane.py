"""The control plane that all other tests here trust: it is real, RBAC is on, and nothing of it outlives its end."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from cluster_api import CORE, Api, ApiRefused, Namespace
from cluster_control_plane import ControlPlane
from cluster_processes import wait_until
from cluster_programs import PROGRAMS

_RBAC = "rbac.authorization.k8s.io/v1"


def test_it_is_the_version_that_the_tests_name(cluster: ControlPlane) -> None:
    versions = json.loads(cluster.kubectl("version", "-o", "json"))

    wanted = PROGRAMS["kube-apiserver"].version
    assert versions["serverVersion"]["gitVersion"] == versions["clientVersion"]["gitVersion"] == wanted


def test_a_service_account_can_do_nothing_that_it_was_not_given(
    cluster: ControlPlane, namespace: Namespace, account: Callable[[str], Path]
) -> None:
    mine = namespace.as_user(Api(account("reader")))
    for path in (mine.core("pods"), mine.core("secrets"), f"{CORE}/namespaces/kube-system/secrets"):
        with pytest.raises(ApiRefused, match="forbidden") as refused:
            mine.api.get(path)
        assert refused.value.status == 403

    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    namespace.api.create(namespace.of(_RBAC, "roles"), {"metadata": {"name": "reader"}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "reader", "namespace": namespace.name}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
    binding = {"metadata": {"name": "reader"}, "roleRef": reference, "subjects": [subject]}
    namespace.api.create(namespace.of(_RBAC, "rolebindings"), binding)

    wait_until(lambda: mine.api.request("GET", mine.core("pods")).status == 200, "the right is known")
    assert mine.api.request("GET", mine.core("secrets")).status == 403
    assert mine.api.request("GET", f"{CORE}/namespaces/default/pods").status == 403


def test_a_stranger_is_refused(cluster: ControlPlane, namespace: Namespace, tmp_path: Path) -> None:
    config = json.loads(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": "guessed"}
    stranger = tmp_path / "stranger.kubeconfig"
    stranger.write_text(json.dumps(config))

    assert Api(stranger).request("GET", namespace.core("pods")).status == 401


def test_a_child_goes_with_its_owner(namespace: Namespace) -> None:
    owner = namespace.api.create(namespace.core("configmaps"), {"metadata": {"name": "owner"}})
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    child = {"metadata": {"name": "child", "ownerReferences": [reference]}}
    namespace.api.create(namespace.core("configmaps"), child)

    namespace.api.delete(namespace.core("configmaps", "owner"))

    wait_until(lambda: namespace.api.find(namespace.core("configmaps", "child")) is None, "the child is gone")


def test_a_namespace_that_is_deleted_goes(cluster: ControlPlane) -> None:
    made = cluster.create_namespace("to-go")
    made.api.create(made.core("configmaps"), {"metadata": {"name": "inside"}})

    cluster.api.delete(f"{CORE}/namespaces/to-go")

    wait_until(lambda: cluster.api.find(f"{CORE}/namespaces/to-go") is None, "the namespace is gone")


def test_the_audit_log_names_every_write(
    cluster: ControlPlane, namespace: Namespace, account: Callable[[str], Path]
) -> None:
    mine = namespace.as_user(Api(account("writer")))
    user = f"system:serviceaccount:{namespace.name}:writer"
    mine.api.request("POST", mine.core("configmaps"), {"metadata": {"name": "refused"}})
    mine.api.request("GET", mine.core("configmaps"))

    events = wait_until(lambda: cluster.writes(user), "the write is in the audit log")

    assert [(event["verb"], event["objectRef"]["resource"]) for event in events] == [("create", "configmaps")]
    assert events[0]["responseStatus"]["code"] == 403


def test_stopped_it_leaves_no_process_and_no_port(tmp_path: Path) -> None:
    with ControlPlane(tmp_path / "cluster") as another:
        processes = {name: psutil.Process(process.pid) for name, process in another.processes.running.items()}
        assert set(processes) == {"etcd", "kube-apiserver", "kube-controller-manager"}
        port = another.port

    assert not [name for name, process in processes.items() if process.is_running()]
    commands = [" ".join(found.info["cmdline"] or ()) for found in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if str(tmp_path) in command]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 1)


def test_keys_are_for_their_owner_only(cluster: ControlPlane) -> None:
    private = [*cluster.folder.rglob("*.key"), *cluster.folder.rglob("*.kubeconfig"), *cluster.folder.rglob("*.pem")]

    assert len(private) > 5
    assert not [path for path in private if path.stat().st_mode & 0o077]
