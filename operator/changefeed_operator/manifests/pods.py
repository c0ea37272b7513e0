"""What all pods of a changefeed have in common, and the metadata of its children. Pure.

Pods comply with the restricted Pod Security Standard. Secrets appear by name only.
"""

from __future__ import annotations

from typing import Any

from changefeed_operator import api
from changefeed_operator.api import Json
from changefeed_operator.settings import Settings
from changefeed_operator.target import Target

CONFIG_DIR = "/etc/changefeed"
CONFIG_FILE = f"{CONFIG_DIR}/changefeed.yaml"
SECRETS_DIR = f"{CONFIG_DIR}/secrets"
METRICS_PORT = 9464
OWNER_PORT = 7400
#: Seconds that a pod stays on an unresponsive node, once Kubernetes has noticed.
LOST_NODE_S = 30
#: How much a pod may write to /tmp before the kubelet evicts it, so that it can't fill its node's disk.
SCRATCH = "8Gi"


def own_child(kind: api.Kind, target: Target, owner: Json) -> dict[str, Any]:
    """The metadata of a child named after the changefeed."""
    name = target.resource.metadata.name
    return child(kind, api.child_name(name), name, owner)


def spark_pods(target: Target) -> dict[str, Any]:
    """Selects the driver and its executors."""
    return {
        "matchLabels": {api.NAME_LABEL: target.resource.metadata.name},
        "matchExpressions": [{"key": api.ROLE_LABEL, "operator": "In", "values": ["driver", "executor"]}],
    }


def child(kind: api.Kind, name: str, changefeed: str, owner: Json) -> dict[str, Any]:
    """The metadata of a child."""
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


def sealed(manifest: dict[str, Any]) -> dict[str, Any]:
    """Adds the manifest's hash: it differs for objects made from another spec, or by another operator version."""
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), api.APPLIED: api.digest(manifest)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def image(target: Target, settings: Settings) -> str:
    return target.resource.spec.spark.image or settings.image


def service_account(target: Target) -> str:
    """The account that the changefeed's pods run as."""
    return target.resource.spec.spark.service_account.name or api.child_name(target.resource.metadata.name)


def config_arguments() -> list[str]:
    return ["-f", CONFIG_FILE, "--secrets-dir", SECRETS_DIR]


def config_mount() -> dict[str, Any]:
    return {"name": "changefeed-config", "mountPath": CONFIG_DIR, "readOnly": True}


def config_volume(target: Target) -> dict[str, Any]:
    return {"name": "changefeed-config", "configMap": {"name": target.config_map_name}}


def config_env(digest: str) -> dict[str, str]:
    """Tells the pod which file to expect; older images don't check."""
    return {"name": "CHANGEFEED_CONFIG_DIGEST", "value": digest}


def secret_mounts(target: Target) -> list[dict[str, Any]]:
    return [
        {"name": f"changefeed-secret-{n}", "mountPath": f"{SECRETS_DIR}/{name}", "readOnly": True}
        for n, name in enumerate(target.secrets)
    ]


def secret_volumes(target: Target) -> list[dict[str, Any]]:
    return [
        {"name": f"changefeed-secret-{n}", "secret": {"secretName": name, "defaultMode": 0o444}}
        for n, name in enumerate(target.secrets)
    ]


def scratch_mount() -> dict[str, Any]:
    return {"name": "changefeed-tmp", "mountPath": "/tmp"}


def scratch_volume() -> dict[str, Any]:
    return {"name": "changefeed-tmp", "emptyDir": {"sizeLimit": SCRATCH}}


def lost_node_tolerations() -> list[dict[str, Any]]:
    """Leave an unresponsive node after half a minute instead of Kubernetes' five: the log fences whatever still runs
    there (rule 6)."""
    lost = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_NODE_S}
    return [{"key": f"node.kubernetes.io/{taint}", **lost} for taint in ("not-ready", "unreachable")]


def scratch_env() -> list[dict[str, str]]:
    """The root file system is read-only."""
    return [{"name": "HOME", "value": "/tmp"}, {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}]


def pod_basics() -> dict[str, Any]:
    """Return what every pod of a changefeed has."""
    return {
        # Otherwise a Service named changefeed-… would set variables that look like ours.
        "enableServiceLinks": False,
        "securityContext": {
            # No uid and no group: the image has its own, and OpenShift gives each namespace others.
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def container_security() -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
