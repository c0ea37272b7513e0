"""Pod templates that ask for power over their node are refused, unless the installation allows it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from changefeed.spec.reasons import Reason
from changefeed_operator.privileges import privilege_problem
from operator_world import SETTINGS, World


def _container(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "a", **fields}]}}


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ({"spec": {"hostNetwork": True}}, ".spec.hostNetwork: true"),
        ({"spec": {"hostPID": True}}, ".spec.hostPID: true"),
        ({"spec": {"hostIPC": True}}, ".spec.hostIPC: true"),
        ({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}}, ".spec.volumes[v].hostPath: set"),
        (_container(securityContext={"privileged": True}), ".spec.containers[a].securityContext.privileged: true"),
        (
            _container(securityContext={"allowPrivilegeEscalation": True}),
            ".spec.containers[a].securityContext.allowPrivilegeEscalation: true",
        ),
        (
            _container(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}),
            ".spec.containers[a].securityContext.capabilities.add: set",
        ),
        (
            _container(ports=[{"name": "p", "containerPort": 1, "hostPort": 1}]),
            ".spec.containers[a].ports[p].hostPort: set",
        ),
        (
            {"spec": {"initContainers": [{"name": "i", "securityContext": {"privileged": True}}]}},
            ".spec.initContainers[i].securityContext.privileged: true",
        ),
        (_container(securityContext={"procMount": "Unmasked"}), ".spec.containers[a].securityContext.procMount: set"),
        (
            _container(securityContext={"seccompProfile": {"type": "Unconfined"}}),
            ".spec.containers[a].securityContext.seccompProfile.type: set; allowed: Localhost, RuntimeDefault",
        ),
        (
            _container(securityContext={"appArmorProfile": {"type": "Unconfined"}}),
            ".spec.containers[a].securityContext.appArmorProfile.type: set",
        ),
        (
            _container(securityContext={"seLinuxOptions": {"type": "spc_t"}}),
            ".spec.containers[a].securityContext.seLinuxOptions.type: set",
        ),
        (
            _container(securityContext={"seLinuxOptions": {"user": "system_u"}}),
            ".spec.containers[a].securityContext.seLinuxOptions.user: set",
        ),
        (
            {"spec": {"securityContext": {"windowsOptions": {"hostProcess": True}}}},
            ".spec.securityContext.windowsOptions.hostProcess: true",
        ),
        (
            {"spec": {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}},
            ".spec.securityContext.sysctls[kernel.msgmax].name: set",
        ),
        ({"spec": {"securityContext": {"procMount": "Default"}}}, ".spec.securityContext.procMount: set"),
        (_container(securityContext={"newPower": 1}), ".spec.containers[a].securityContext.newPower: set"),
        (_container(securityContext=["privileged"]), ".spec.containers[a].securityContext: set; allowed: a mapping"),
        ({"spec": {"volumes": [{"name": "v", "nfs": {"server": "s", "path": "/"}}]}}, ".spec.volumes[v].nfs: set"),
        (
            _container(livenessProbe={"httpGet": {"host": "10.0.0.1", "port": 80}}),
            ".spec.containers[a].livenessProbe.httpGet.host: set",
        ),
        (
            _container(lifecycle={"preStop": {"tcpSocket": {"host": "10.0.0.1", "port": 80}}}),
            ".spec.containers[a].lifecycle.preStop.tcpSocket.host: set",
        ),
        (
            {"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/a": "unconfined"}}},
            ".metadata.annotations[container.apparmor.security.beta.kubernetes.io/a]: set",
        ),
        # Not the type that it should be: the API server may still make something of it.
        ({"spec": {"hostNetwork": "true"}}, ".spec.hostNetwork: set"),
    ],
)
def test_a_template_that_wants_the_node_is_told_where(template: dict[str, Any], field: str) -> None:
    assert privilege_problem(template).startswith(field)
    assert "allowPrivilegedTemplates" in privilege_problem(template)


@pytest.mark.parametrize(
    "template",
    [
        {},
        {"spec": {"hostNetwork": False, "hostPID": None, "volumes": [{"name": "v", "hostPath": None, "emptyDir": {}}]}},
        _container(securityContext={"privileged": False, "capabilities": {"drop": ["ALL"], "add": []}}),
        _container(securityContext=None, ports=[{"name": "p", "containerPort": 9, "hostPort": 0}]),
        _container(securityContext={"runAsUser": 1000, "capabilities": None, "newPower": None}),
        _container(
            securityContext={
                "procMount": "Default",
                "readOnlyRootFilesystem": True,
                "seccompProfile": {"type": "Localhost", "localhostProfile": "audit.json"},
                "seLinuxOptions": {"type": "container_t", "level": "s0:c1,c2"},
            },
            livenessProbe={"httpGet": {"host": "", "port": 80}},
        ),
        {
            "metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/a": "runtime/default"}},
            "spec": {
                "securityContext": {"fsGroup": 0, "runAsUser": 0, "sysctls": [{"name": "net.ipv4.tcp_syncookies"}]},
                "volumes": [{"name": "a", "projected": {}}, {"name": "b", "persistentVolumeClaim": {"claimName": "c"}}],
                "tolerations": [{"key": "spot"}],
            },
        },
    ],
)
def test_an_ordinary_template_is_fine(template: dict[str, Any]) -> None:
    assert privilege_problem(template) == ""


@pytest.mark.parametrize("role", ["driver", "executor"])
def test_a_changefeed_that_wants_the_node_does_not_start_unless_that_is_allowed(role: str) -> None:
    spark = {role: {"template": {"spec": {"hostNetwork": True}}}}
    for allowed in (False, True):
        world = World(replace(SETTINGS, allow_privileged_templates=allowed))
        world.create(spark=spark)
        world.reconcile()
        assert (world.condition("Ready")["reason"] == Reason.INVALID_SPEC) != allowed
        assert (world.application is not None) == allowed
        if not allowed:
            assert f"spec.spark.{role}.template.spec.hostNetwork: true; allowed: false" in world.status["message"]


def test_what_runs_already_goes_on_until_it_is_edited() -> None:
    """An upgrade that takes the right away stops nothing."""
    world = World(replace(SETTINGS, allow_privileged_templates=True))
    world.create(spark={"driver": {"template": {"spec": {"hostNetwork": True}}}})
    world.reconcile()
    world.settings = SETTINGS
    world.reconcile()
    assert world.condition("Ready")["reason"] != Reason.INVALID_SPEC
    world.edit("filter", {"rules": ["shop.*"]})
    world.reconcile()
    assert "hostNetwork" in world.status["message"]
