"""Apache Spark's own operator, `spark.apache.org/v1`. Pure.

Nearly all that it is told of pods is Spark's configuration (apache/spark-kubernetes-operator, Spark Operator API).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from changefeed_operator import api
from changefeed_operator.api import Json
from changefeed_operator.spark_operator.contract import (
    ApplicationStage,
    ApplicationState,
    PodRole,
    SparkApi,
    SparkProgram,
)

_STAGES = {
    "": ApplicationStage.UNSEEN,
    "Submitted": ApplicationStage.NEW,
    "DriverRequested": ApplicationStage.NEW,
    "SchedulingFailure": ApplicationStage.NOT_SUBMITTED,
    "Succeeded": ApplicationStage.OVER,
    "Failed": ApplicationStage.OVER,
    "DriverEvicted": ApplicationStage.OVER,
    "DriverStartTimedOut": ApplicationStage.OVER,
    "DriverReadyTimedOut": ApplicationStage.OVER,
    "ExecutorsStartTimedOut": ApplicationStage.OVER,
    "ResourceReleased": ApplicationStage.OVER,
    "TerminatedWithoutReleaseResources": ApplicationStage.OVER,
}
#: What follows the state that tells how the application ended.
_SETTLED = ("ResourceReleased", "TerminatedWithoutReleaseResources")
#: The class that runs Python programs; spark-submit names it for others.
_RUNNER = "org.apache.spark.deploy.PythonRunner"
_IMAGE = "spark.kubernetes.container.image"
#: A week: how long pods may take to start or to drain is our operator's decision, and is made long before.
_TIMEOUTS_MS = dict.fromkeys(
    (
        "driverStartTimeoutMillis",
        "driverReadyTimeoutMillis",
        "executorStartTimeoutMillis",
        # Counted from the application's last change of state: the driver of a deleted one would get no grace at all.
        "forceTerminationGracePeriodMillis",
    ),
    7 * 24 * 3600 * 1000,
)


class ApacheApi(SparkApi):
    """Apache's, which creates the driver's pod itself, and has a finalizer on its applications."""

    name = "Apache"
    product = "Apache's Spark Kubernetes operator"
    kind = api.Kind("spark.apache.org/v1", "SparkApplication", "sparkapplications")
    roles = (("driverSpec", "podTemplateSpec"), ("executorSpec", "podTemplateSpec"))
    namespaces_value = "workloadResources.namespaces.data"

    def spec(self, program: SparkProgram) -> dict[str, Any]:
        return {
            "deploymentMode": "ClusterMode",
            "mainClass": _RUNNER,
            "pyFiles": program.file,
            "driverArgs": list(program.arguments),
            "runtimeVersions": {"sparkVersion": program.spark_version},
            "sparkConf": {**program.conf, **dict(_conf(program))},
            "driverSpec": {"podTemplateSpec": program.driver.template},
            "executorSpec": {"podTemplateSpec": program.executor.template},
            "applicationTolerations": {
                "restartConfig": {"restartPolicy": "Never"},
                # By default it deletes the driver's pod once that has ended, and how it ended with it.
                "resourceRetainPolicy": "Always",
                "applicationTimeoutConfig": dict(_TIMEOUTS_MS),
            },
        }

    def state(self, found: Json) -> ApplicationState:
        told = api.mapping_at(found, "status", "currentState")
        if api.text_at(told, "currentStateSummary") in _SETTLED:
            told = next(_unsettled(found), told)
        word = api.text_at(told, "currentStateSummary")
        stage = _STAGES.get(word, ApplicationStage.UNDER_WAY)
        said = api.text_at(told, "message")
        return ApplicationState(stage, word, said, api.mapping_at(told, "lastObservedDriverStatus"))

    def image(self, found: Json) -> str:
        return api.text_at(found, "spec", "sparkConf", _IMAGE)


def _unsettled(found: Json) -> Iterator[Json]:
    """The states before the last ones, the newest first; their keys are numbers that rise."""
    history = api.mapping_at(found, "status", "stateTransitionHistory")
    for number in sorted((key for key in history if key.isdecimal()), key=int, reverse=True):
        if api.text_at(history, number, "currentStateSummary") not in _SETTLED:
            yield api.mapping_at(history, number)


def _conf(program: SparkProgram) -> Iterator[tuple[str, str]]:
    """Spark's configuration that says what kubeflow's operator has fields for."""
    yield _IMAGE, program.image
    yield f"{_IMAGE}.pullPolicy", program.image_pull_policy
    if program.image_pull_secrets:
        yield f"{_IMAGE}.pullSecrets", ",".join(program.image_pull_secrets)
    yield "spark.kubernetes.driver.pod.name", program.driver_pod
    yield "spark.executor.instances", str(program.executors)
    yield from _pod("driver", api.DRIVER_CONTAINER, program.driver)
    yield from _pod("executor", api.EXECUTOR_CONTAINER, program.executor)


def _pod(role: str, container: str, pod: PodRole) -> Iterator[tuple[str, str]]:
    ours = f"spark.kubernetes.{role}"
    yield f"spark.{role}.cores", str(pod.cores)
    yield f"spark.{role}.memory", f"{pod.heap_mib}m"
    yield f"spark.{role}.memoryOverhead", f"{pod.overhead_mib}m"
    yield f"{ours}.request.cores", pod.core_request
    if pod.core_limit:
        yield f"{ours}.limit.cores", pod.core_limit
    yield f"spark.kubernetes.authenticate.{role}.serviceAccountName", pod.service_account
    # Otherwise Spark takes the template's first container for its own.
    yield f"{ours}.podTemplateContainerName", container
    for name, value in pod.labels.items():
        yield f"{ours}.label.{name}", value
    for name, value in pod.annotations.items():
        yield f"{ours}.annotation.{name}", value
