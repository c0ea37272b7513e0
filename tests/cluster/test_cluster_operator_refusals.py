"""What the API server refuses is named in the status within a minute, whoever asked: spark-submit, or the operator.

Real API server with its quota, LimitRange, Pod Security and policy admission; real Spark operator and spark-submit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_api import CORE, Namespace
from cluster_changefeed_operator import ForkedOperator
from cluster_control_plane import ControlPlane
from cluster_feeds import Feeds
from cluster_forks import Forks
from cluster_history import History
from cluster_spark_operator import SparkOperator

pytestmark = pytest.mark.timeout(1200)
_ADMISSION = "admissionregistration.k8s.io/v1"
_SUBMIT_S = 600.0  # JVMs that start at the same moment

#: What a namespace has, and what the status must say of the driver's pod.
RULES: dict[str, tuple[dict[str, Any], str]] = {
    "quota": ({"kind": "ResourceQuota", "spec": {"hard": {"pods": "0"}}}, "exceeded quota: rule"),
    "range": (
        {"kind": "LimitRange", "spec": {"limits": [{"type": "Container", "max": {"memory": "256Mi"}}]}},
        "maximum memory usage per Container is 256Mi",
    ),
    "security": ({}, 'violates PodSecurity "restricted:latest"'),
    "policy": ({}, "every pod names who pays for it"),
}


@pytest.fixture(scope="module")
def namespaces(cluster: ControlPlane) -> Iterator[dict[str, Namespace]]:
    made = {name: cluster.create_namespace(f"refusals-{name}") for name in RULES}
    for name, (rule, _) in RULES.items():
        if rule:
            plural = f"{rule['kind'].lower()}s"
            made[name].api.create(made[name].core(plural), {"metadata": {"name": "rule"}, **rule})
    enforced = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    cluster.api.merge(f"{CORE}/namespaces/refusals-security", enforced)
    _add_policy(cluster)
    yield made
    for namespace in made.values():
        cluster.api.delete(f"{CORE}/namespaces/{namespace.name}")


def _add_policy(cluster: ControlPlane) -> None:
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    validation = {"expression": "'payer' in object.metadata.labels", "message": "every pod names who pays for it"}
    policy = {"matchConstraints": {"resourceRules": [pods]}, "validations": [validation]}
    where = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "refusals-policy"}}}
    binding = {"policyName": "payer", "validationActions": ["Deny"], "matchResources": where}
    for kind, spec in (("validatingadmissionpolicies", policy), ("validatingadmissionpolicybindings", binding)):
        cluster.api.create(f"/apis/{_ADMISSION}/{kind}", {"metadata": {"name": "payer"}, "spec": spec})


@pytest.fixture(scope="module")
def operator(
    cluster: ControlPlane,
    crd: None,
    spark_operator: SparkOperator,
    namespaces: dict[str, Namespace],
    forks: Forks,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ForkedOperator]:
    home = cluster.create_namespace("refusals")
    made = ForkedOperator(cluster, home, tmp_path_factory.mktemp("refusals"), forks=forks)
    made.install(f"watchNamespaces={{{','.join(each.name for each in namespaces.values())}}}")
    made.start()
    yield made
    made.end()
    cluster.api.delete(f"{CORE}/namespaces/{home.name}")


@pytest.fixture(scope="module")
def feeds(namespaces: dict[str, Namespace], operator: ForkedOperator, history: History) -> dict[str, Feeds]:
    made = {name: Feeds(namespace, history) for name, namespace in namespaces.items()}
    for name, each in made.items():
        root = {"containers": [{"name": "spark-kubernetes-driver", "securityContext": {"runAsNonRoot": False}}]}
        spark = {"driver": {"template": {"spec": root}}} if name == "security" else {}
        each.create(name, spark=spark)
    return made


@pytest.mark.parametrize("name", RULES)
def test_a_driver_pod_that_is_refused_is_told_with_the_rule_that_refuses_it(feeds: dict[str, Feeds], name: str) -> None:
    status = feeds[name].wait_until_said(name, "Attempt 1 failed", deadline_s=_SUBMIT_S)
    if folder := os.environ.get("RECORD"):
        found = feeds[name].application(name) or {}
        (Path(folder) / f"submit-{name}.json").write_text(json.dumps(found.get("status"), indent=1))
    assert RULES[name][1] in status["message"]
