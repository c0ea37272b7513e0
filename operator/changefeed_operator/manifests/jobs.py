"""The Jobs that run the data plane's image: hold, while no driver runs, and close, before a deletion completes. Pure.

Their pods are based on the driver's template: they need whatever lets a driver start in the cluster (pull secrets,
certificates, a proxy, a node pool, the limits that a quota requires). The resource is in an annotation of the pod,
which a volume turns into a file: a foreground deletion removes the ConfigMap before `close` runs.
"""

from __future__ import annotations

from typing import Any, Literal

from changefeed.spec.parse import digest, given

from changefeed_operator import api
from changefeed_operator.api import Json
from changefeed_operator.manifests import pods
from changefeed_operator.settings import Settings
from changefeed_operator.target import CONFIG_KEY, Target
from changefeed_operator.template import merge

#: Deadline of a Job in seconds: a node may have to be added for it, and the image pulled.
DEADLINE_S = 900
#: Seconds that a finished Job is kept; a failed one is then replaced if it is still needed.
KEPT_S = 60

UID_LABEL = f"{api.GROUP}/uid"

Verb = Literal["hold", "close"]

_HOLD_EVERY_MIN = (30, 15, 10, 5, 2)
#: Copied from the driver's container; its resources are too, in part.
_OF_CONTAINER = ("env", "envFrom", "volumeMounts", "securityContext")
_NOT_OF_POD = ("containers", "restartPolicy", "activeDeadlineSeconds", "terminationGracePeriodSeconds")
_REQUESTS = {"cpu": "50m", "memory": "128Mi"}
_LIMITS = {"memory": "512Mi"}


def hold_cron_job(target: Target, settings: Settings, owner: Json) -> dict[str, Any]:
    """The CronJob that renews the hold on the upstream's history while no driver does (rule 14)."""
    name = target.resource.metadata.name
    template = _job(target, settings, "hold", pods.service_account(target))
    return {
        **pods.child(api.CRON_JOB, api.hold_cron_job_name(name), name, owner),
        "spec": {
            "schedule": hold_schedule(target),
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": 60,
            "successfulJobsHistoryLimit": 1,
            "failedJobsHistoryLimit": 1,
            "suspend": False,
            "jobTemplate": {"metadata": {"labels": _labels(name, "hold")}, "spec": template},
        },
    }


def hold_schedule(target: Target) -> str:
    """Schedule it at least thrice per TTL, which is ten minutes or more; changefeeds are spread over the interval."""
    minutes = int(target.resource.spec.upstream.safepoint_ttl // 60)
    every = next((every for every in _HOLD_EVERY_MIN if every * 3 <= minutes), _HOLD_EVERY_MIN[-1])
    offset = int(api.digest(target.resource.metadata.uid), 16) % every
    return f"{offset}-59/{every} * * * *"


def hold_job(target: Target, settings: Settings, owner: Json) -> dict[str, Any]:
    """A Job that renews the hold at once, for when the CronJob's next one may come too late."""
    name = target.resource.metadata.name
    head = pods.child(api.JOB, api.hold_cron_job_name(name), name, owner)
    head["metadata"]["labels"] = _labels(name, "hold")
    return {
        **head,
        "spec": {**_job(target, settings, "hold", pods.service_account(target)), "ttlSecondsAfterFinished": KEPT_S},
    }


def close_job(target: Target, settings: Settings, service_account: str) -> dict[str, Any]:
    """The Job that appends `closed` and removes the safepoint, for a Changefeed that is being deleted.

    It has no owner: a foreground deletion would remove it with the other children.
    """
    metadata = target.resource.metadata
    return {
        "apiVersion": api.JOB.api_version,
        "kind": api.JOB.kind,
        "metadata": {
            "name": api.close_job_name(metadata.name),
            "namespace": metadata.namespace,
            "labels": {**_labels(metadata.name, "close"), UID_LABEL: metadata.uid},
        },
        "spec": {**_job(target, settings, "close", service_account), "ttlSecondsAfterFinished": KEPT_S},
    }


def _labels(name: str, verb: Verb) -> dict[str, str]:
    return {**api.labels(name), api.JOB_LABEL: verb}


def _job(target: Target, settings: Settings, verb: Verb, service_account: str) -> dict[str, Any]:
    """The spec of a Job that runs `changefeed <verb>`; its container is named after the verb."""
    template = target.resource.spec.spark.driver.template
    container, told = _driver_container(template), api.canonical(_told(target))
    defaults = {
        "spec": {
            **pods.pod_basics(),
            "serviceAccountName": service_account,
            "imagePullSecrets": [{"name": secret} for secret in settings.image_pull_secrets],
            "containers": [
                {
                    "name": verb,
                    "env": pods.scratch_env(),
                    "securityContext": pods.container_security(),
                    "volumeMounts": [pods.scratch_mount()],
                }
            ],
            "volumes": [pods.scratch_volume()],
        },
    }
    of_driver = {
        "metadata": api.mapping_at(template, "metadata"),
        "spec": {
            **{field: value for field, value in api.mapping_at(template, "spec").items() if field not in _NOT_OF_POD},
            "containers": [
                {"name": verb, **{field: container[field] for field in _OF_CONTAINER if field in container}}
            ],
        },
    }
    ours = {
        "metadata": {
            "labels": _labels(target.resource.metadata.name, verb),
            "annotations": {api.RESOURCE: told},
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 10,
            "containers": [
                {
                    "name": verb,
                    "image": pods.image(target, settings),
                    "imagePullPolicy": settings.image_pull_policy,
                    "command": ["changefeed", verb, *pods.config_arguments()],
                    "env": [pods.config_env(digest(told.encode(errors="replace")))],
                    "resources": _resources(container),
                    "volumeMounts": [pods.config_mount(), *pods.secret_mounts(target)],
                }
            ],
            "volumes": [_config_volume(), *pods.secret_volumes(target)],
        },
    }
    pod = merge(merge(defaults, of_driver), ours)
    return {"backoffLimit": 2, "activeDeadlineSeconds": DEADLINE_S, "template": pod}


def _driver_container(template: Json) -> Json:
    containers = api.list_at(template, "spec", "containers")
    return next((each for each in containers if each["name"] == api.DRIVER_CONTAINER), {})


def _resources(container: Json) -> dict[str, Any]:
    """A Job's own requests, plus what a quota or a LimitRange may require, taken from the driver's container."""
    requests, limits = (api.mapping_at(container, "resources", bound) for bound in ("requests", "limits"))
    return {"requests": {**requests, **_REQUESTS}, "limits": {**_LIMITS, **limits}}


def _told(target: Target) -> dict[str, Any]:
    """The resource as the Job reads it, without `spec.spark`: annotations have a size limit."""
    resource = given(target.resource)
    spec = {name: value for name, value in resource["spec"].items() if name != "spark"}
    return {**resource, "spec": spec}


def _config_volume() -> dict[str, Any]:
    item = {"path": CONFIG_KEY, "fieldRef": {"fieldPath": f"metadata.annotations['{api.RESOURCE}']"}}
    return {"name": "changefeed-config", "downwardAPI": {"items": [item]}}
