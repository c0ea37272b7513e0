"""What a SparkApplication asks of its Spark operator, and the words that come back: for tests that play that part.

Nothing here is the product's. Apache's words are those of apache/spark-kubernetes-operator (ApplicationStateSummary).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KUBEFLOW = "sparkoperator.k8s.io/v1beta2"
APACHE = "spark.apache.org/v1"
#: In this order by both; Apache's settles an ended application, and keeps how it ended in the history.
_WORDS = {
    "submitted": {KUBEFLOW: "SUBMITTED", APACHE: "DriverRequested"},
    "running": {KUBEFLOW: "RUNNING", APACHE: "RunningHealthy"},
    "completed": {KUBEFLOW: "COMPLETED", APACHE: "Succeeded"},
    "failed": {KUBEFLOW: "FAILED", APACHE: "Failed"},
}
_ENDS = ("Succeeded", "Failed", "SchedulingFailure", "DriverEvicted", "DriverStartTimedOut", "DriverReadyTimedOut")
Json = dict[str, Any]


@dataclass(frozen=True)
class AskedPod:
    """A pod that an application asks for. `template`: with a `spec`."""

    labels: Mapping[str, str]
    template: Json


@dataclass(frozen=True)
class AskedApplication:
    """`executor_prefix`: of the names of executors' pods."""

    driver: AskedPod
    executor: AskedPod
    executors: int
    executor_prefix: str


def asked(application: Json) -> AskedApplication:
    """Read a SparkApplication as its Spark operator does."""
    spec = application["spec"]
    conf = spec["sparkConf"]
    prefix = conf["spark.kubernetes.executor.podNamePrefix"]
    if application["apiVersion"] == KUBEFLOW:
        driver, executor = (AskedPod(spec[role]["labels"], spec[role]["template"]) for role in ("driver", "executor"))
        return AskedApplication(driver, executor, spec["executor"]["instances"], prefix)
    name = f"{application['metadata']['name']}-driver"
    assert conf["spark.kubernetes.driver.pod.name"] == name, "kubeflow's operator has no other name for it"
    driver, executor = (
        AskedPod(_labels(conf, role), spec[f"{role}Spec"]["podTemplateSpec"]) for role in ("driver", "executor")
    )
    return AskedApplication(driver, executor, int(conf["spark.executor.instances"]), prefix)


def _labels(conf: Mapping[str, str], role: str) -> dict[str, str]:
    start = f"spark.kubernetes.{role}.label."
    return {name.removeprefix(start): value for name, value in conf.items() if name.startswith(start)}


def word(application: Json, stage: str) -> str:
    """What its Spark operator calls a stage: submitted, running, completed or failed."""
    return _WORDS[stage][application["apiVersion"]]


def told(application: Json, state: str, message: str = "", driver_status: Json | None = None) -> Json:
    """Its status once its Spark operator has said `state`. `driver_status`: of the driver's pod, as last seen."""
    before = application.get("status", {})
    if application["apiVersion"] == KUBEFLOW:
        attempts = {"executionAttempts": 1} if state in ("SUBMITTED", "RUNNING") else {}
        return {**before, **attempts, "applicationState": {"state": state, "errorMessage": message}}
    history: Json = dict(before.get("stateTransitionHistory", {"0": {"currentStateSummary": "Submitted"}}))
    last = {"lastObservedDriverStatus": driver_status} if driver_status else {}
    history[str(len(history))] = {"currentStateSummary": state, "message": message, **last}
    if state in _ENDS:
        history[str(len(history))] = {"currentStateSummary": "TerminatedWithoutReleaseResources", "message": "Kept."}
    return {"currentState": history[str(len(history) - 1)], "stateTransitionHistory": history}
