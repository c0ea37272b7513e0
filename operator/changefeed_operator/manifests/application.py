"""The SparkApplication of an attempt, whichever the Spark operator is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from changefeed.spec.model import DriverSpec, Executor

from changefeed_operator import api
from changefeed_operator.api import Json
from changefeed_operator.manifests import pods
from changefeed_operator.settings import Settings
from changefeed_operator.spark_operator.contract import PodRole, SparkProgram
from changefeed_operator.target import Target
from changefeed_operator.template import merge

SPARK_VERSION = "4.3.0"
APPLICATION_FILE = "local:///opt/changefeed/changefeed_app.py"

_MI = 1 << 20
_SPARK_CONF = {
    # Spark 4.2 and later create a NetworkPolicy at submission, which the Spark operator's chart has no permission for.
    "spark.kubernetes.driver.pod.excludedFeatureSteps": (
        "org.apache.spark.deploy.k8s.features.NetworkPolicyFeatureStep"
    ),
    "spark.kubernetes.executor.deleteOnTermination": "true",
    # With the default, true, the driver lists volume claims, for which it has no permission.
    "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
    "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
    # The same for Services and ConfigMaps: those of the submission go with the driver's pod, and executors need none.
    "spark.kubernetes.driver.service.deleteOnTermination": "false",
    "spark.kubernetes.executor.disableConfigMap": "true",
    "spark.dynamicAllocation.enabled": "false",
    # After an executor is OOM-killed, all new ones would take a single task each: pullers would leave no slots for the
    # tasks that write files.
    "spark.kubernetes.allocation.recoveryMode.enabled": "false",
    # Spark waits for its driver's pod to be ready, which takes a probe. After the default, 1s, it logs a stack trace.
    "spark.kubernetes.allocation.driver.readinessTimeout": "10s",
    "spark.task.maxFailures": "8",
    # By default Spark ends the driver after a few executors died or were rejected, however long ago.
    "spark.executor.maxNumFailures": "2147483647",
    "spark.ui.enabled": "false",
}


def application(target: Target, settings: Settings, attempt: int, owner: Json) -> dict[str, Any]:
    """The SparkApplication of attempt `attempt`, owned by the Changefeed `owner`."""
    metadata = target.resource.metadata
    name = api.child_name(metadata.name)
    marks = {api.ATTEMPT_LABEL: str(attempt), api.SPEC_HASH_LABEL: target.hash}
    program = SparkProgram(
        spark_version=SPARK_VERSION,
        image=pods.image(target, settings),
        image_pull_policy=settings.image_pull_policy,
        image_pull_secrets=settings.image_pull_secrets,
        file=APPLICATION_FILE,
        arguments=("run", *pods.config_arguments(), "--attempt", str(attempt), "--take-over"),
        conf={**_SPARK_CONF, "spark.kubernetes.executor.podNamePrefix": f"{name}-{attempt}"},
        driver=_driver(target, marks, attempt),
        driver_pod=api.driver_pod_name(metadata.name),
        executor=_executor(target, marks),
        executors=target.resource.spec.spark.executor.instances,
    )
    manifest = pods.child(settings.spark.kind, name, metadata.name, owner)
    manifest["metadata"]["labels"].update(marks)
    made = {**manifest, "spec": settings.spark.spec(program)}
    # Covers what the spec's hash covers: the templates contain settings that the driver applies live.
    made["metadata"]["annotations"] = {api.APPLIED: api.digest(settings.spark.outline(made))}
    return made


def _driver(target: Target, marks: Mapping[str, str], attempt: int) -> PodRole:
    metadata, driver = target.resource.metadata, target.resource.spec.spark.driver
    env = [
        {"name": "CHANGEFEED_NAMESPACE", "value": metadata.namespace},
        {"name": "CHANGEFEED_NAME", "value": metadata.name},
        {"name": "CHANGEFEED_UID", "value": metadata.uid},
        {"name": "CHANGEFEED_ATTEMPT", "value": str(attempt)},
        pods.config_env(target.config_digest),
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        # The owner of the Secret that the driver creates for its executors.
        {"name": "CHANGEFEED_POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "CHANGEFEED_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
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
                        {"name": "metrics", "containerPort": pods.METRICS_PORT, "protocol": "TCP"},
                        {"name": "owner", "containerPort": pods.OWNER_PORT, "protocol": "TCP"},
                    ],
                    "volumeMounts": [pods.config_mount(), *pods.secret_mounts(target)],
                }
            ],
            "volumes": [pods.config_volume(target), *pods.secret_volumes(target)],
        }
    }
    heap = _heap_mib(driver.memory, 4)
    return _pod(driver, api.DRIVER_CONTAINER, heap, ours, marks, target, _probes())


def _executor(target: Target, marks: Mapping[str, str]) -> PodRole:
    executor = target.resource.spec.spark.executor
    ours = {
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [{"name": api.EXECUTOR_CONTAINER, "volumeMounts": pods.secret_mounts(target)}],
            "volumes": pods.secret_volumes(target),
        }
    }
    heap = _heap_mib(executor.memory, 6)
    return _pod(executor, api.EXECUTOR_CONTAINER, heap, ours, marks, target)


def _probes() -> dict[str, Any]:
    """A hung driver is killed by the kubelet, and the next attempt follows: `restartPolicy` is Never.

    It has five minutes to start; after that, 40 s without a response kill it, with the pod's whole grace period. The
    kubelet honours a probe's own grace period only where it restarts the container. The start is probed every second,
    because Spark waits for the driver's pod to become ready.
    """
    probe = {"httpGet": {"path": "/healthz", "port": pods.METRICS_PORT}, "timeoutSeconds": 5}
    return {
        "startupProbe": {**probe, "periodSeconds": 1, "failureThreshold": 300},
        "livenessProbe": {**probe, "periodSeconds": 10, "failureThreshold": 4},
    }


def _pod(
    role: DriverSpec | Executor,
    container: str,
    heap_mib: int,
    ours: Json,
    marks: Mapping[str, str],
    target: Target,
    probes: Json | None = None,
) -> PodRole:
    """Return what driver and executor pods have in common. The container's memory limit is the spec's memory."""
    defaults = {
        "spec": {
            **pods.pod_basics(),
            "tolerations": pods.lost_node_tolerations(),
            "containers": [
                {
                    "name": container,
                    "env": pods.scratch_env(),
                    "securityContext": pods.container_security(),
                    "volumeMounts": [pods.scratch_mount()],
                    **(probes or {}),
                }
            ],
            "volumes": [pods.scratch_volume()],
        },
    }
    request, limit = _cpu(role, container)
    return PodRole(
        cores=role.cores,
        heap_mib=heap_mib,
        overhead_mib=role.memory // _MI - heap_mib,
        core_request=request,
        core_limit=limit,
        service_account=pods.service_account(target),
        labels={**api.labels(target.resource.metadata.name), **marks},
        # Otherwise Argo CD shows a running pod with restartPolicy Never as progressing.
        annotations={"argocd.argoproj.io/ignore-restart-policy": "true"},
        template=merge(merge(defaults, role.template), ours),
    )


def _heap_mib(memory: int, share: int) -> int:
    """The JVM's share: it moves no rows; Python and Arrow need the most. Spark refuses less than about 450 MiB."""
    return min(max(memory // _MI // share, 512), 4096)


def _cpu(role: DriverSpec | Executor, container: str) -> tuple[str, str]:
    """CPU request and limit, "" for none: Spark's values override the template's, so those are passed on here."""
    containers = api.list_at(role.template, "spec", "containers")
    resources: Json = next((api.mapping_at(each, "resources") for each in containers if each["name"] == container), {})
    return _quantity(resources, "requests") or str(role.cores), _quantity(resources, "limits")


def _quantity(resources: Json, bound: str) -> str:
    value = api.mapping_at(resources, bound).get("cpu")
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
