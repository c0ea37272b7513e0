"""The children of a changefeed that outlive its attempts, and the jobs of the data plane's image. Pure."""

from __future__ import annotations

from typing import Any

from changefeed_operator import api, render
from changefeed_operator.api import Json
from changefeed_operator.settings import Settings
from changefeed_operator.target import CONFIG_KEY, Target

#: Seconds that the close job has, and that it is kept for after it.
CLOSE_DEADLINE_S = 120
CLOSE_KEPT_S = 60

UID_LABEL = f"{api.GROUP}/uid"

_HOLD_EVERY_MIN = (30, 15, 10, 5, 2, 1)


def children(target: Target, settings: Settings, owner: Json, hold: bool) -> list[dict[str, Any]]:
    """Manifests of all children but the SparkApplication, each with its `applied` hash.

    `hold`: whether the CronJob that keeps the upstream's safepoint alive is one of them.
    """
    manifests = [
        _service_account(target, owner),
        _role(target, owner),
        _role_binding(target, owner),
        _config_map(target, owner),
        _service(target, owner),
        _budget(target, owner),
    ]
    if settings.network_policy:
        manifests.append(_network_policy(target, owner))
    if hold:
        manifests.append(_hold(target, settings, owner))
    return [_sealed(manifest) for manifest in manifests]


def _sealed(manifest: dict[str, Any]) -> dict[str, Any]:
    annotations = {api.APPLIED: api.digest(manifest)}
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": annotations}}


def _head(kind: api.Kind, target: Target, owner: Json) -> dict[str, Any]:
    name = target.resource.metadata.name
    return render.child(kind, api.child_name(name), name, owner)


def _service_account(target: Target, owner: Json) -> dict[str, Any]:
    return {**_head(api.SERVICE_ACCOUNT, target, owner), "automountServiceAccountToken": False}


def _role(target: Target, owner: Json) -> dict[str, Any]:
    """What a driver may: its executors, what Spark keeps beside them, and the status of this one changefeed."""
    return {
        **_head(api.ROLE, target, owner),
        "rules": [
            {
                "apiGroups": [""],
                "resources": ["pods", "configmaps"],
                "verbs": ["create", "get", "list", "watch", "update", "patch", "delete", "deletecollection"],
            },
            {
                "apiGroups": [""],
                "resources": ["services"],
                "verbs": ["get", "list", "watch", "delete", "deletecollection"],
            },
            {
                "apiGroups": [api.GROUP],
                "resources": [f"{api.PLURAL}/status"],
                "resourceNames": [target.resource.metadata.name],
                "verbs": ["patch"],
            },
        ],
    }


def _role_binding(target: Target, owner: Json) -> dict[str, Any]:
    metadata = target.resource.metadata
    name = api.child_name(metadata.name)
    return {
        **_head(api.ROLE_BINDING, target, owner),
        "roleRef": {"apiGroup": api.ROLE.group, "kind": api.ROLE.kind, "name": name},
        "subjects": [{"kind": api.SERVICE_ACCOUNT.kind, "name": name, "namespace": metadata.namespace}],
    }


def _config_map(target: Target, owner: Json) -> dict[str, Any]:
    return {**_head(api.CONFIG_MAP, target, owner), "data": {CONFIG_KEY: target.config_text}}


def _service(target: Target, owner: Json) -> dict[str, Any]:
    """Headless: the driver is one pod, and what asks it for metrics or plans wants that one."""
    ports = (("metrics", render.METRICS_PORT), ("owner", render.OWNER_PORT))
    return {
        **_head(api.SERVICE, target, owner),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {api.NAME_LABEL: target.resource.metadata.name, api.ROLE_LABEL: "driver"},
            "ports": [{"name": name, "port": port, "targetPort": port, "protocol": "TCP"} for name, port in ports],
        },
    }


def _budget(target: Target, owner: Json) -> dict[str, Any]:
    """One pod at a time may be evicted. A number: shares need a controller that the API server knows."""
    return {
        **_head(api.BUDGET, target, owner),
        "spec": {
            "minAvailable": target.resource.spec.spark.executor.instances,
            "selector": _spark_pods(target),
        },
    }


def _network_policy(target: Target, owner: Json) -> dict[str, Any]:
    """The changefeed's pods among themselves; metrics for everybody. What they reach is not narrowed down."""
    return {
        **_head(api.NETWORK_POLICY, target, owner),
        "spec": {
            "podSelector": _spark_pods(target),
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": _spark_pods(target)}]},
                {"ports": [{"port": render.METRICS_PORT, "protocol": "TCP"}]},
            ],
        },
    }


def _spark_pods(target: Target) -> dict[str, Any]:
    return {
        "matchLabels": {api.NAME_LABEL: target.resource.metadata.name},
        "matchExpressions": [{"key": api.ROLE_LABEL, "operator": "In", "values": ["driver", "executor"]}],
    }


def _hold(target: Target, settings: Settings, owner: Json) -> dict[str, Any]:
    """The CronJob that moves the safepoint's TTL on while no driver does (rule 14)."""
    name = target.resource.metadata.name
    template = _job(
        target, settings, "hold", render.config_volume(name), service_account=api.child_name(name), annotations={}
    )
    return {
        **render.child(api.CRON_JOB, api.hold_cron_job_name(name), name, owner),
        "spec": {
            "schedule": hold_schedule(target),
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": 60,
            "successfulJobsHistoryLimit": 1,
            "failedJobsHistoryLimit": 1,
            "suspend": False,
            "jobTemplate": {"metadata": {"labels": api.labels(name)}, "spec": template},
        },
    }


def hold_schedule(target: Target) -> str:
    """Three times a TTL at least, as far as minutes allow; changefeeds are spread over the interval."""
    minutes = int(target.resource.spec.upstream.safepoint_ttl // 60)
    every = next((every for every in _HOLD_EVERY_MIN if every * 3 <= minutes), 1)
    offset = int(api.digest(target.resource.metadata.uid), 16) % every
    return f"{offset}-59/{every} * * * *" if every > 1 else "* * * * *"


def close_job(target: Target, settings: Settings) -> dict[str, Any]:
    """The Job that appends `closed` and removes the safepoint, for a Changefeed that is gone.

    It is nobody's child, and needs none of the children, which go with their owner: the resource stands in an
    annotation of its pod, from where a volume makes the file; it asks the API server nothing, so it does with the
    namespace's own ServiceAccount. Secrets are the user's; without them it ends at its deadline.
    """
    metadata = target.resource.metadata
    config = target.config
    spark = {name: value for name, value in config["spec"]["spark"].items() if name == "image"}
    told = {**config, "spec": {**config["spec"], "spark": spark}}
    volume = {
        "name": "changefeed-config",
        "downwardAPI": {
            "items": [{"path": CONFIG_KEY, "fieldRef": {"fieldPath": f"metadata.annotations['{api.RESOURCE}']"}}]
        },
    }
    spec = _job(
        target,
        settings,
        "close",
        volume,
        service_account="default",
        annotations={api.RESOURCE: api.canonical(told)},
    )
    return {
        "apiVersion": api.JOB.api_version,
        "kind": api.JOB.kind,
        "metadata": {
            "name": api.close_job_name(metadata.name),
            "namespace": metadata.namespace,
            "labels": {**api.labels(metadata.name), UID_LABEL: metadata.uid},
        },
        "spec": {**spec, "ttlSecondsAfterFinished": CLOSE_KEPT_S},
    }


def _job(
    target: Target,
    settings: Settings,
    verb: str,
    config_volume: dict[str, Any],
    service_account: str,
    annotations: dict[str, str],
) -> dict[str, Any]:
    """The spec of a Job that runs `changefeed <verb>`."""
    name = target.resource.metadata.name
    container = {
        "name": verb,
        "image": render.image(target, settings),
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["changefeed", verb, *render.config_arguments()],
        "env": render.scratch_env(),
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": render.container_security(),
        "volumeMounts": [render.config_mount(), *render.secret_mounts(target), render.scratch_mount()],
    }
    pod: dict[str, Any] = {
        **_placement(target),
        **render.pod_basics(),
        "restartPolicy": "Never",
        "serviceAccountName": service_account,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 10,
        "containers": [container],
        "volumes": [config_volume, *render.secret_volumes(target), render.scratch_volume()],
    }
    if settings.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": secret} for secret in settings.image_pull_secrets]
    return {
        "backoffLimit": 2,
        "activeDeadlineSeconds": CLOSE_DEADLINE_S,
        "template": {"metadata": {"labels": api.labels(name), "annotations": annotations}, "spec": pod},
    }


def _placement(target: Target) -> dict[str, Any]:
    """Where the driver's template lets pods go; a job goes there too."""
    spec = api.mapping_at(target.resource.spec.spark.driver.template, "spec")
    return {
        name: spec[name] for name in ("nodeSelector", "tolerations", "affinity", "priorityClassName") if name in spec
    }
