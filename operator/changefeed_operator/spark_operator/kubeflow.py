"""Kubeflow's Spark operator, `sparkoperator.k8s.io/v1beta2`. Pure.

Pod settings are in the templates, so that its webhook isn't needed.
"""

from __future__ import annotations

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
    "SUBMITTED": ApplicationStage.NEW,
    "SUBMISSION_FAILED": ApplicationStage.NOT_SUBMITTED,
    "FAILED": ApplicationStage.OVER,
    "COMPLETED": ApplicationStage.OVER,
}


class KubeflowApi(SparkApi):
    """Kubeflow's, which runs spark-submit for each application."""

    name = "Kubeflow"
    product = "kubeflow's Spark operator"
    kind = api.Kind("sparkoperator.k8s.io/v1beta2", "SparkApplication", "sparkapplications")
    roles = (("driver", "template"), ("executor", "template"))
    namespaces_value = "spark.jobNamespaces"

    def spec(self, program: SparkProgram) -> dict[str, Any]:
        spec: dict[str, Any] = {
            "type": "Python",
            "pythonVersion": "3",
            "mode": "cluster",
            "sparkVersion": program.spark_version,
            "image": program.image,
            "imagePullPolicy": program.image_pull_policy,
            "mainApplicationFile": program.file,
            "arguments": list(program.arguments),
            "restartPolicy": {"type": "Never"},
            "sparkConf": dict(program.conf),
            # The driver's pod has the name of the application with "-driver" behind it.
            "driver": _pod(program.driver),
            "executor": {"instances": program.executors, **_pod(program.executor)},
        }
        if program.image_pull_secrets:
            spec["imagePullSecrets"] = list(program.image_pull_secrets)
        return spec

    def state(self, found: Json) -> ApplicationState:
        word = api.text_at(found, "status", "applicationState", "state")
        stage = _STAGES.get(word, ApplicationStage.UNDER_WAY)
        if word == "FAILED" and not api.whole_at(found, "status", "executionAttempts"):
            stage = ApplicationStage.NOT_SUBMITTED
        return ApplicationState(stage, word, api.text_at(found, "status", "applicationState", "errorMessage"))

    def image(self, found: Json) -> str:
        return api.text_at(found, "spec", "image")


def _pod(role: PodRole) -> dict[str, Any]:
    limit = {"coreLimit": role.core_limit} if role.core_limit else {}
    return {
        "cores": role.cores,
        "memory": f"{role.heap_mib}m",
        "memoryOverhead": f"{role.overhead_mib}m",
        "serviceAccount": role.service_account,
        "labels": dict(role.labels),
        "annotations": dict(role.annotations),
        "template": role.template,
        "coreRequest": role.core_request,
        **limit,
    }
