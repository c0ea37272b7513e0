"""The SparkApplication of an attempt, and what its pods have in common with the hold and close jobs. Pure.

Every field that Spark's operator would default is written, pod settings stand in the templates: its webhook isn't
needed (facts/kubernetes.md 1.1, 1.7). Pods are what the restricted Pod Security Standard wants. Secrets appear by name
only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from changefeed.spec.model import Driver, Executor

from changefeed_operator import api
from changefeed_operator.api import Json
from changefeed_operator.settings import Settings
from changefeed_operator.target import Target
from changefeed_operator.template import merge

SPARK_VERSION = "4.3.0"
APPLICATION_FILE = "local:///opt/changefeed/changefeed_app.py"
CONFIG_DIR = "/etc/changefeed"
CONFIG_FILE = f"{CONFIG_DIR}/changefeed.yaml"
SECRETS_DIR = f"{CONFIG_DIR}/secrets"
METRICS_PORT = 9464
OWNER_PORT = 7400
USER_ID = 185  # of the data plane's image, as in Spark's own

_MI = 1 << 20
_SPARK_CONF = {
    # Spark 4.2 and later create a NetworkPolicy at submission, which the Spark operator's chart has no right to
    # (facts/test-cluster.md).
    "spark.kubernetes.driver.pod.excludedFeatureSteps": (
        "org.apache.spark.deploy.k8s.features.NetworkPolicyFeatureStep"
    ),
    "spark.kubernetes.executor.deleteOnTermination": "true",
    # Both true, as they are by default, make the driver ask for volume claims, to which it has no right.
    "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
    "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
    "spark.dynamicAllocation.enabled": "false",
    "spark.task.maxFailures": "8",
    "spark.ui.enabled": "false",
}


def application(target: Target, settings: Settings, attempt: int, owner: Json) -> dict[str, Any]:
    """The SparkApplication (v1beta2) of attempt `attempt`, owned by the Changefeed `owner`."""
    metadata = target.resource.metadata
    name = api.child_name(metadata.name)
    marks = {api.ATTEMPT_LABEL: str(attempt), api.SPEC_HASH_LABEL: target.hash}
    conf = {**_SPARK_CONF, "spark.kubernetes.executor.podNamePrefix": f"{name}-{attempt}"}
    spec: dict[str, Any] = {
        "type": "Python",
        "pythonVersion": "3",
        "mode": "cluster",
        "sparkVersion": SPARK_VERSION,
        "image": image(target, settings),
        "imagePullPolicy": settings.image_pull_policy,
        "mainApplicationFile": APPLICATION_FILE,
        "arguments": ["run", *config_arguments(), "--attempt", str(attempt), "--take-over"],
        "restartPolicy": {"type": "Never"},
        "sparkConf": conf,
        "driver": _driver(target, marks, attempt),
        "executor": _executor(target, marks),
    }
    if settings.image_pull_secrets:
        spec["imagePullSecrets"] = list(settings.image_pull_secrets)
    manifest = child(api.APPLICATION, name, metadata.name, owner)
    manifest["metadata"]["labels"].update(marks)
    return {**manifest, "spec": spec}


def _driver(target: Target, marks: Mapping[str, str], attempt: int) -> dict[str, Any]:
    metadata, driver = target.resource.metadata, target.resource.spec.spark.driver
    env = [
        {"name": "CHANGEFEED_NAMESPACE", "value": metadata.namespace},
        {"name": "CHANGEFEED_NAME", "value": metadata.name},
        {"name": "CHANGEFEED_UID", "value": metadata.uid},
        {"name": "CHANGEFEED_ATTEMPT", "value": str(attempt)},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    ours = {
        "spec": {
            "terminationGracePeriodSeconds": target.drain_s,
            "automountServiceAccountToken": True,
            "containers": [
                {
                    "name": api.DRIVER_CONTAINER,
                    "env": env,
                    "ports": [
                        {"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"},
                        {"name": "owner", "containerPort": OWNER_PORT, "protocol": "TCP"},
                    ],
                    "volumeMounts": [config_mount(), *secret_mounts(target)],
                }
            ],
            "volumes": [config_volume(metadata.name), *secret_volumes(target)],
        }
    }
    heap = _heap_mib(driver.memory, 4)
    return {
        **_pod(driver, api.DRIVER_CONTAINER, heap, ours, marks, metadata.name),
        **_cpu(driver, api.DRIVER_CONTAINER),
    }


def _executor(target: Target, marks: Mapping[str, str]) -> dict[str, Any]:
    metadata, executor = target.resource.metadata, target.resource.spec.spark.executor
    ours = {
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [{"name": api.EXECUTOR_CONTAINER, "volumeMounts": secret_mounts(target)}],
            "volumes": secret_volumes(target),
        }
    }
    heap = _heap_mib(executor.memory, 6)
    pod = _pod(executor, api.EXECUTOR_CONTAINER, heap, ours, marks, metadata.name)
    return {"instances": executor.instances, **pod, **_cpu(executor, api.EXECUTOR_CONTAINER)}


def _pod(
    role: Driver | Executor, container: str, heap_mib: int, ours: Json, marks: Mapping[str, str], name: str
) -> dict[str, Any]:
    """What the application's two kinds of pod have in common. The container's limit is the spec's memory."""
    defaults = {
        "spec": {
            **pod_basics(),
            "containers": [
                {
                    "name": container,
                    "env": scratch_env(),
                    "securityContext": container_security(),
                    "volumeMounts": [scratch_mount()],
                }
            ],
            "volumes": [scratch_volume()],
        },
    }
    return {
        "cores": role.cores,
        "memory": f"{heap_mib}m",
        "memoryOverhead": f"{role.memory // _MI - heap_mib}m",
        "serviceAccount": api.child_name(name),
        "labels": {**api.labels(name), **marks},
        # Else Argo CD takes a running pod that is never restarted for one that is still on its way.
        "annotations": {"argocd.argoproj.io/ignore-restart-policy": "true"},
        "template": merge(merge(defaults, role.template), ours),
    }


def _heap_mib(memory: int, share: int) -> int:
    """The JVM's part: it moves no rows, Python and Arrow need the most. Spark refuses less than about 450 MiB."""
    return min(max(memory // _MI // share, 512), 4096)


def _cpu(role: Driver | Executor, container: str) -> dict[str, Any]:
    """`coreRequest` and `coreLimit`: Spark sets them over the template's, so theirs are handed on."""
    containers = api.list_at(role.template, "spec", "containers")
    resources: Json = next((api.mapping_at(each, "resources") for each in containers if each["name"] == container), {})
    cpu = {"coreRequest": _quantity(resources, "requests") or str(role.cores)}
    limit = _quantity(resources, "limits")
    return {**cpu, "coreLimit": limit} if limit else cpu


def _quantity(resources: Json, bound: str) -> str:
    value = api.mapping_at(resources, bound).get("cpu")
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""


def child(kind: api.Kind, name: str, changefeed: str, owner: Json) -> dict[str, Any]:
    """The head of a child's manifest."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": name,
            "namespace": api.text_at(owner, "metadata", "namespace"),
            "labels": api.labels(changefeed),
            "ownerReferences": [
                {
                    "apiVersion": api.API_VERSION,
                    "kind": api.CHANGEFEED.kind,
                    "name": changefeed,
                    "uid": api.uid_of(owner),
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
    }


def image(target: Target, settings: Settings) -> str:
    return target.resource.spec.spark.image or settings.image


def config_arguments() -> list[str]:
    return ["-f", CONFIG_FILE, "--secrets-dir", SECRETS_DIR]


def config_mount() -> dict[str, Any]:
    return {"name": "changefeed-config", "mountPath": CONFIG_DIR, "readOnly": True}


def config_volume(changefeed: str) -> dict[str, Any]:
    return {"name": "changefeed-config", "configMap": {"name": api.child_name(changefeed)}}


def secret_mounts(target: Target) -> list[dict[str, Any]]:
    return [
        {"name": f"changefeed-secret-{n}", "mountPath": f"{SECRETS_DIR}/{name}", "readOnly": True}
        for n, name in enumerate(target.secrets)
    ]


def secret_volumes(target: Target) -> list[dict[str, Any]]:
    return [
        {"name": f"changefeed-secret-{n}", "secret": {"secretName": name, "defaultMode": 0o440}}
        for n, name in enumerate(target.secrets)
    ]


def scratch_mount() -> dict[str, Any]:
    return {"name": "changefeed-tmp", "mountPath": "/tmp"}


def scratch_volume() -> dict[str, Any]:
    return {"name": "changefeed-tmp", "emptyDir": {}}


def scratch_env() -> list[dict[str, str]]:
    """The root file system is read-only."""
    return [{"name": "HOME", "value": "/tmp"}, {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}]


def pod_basics() -> dict[str, Any]:
    """Of every pod of a changefeed."""
    return {
        # Else a Service named changefeed-… would set variables that look like our own.
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def container_security() -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
