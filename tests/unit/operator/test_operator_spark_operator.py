"""Both Spark operators say the same: what their applications ask for, and what is read off their status."""

from __future__ import annotations

from typing import Any

import pytest
from changefeed_operator import api
from changefeed_operator.spark_operator.choice import APACHE, KNOWN, KUBEFLOW, OperatorName, candidates, missing
from changefeed_operator.spark_operator.contract import ApplicationStage, PodRole, SparkApi, SparkProgram
from spark_applications import asked, told

UNSEEN, NEW, NOT_SUBMITTED, UNDER_WAY, OVER = ApplicationStage
CONTAINERS = [{"name": "sidecar"}, {"name": api.DRIVER_CONTAINER, "resources": {}}]


def _role(name: str, limit: str = "") -> PodRole:
    return PodRole(
        cores=2,
        heap_mib=512,
        overhead_mib=1536,
        core_request="250m",
        core_limit=limit,
        service_account=f"account-of-{name}",
        labels={"changefeed.dev/attempt": "7", "app": name},
        annotations={"argocd.argoproj.io/ignore-restart-policy": "true"},
        template={"spec": {"containers": CONTAINERS, "priorityClassName": name}},
    )


PROGRAM = SparkProgram(
    spark_version="4.3.0",
    image="changefeed-spark:1",
    image_pull_policy="Always",
    image_pull_secrets=("one", "two"),
    file="local:///opt/app.py",
    arguments=("run", "--attempt", "7"),
    conf={"spark.ui.enabled": "false", "spark.kubernetes.executor.podNamePrefix": "changefeed-orders-7"},
    driver=_role("driver", "2"),
    driver_pod="changefeed-orders-driver",
    executor=_role("executor"),
    executors=3,
)


def _manifest(spark: SparkApi, **status: Any) -> dict[str, Any]:
    head = {"apiVersion": spark.kind.api_version, "kind": spark.kind.kind, "metadata": {"name": "changefeed-orders"}}
    return {**head, "spec": spark.spec(PROGRAM), "status": status}


@pytest.mark.parametrize("spark", KNOWN, ids=lambda spark: spark.name)
def test_either_is_asked_for_the_same_pods(spark: SparkApi) -> None:
    wanted = asked(_manifest(spark))
    assert (wanted.executors, wanted.executor_prefix) == (3, "changefeed-orders-7")
    for role, pod in (("driver", wanted.driver), ("executor", wanted.executor)):
        assert pod.labels == {"changefeed.dev/attempt": "7", "app": role}
        assert pod.template == {"spec": {"containers": CONTAINERS, "priorityClassName": role}}
    assert spark.driver_template(_manifest(spark)) == wanted.driver.template
    assert spark.image(_manifest(spark)) == "changefeed-spark:1"


def test_apaches_has_in_its_configuration_what_kubeflows_has_in_fields() -> None:
    spec = APACHE.spec(PROGRAM)
    assert spec["sparkConf"] == {
        "spark.ui.enabled": "false",
        "spark.kubernetes.executor.podNamePrefix": "changefeed-orders-7",
        "spark.kubernetes.container.image": "changefeed-spark:1",
        "spark.kubernetes.container.image.pullPolicy": "Always",
        "spark.kubernetes.container.image.pullSecrets": "one,two",
        "spark.kubernetes.driver.pod.name": "changefeed-orders-driver",
        "spark.executor.instances": "3",
        "spark.driver.cores": "2",
        "spark.driver.memory": "512m",
        "spark.driver.memoryOverhead": "1536m",
        "spark.kubernetes.driver.request.cores": "250m",
        "spark.kubernetes.driver.limit.cores": "2",
        "spark.kubernetes.authenticate.driver.serviceAccountName": "account-of-driver",
        "spark.kubernetes.driver.podTemplateContainerName": "spark-kubernetes-driver",
        "spark.kubernetes.driver.label.changefeed.dev/attempt": "7",
        "spark.kubernetes.driver.label.app": "driver",
        "spark.kubernetes.driver.annotation.argocd.argoproj.io/ignore-restart-policy": "true",
        "spark.executor.cores": "2",
        "spark.executor.memory": "512m",
        "spark.executor.memoryOverhead": "1536m",
        "spark.kubernetes.executor.request.cores": "250m",
        "spark.kubernetes.authenticate.executor.serviceAccountName": "account-of-executor",
        "spark.kubernetes.executor.podTemplateContainerName": "spark-kubernetes-executor",
        "spark.kubernetes.executor.label.changefeed.dev/attempt": "7",
        "spark.kubernetes.executor.label.app": "executor",
        "spark.kubernetes.executor.annotation.argocd.argoproj.io/ignore-restart-policy": "true",
    }


def test_neither_restarts_an_application_and_apaches_leaves_a_driver_that_has_ended() -> None:
    assert KUBEFLOW.spec(PROGRAM)["restartPolicy"] == {"type": "Never"}
    tolerations = APACHE.spec(PROGRAM)["applicationTolerations"]
    assert tolerations["restartConfig"] == {"restartPolicy": "Never"}
    assert tolerations["resourceRetainPolicy"] == "Always"


@pytest.mark.parametrize("spark", KNOWN, ids=lambda spark: spark.name)
def test_an_outline_has_all_but_the_pod_templates(spark: SparkApi) -> None:
    manifest = _manifest(spark)
    outline = spark.outline(manifest)
    assert "containers" not in str(outline)
    assert spark.outline(outline) == outline
    kept = {name: value for name, value in outline["spec"].items() if name not in dict(spark.roles)}
    assert kept == {name: manifest["spec"][name] for name in kept}
    assert len(kept) == len(manifest["spec"]) - 2


def _kubeflow(state: str, **more: Any) -> dict[str, Any]:
    return {"status": {"applicationState": {"state": state, "errorMessage": "why"}, **more}}


@pytest.mark.parametrize(
    ("found", "stage", "word"),
    [
        ({}, UNSEEN, ""),
        ({"status": None}, UNSEEN, ""),
        ({"status": {"applicationState": "odd"}}, UNSEEN, ""),
        (_kubeflow(""), UNSEEN, ""),
        (_kubeflow("SUBMITTED"), NEW, "SUBMITTED"),
        (_kubeflow("RUNNING"), UNDER_WAY, "RUNNING"),
        (_kubeflow("PENDING_RERUN"), UNDER_WAY, "PENDING_RERUN"),
        (_kubeflow("INVALIDATING"), UNDER_WAY, "INVALIDATING"),
        (_kubeflow("SUBMISSION_FAILED"), NOT_SUBMITTED, "SUBMISSION_FAILED"),
        (_kubeflow("FAILED"), NOT_SUBMITTED, "FAILED"),
        (_kubeflow("FAILED", executionAttempts=1), OVER, "FAILED"),
        (_kubeflow("COMPLETED", executionAttempts=1), OVER, "COMPLETED"),
    ],
)
def test_what_kubeflows_says(found: dict[str, Any], stage: ApplicationStage, word: str) -> None:
    state = KUBEFLOW.state(found)
    assert (state.stage, state.word) == (stage, word)
    assert state.said == ("why" if "errorMessage" in str(found) else "")
    assert state.driver_status == {}


STAGES = {
    "Submitted": NEW,
    "DriverRequested": NEW,
    "ScheduledToRestart": UNDER_WAY,
    "DriverStarted": UNDER_WAY,
    "DriverReady": UNDER_WAY,
    "InitializedBelowThresholdExecutors": UNDER_WAY,
    "RunningHealthy": UNDER_WAY,
    "RunningWithPartialCapacity": UNDER_WAY,
    "RunningWithBelowThresholdExecutors": UNDER_WAY,
    "SomethingNew": UNDER_WAY,
    "SchedulingFailure": NOT_SUBMITTED,
    "Succeeded": OVER,
    "Failed": OVER,
    "DriverEvicted": OVER,
    "DriverStartTimedOut": OVER,
    "DriverReadyTimedOut": OVER,
    "ExecutorsStartTimedOut": OVER,
}


@pytest.mark.parametrize("word", STAGES)
def test_what_apaches_says(word: str) -> None:
    state = APACHE.state({"status": {"currentState": {"currentStateSummary": word, "message": "why"}}})
    assert (state.stage, state.word, state.said) == (STAGES[word], word, "why")


@pytest.mark.parametrize("word", ["Succeeded", "Failed", "SchedulingFailure", "DriverEvicted"])
def test_what_apaches_said_before_it_settled_an_application_counts(word: str) -> None:
    last = {"phase": "Failed", "containerStatuses": []}
    status = told(_manifest(APACHE), "RunningHealthy")
    status = told(_manifest(APACHE, **status), word, "why", last)
    assert status["currentState"]["currentStateSummary"] == "TerminatedWithoutReleaseResources"
    state = APACHE.state({"status": status})
    assert (state.stage, state.word, state.said) == (STAGES[word], word, "why")
    assert state.driver_status == last


def test_the_newest_of_more_than_ten_states_is_found() -> None:
    """Their numbers are the keys of a mapping, which the API server sorts as text."""
    states = {str(number): {"currentStateSummary": "RunningHealthy"} for number in range(10)}
    states |= {"10": {"currentStateSummary": "Failed", "message": "why"}}
    settled = {"currentStateSummary": "ResourceReleased"}
    status = {"currentState": settled, "stateTransitionHistory": dict(sorted({**states, "11": settled}.items()))}
    assert APACHE.state({"status": status}).said == "why"


@pytest.mark.parametrize(
    "status", [{}, {"currentState": []}, {"currentState": {"currentStateSummary": 3}}, {"stateTransitionHistory": {}}]
)
def test_an_application_that_apaches_has_not_seen(status: dict[str, Any]) -> None:
    assert APACHE.state({"status": status}).stage is UNSEEN


def test_an_application_that_was_settled_without_a_history_is_over() -> None:
    found = {
        "status": {"currentState": {"currentStateSummary": "ResourceReleased"}, "stateTransitionHistory": {"x": 1}}
    }
    assert APACHE.state(found).stage is OVER


@pytest.mark.parametrize(
    ("name", "chosen", "said"),
    [
        ("Auto", (KUBEFLOW, APACHE), ("sparkapplications.sparkoperator.k8s.io", "sparkapplications.spark.apache.org")),
        ("Kubeflow", (KUBEFLOW,), ("sparkapplications.sparkoperator.k8s.io", "spark.operator")),
        ("Apache", (APACHE,), ("sparkapplications.spark.apache.org", "spark.operator")),
    ],
)
def test_the_setting_names_which_may_be_used_and_what_is_missing(
    name: OperatorName, chosen: tuple[SparkApi, ...], said: tuple[str, ...]
) -> None:
    assert tuple(candidates(name)) == chosen
    assert all(text in missing(candidates(name)) for text in (*said, *(each.product for each in chosen)))
