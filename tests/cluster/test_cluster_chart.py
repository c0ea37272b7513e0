"""The chart: what it renders, and what Helm, Kubernetes' schemas, Prometheus, Argo CD and kustomize say of it."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from changefeed.spec.parse import parse
from changefeed.spec.reasons import HeldReason, Reason
from changefeed.ui.server import parse_address
from changefeed_operator import api
from changefeed_operator.__main__ import app as operator_app
from changefeed_operator.__main__ import run as operator_run
from changefeed_operator.decision.conditions import Situation, conditions
from changefeed_operator.manifests.children import children
from changefeed_operator.manifests.pods import METRICS_PORT
from changefeed_operator.observe import Observed
from changefeed_operator.settings import Network, Settings, parse_defaults
from changefeed_operator.spark_operator.choice import KNOWN
from changefeed_operator.target import wanted
from cluster_chart_tools import CHART, KUBE_VERSION, MONITORING, ROOT, from_prometheus, lua, of_kind, render, run
from cluster_programs import program

GITOPS = ROOT / "examples" / "gitops"

#: Everything that can be switched on.
FULL: dict[str, Any] = {
    "replicaCount": 2,
    "watchNamespaces": ["shop", "billing"],
    "selector": "changefeed.dev/channel=canary",
    "changefeedNetworkPolicies": True,
    "allowPrivilegedTemplates": True,
    "spark": {"operator": "Apache"},
    "state": {"uri": "s3://cdc-state"},
    "logLevel": "debug",
    "sparkImage": {"registry": "images.example.com", "pullPolicy": "Always", "pullSecrets": ["pull"]},
    "imagePullSecrets": [{"name": "pull"}],
    "serviceAccount": {"annotations": {"who": "cdc"}},
    "podAnnotations": {"a": "b"},
    "podLabels": {"c": "d"},
    "commonLabels": {"team": "cdc"},
    "podSecurityContext": {"fsGroup": 1000},
    "strategy": {"type": "Recreate"},
    "extraVolumes": [{"name": "ca", "configMap": {"name": "company-ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/company", "readOnly": True}],
    "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-ca"}}],
    "defaults": {"driver": {"memory": "4Gi"}, "executor": {"cores": 4, "memory": "8Gi"}},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "cdc", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "priorityClassName": "system-cluster-critical",
    "extraEnv": [{"name": "TZ", "value": "UTC"}],
    "podDisruptionBudget": {"enabled": True},
    "metricsFrom": [{"namespaceSelector": {}}],
    "changefeedEgress": {"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "extra": [{"ports": [{"port": 3128}]}]},
    "service": {"annotations": {"e": "f"}},
    "web": {
        "enabled": True,
        "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}],
    },
    "serviceMonitor": {"enabled": True},
    "podMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "dashboards": {"enabled": True, "annotations": {"grafana_folder": "Changefeeds"}},
}
VALUES = pytest.mark.parametrize("values", [{}, FULL], ids=["default", "full"])


@VALUES
def test_helm_lint_finds_nothing(values: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    done = run([program("helm"), "lint", "--strict", CHART, "-f", file, *KUBE_VERSION])
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_suite_of_helm_unittest_passes() -> None:
    done = run([program("helm-unittest"), "--color=false", "--strict", CHART])
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Tests: +\d\d passed", done.stdout), done.stdout


@VALUES
def test_every_object_fits_the_schemas_of_kubernetes(values: dict[str, Any], tmp_path: Path) -> None:
    if importlib.util.find_spec("kubernetes_validate") is None:
        pytest.skip("kubernetes-validate is not installed")
    ours = [document for document in render(values) if document["apiVersion"] != MONITORING]
    file = tmp_path / "rendered.yaml"
    file.write_text(yaml.safe_dump_all(ours))
    done = run([sys.executable, "-m", "kubernetes_validate", "--strict", file])
    assert done.returncode == 0, done.stdout + done.stderr


DRIVER_ROLE = "prod-changefeed-operator-driver"


def _rules(documents: list[dict[str, Any]], of_drivers: bool) -> list[dict[str, Any]]:
    """What drivers may, or what everybody else may."""
    roles = [role for kind in ("Role", "ClusterRole") for role in of_kind(documents, kind)]
    return [rule for role in roles if (role["metadata"]["name"] == DRIVER_ROLE) == of_drivers for rule in role["rules"]]


def _granted(rules: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@VALUES
def test_the_operator_reads_no_secret_and_has_no_wildcard(values: dict[str, Any]) -> None:
    documents = render(values)
    rules = _rules(documents, of_drivers=False)
    assert rules
    assert not [granted for granted in _granted(rules) if granted[1] == "secrets" or "*" in granted]
    assert not {"escalate", "impersonate"} & {verb for _, _, verb in _granted(rules)}


@VALUES
def test_the_operator_makes_no_pod_and_may_bind_the_drivers_role_alone(values: dict[str, Any]) -> None:
    """Who makes pods in a namespace has its Secrets; who binds any role has them all."""
    documents = render(values)
    rules = _rules(documents, of_drivers=False)
    assert {verb for _, resource, verb in _granted(rules) if resource == "pods"} == {"get", "list", "watch", "delete"}
    binds = [rule for rule in rules if "bind" in rule["verbs"]]
    kind = "Role" if values.get("watchNamespaces") else "ClusterRole"
    for rule in binds:
        assert rule == {
            "apiGroups": ["rbac.authorization.k8s.io"],
            "resources": [f"{kind.lower()}s"],
            "resourceNames": [DRIVER_ROLE],
            "verbs": ["bind"],
        }
    bound = [role["metadata"].get("namespace") for role in of_kind(documents, kind)]
    assert len(binds) == len(values.get("watchNamespaces") or [None])
    assert set(bound) >= set(values.get("watchNamespaces") or [None])


@VALUES
def test_a_driver_handles_its_executors_and_may_read_no_secret_and_write_no_configuration(
    values: dict[str, Any],
) -> None:
    granted = _granted(_rules(render(values), of_drivers=True))
    pods = {("", "pods", verb) for verb in ("create", "get", "list", "watch", "delete", "deletecollection")}
    assert granted == {*pods, ("", "secrets", "create")}


def test_the_operator_holds_every_right_that_it_grants() -> None:
    """Else the API server refuses the driver's Role as an escalation. What it binds is another matter."""
    held = _granted(_rules(render(), of_drivers=False))
    changefeed = yaml.safe_load((GITOPS / "kustomize" / "base" / "changefeed.yaml").read_text())
    changefeed["metadata"] |= {"namespace": "shop", "uid": "u"}
    target = wanted(Observed("shop", "orders", 0.0, changefeed), Settings("image")).target
    assert target
    manifests = children(target, Settings("image", driver_role=DRIVER_ROLE), changefeed, hold=True)
    (role,) = of_kind(manifests, "Role")
    assert _granted(role["rules"]) <= held
    bound = {binding["roleRef"]["name"] for binding in of_kind(manifests, "RoleBinding")}
    assert bound == {role["metadata"]["name"], DRIVER_ROLE}


def test_the_operator_may_write_and_delete_every_kind_of_child() -> None:
    granted = _granted(_rules(render(), of_drivers=False))
    for kind in (*(each.kind for each in KNOWN), *api.CHILD_KINDS):
        verbs = {verb for group, resource, verb in granted if (group, resource) == (kind.group, kind.plural)}
        written = set() if kind is api.POD else {"create", "patch"}
        assert {"get", "list", "watch", "delete", *written} <= verbs, kind.kind


def test_in_namespaced_mode_only_what_people_need_is_of_the_cluster() -> None:
    values = {"watchNamespaces": ["shop"], "crds": {"install": False}, "rbac": {"aggregate": False}}
    documents = render(values)
    assert {document["metadata"].get("namespace") for document in documents} == {"shop", "changefeed-system"}


def test_the_account_of_the_operator_is_the_one_that_is_bound() -> None:
    documents = render(FULL)
    (account,) = of_kind(documents, "ServiceAccount")
    (deployment,) = of_kind(documents, "Deployment")
    assert deployment["spec"]["template"]["spec"]["serviceAccountName"] == account["metadata"]["name"]
    for binding in of_kind(documents, "RoleBinding"):
        (subject,) = binding["subjects"]
        assert (subject["name"], subject["namespace"]) == (account["metadata"]["name"], "changefeed-system")


@VALUES
def test_the_operator_understands_what_the_chart_tells_it(values: dict[str, Any]) -> None:
    (deployment,) = of_kind(render(values), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    parameters = set(inspect.signature(operator_run).parameters)
    _, bound, _ = operator_app.parse_args([*container["args"], "--image", "x"], exit_on_error=False, print_error=False)
    assert bound.arguments["lease"] == "prod-changefeed-operator"
    assert parse_defaults(bound.arguments.get("defaults", "{}")) == values.get("defaults", {})
    named = {env["name"] for env in container["env"] if env["name"].startswith("CHANGEFEED_")}
    assert {name.removeprefix("CHANGEFEED_").lower() for name in named} <= parameters


def test_the_operator_of_a_page_is_let_in_to_the_drivers_that_its_page_asks() -> None:
    values = {"web": {"enabled": True}}
    documents = render(values)
    (deployment,) = of_kind(documents, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    _, bound, _ = operator_app.parse_args([*container["args"], "--image", "x"], exit_on_error=False, print_error=False)
    host, port = parse_address(bound.arguments["web_address"], "--web-address")
    assert (host, port) == ("", {each["name"]: each["containerPort"] for each in container["ports"]}["web"])

    labels = deployment["spec"]["template"]["metadata"]["labels"]
    let_in = Network.parse(bound.arguments["network_policy"]).metrics_from
    mine = [peer for peer in let_in if peer.get("podSelector")]
    assert len(mine) == 1
    assert mine[0]["podSelector"]["matchLabels"].items() <= labels.items()
    assert mine[0]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "changefeed-system"}
    (policy,) = of_kind(documents, "NetworkPolicy")
    asked = [rule for rule in policy["spec"]["egress"] if {"port": METRICS_PORT, "protocol": "TCP"} in rule["ports"]]
    assert [peer["podSelector"]["matchLabels"] for rule in asked for peer in rule["to"]] == [{"spark-role": "driver"}]


@VALUES
def test_every_pod_is_restricted(values: dict[str, Any]) -> None:
    documents = render(values)
    pods = [deployment["spec"]["template"]["spec"] for deployment in of_kind(documents, "Deployment")]
    pods += [pod["spec"] for pod in of_kind(documents, "Pod")]
    assert len(pods) == 2
    for pod in pods:
        restricted = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        assert pod["securityContext"] == {**restricted, **values.get("podSecurityContext", {})}
        for container in pod["containers"]:
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["resources"]["limits"]["memory"]


@pytest.mark.parametrize("keep", [True, False])
def test_the_crd_of_a_release_differs_from_the_plain_one_by_its_metadata_only(keep: bool) -> None:
    (crd,) = of_kind(render({"crds": {"keep": keep}}), "CustomResourceDefinition")
    plain = yaml.safe_load((ROOT / "crds" / "changefeeds.yaml").read_text())
    metadata = crd.pop("metadata")
    assert metadata["name"] == plain.pop("metadata")["name"]
    assert ("annotations" in metadata) == keep
    assert crd == plain


def test_promtool_takes_the_rules_of_a_release(tmp_path: Path) -> None:
    (rule,) = of_kind(render(FULL), "PrometheusRule")
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(rule["spec"]))
    done = run([from_prometheus("promtool"), "check", "rules", "--lint-fatal", file])
    assert done.returncode == 0, done.stdout + done.stderr
    (down,) = [alert for alert in rule["spec"]["groups"][0]["rules"] if alert["alert"] == "ChangefeedOperatorDown"]
    leaders = re.findall(r"changefeed_operator_leader_info(\S*?)[\[ )]", down["expr"])
    assert leaders == ['{namespace="changefeed-system"}'] * 3, "each release has its own leader"


def test_each_alert_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
    alerts = CHART / "files" / "alerts.yaml"
    tests = Path(__file__).with_name("cluster_chart_alerts.yaml")
    (tmp_path / alerts.name).write_text(alerts.read_text())
    (tmp_path / tests.name).write_text(tests.read_text())
    done = run([from_prometheus("promtool"), "test", "rules", tmp_path / tests.name])
    assert done.returncode == 0, done.stdout + done.stderr
    for alert in re.findall(r"alert: (\w+)", alerts.read_text()):
        assert re.search(rf"alertname: {alert}\n +exp_alerts:", tests.read_text()), f"{alert} is never seen firing"


@pytest.mark.parametrize("board", sorted((CHART / "dashboards").glob("*.json")), ids=lambda path: path.stem)
def test_every_panel_asks_what_prometheus_understands(board: Path, tmp_path: Path) -> None:
    panels = [panel for panel in json.loads(board.read_text())["panels"] if panel["type"] != "row"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(expressions) > 10
    known = [expression.replace("$__rate_interval", "1m") for expression in expressions]
    rules = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(known)]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": board.stem, "rules": rules}]}))
    done = run([from_prometheus("promtool"), "check", "rules", file])
    assert done.returncode == 0, done.stdout + done.stderr


def _changefeed(situation: Situation | None = None, observed: int = 3) -> dict[str, Any]:
    """As the API server has it, generation 3, once the operator has said where it stands."""
    status: dict[str, Any] = {"observedGeneration": observed}
    if situation:
        status |= {"state": situation.state, "message": situation.message}
        status["conditions"] = conditions(situation, (HeldReason.HELD, "It is held."), "", {}, observed, now=0.0)
    return {"metadata": {"name": "orders", "generation": 3}, "spec": {"paused": False}, "status": status}


HEALTH = {
    Reason.RUNNING: "Healthy",
    Reason.IDLE: "Healthy",
    Reason.FINISHED: "Healthy",
    Reason.PAUSED: "Suspended",
    Reason.CATCHING_UP: "Progressing",
    Reason.BLOCKED_BY_LOCK: "Progressing",
    Reason.STARTING: "Progressing",
    Reason.DRAINING: "Progressing",
    Reason.CLEANING_UP: "Progressing",
    Reason.DELETING: "Progressing",
    Reason.REFUSED: "Degraded",
    Reason.NO_SPARK_OPERATOR: "Degraded",
    Reason.DRIVER_PENDING: "Degraded",
    Reason.EXECUTOR_OUT_OF_MEMORY: "Degraded",
    Reason.UNSCHEDULABLE: "Degraded",
    Reason.IMAGE_PULL_FAILED: "Degraded",
    Reason.EXECUTORS_PENDING: "Degraded",
    Reason.SINK_UNAVAILABLE: "Degraded",
    Reason.UPSTREAM_UNAVAILABLE: "Degraded",
    Reason.DRIVER_SILENT: "Degraded",
    Reason.BACK_OFF: "Degraded",
    Reason.INVALID_SPEC: "Degraded",
    Reason.STALLED: "Degraded",
}


def _argo(key: str) -> str:
    data = yaml.safe_load((GITOPS / "argocd" / "argocd-cm.yaml").read_text())["data"]
    script: str = data[f"resource.customizations.{key}.changefeed.dev_Changefeed"]
    return script


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason.shown])
def test_argo_cd_tells_the_health_of_a_changefeed(reason: Reason) -> None:
    situation = Situation(reason, 'It says "so".\nDo this.')
    assert lua(_argo("health"), _changefeed(situation)) == {"status": HEALTH[reason], "message": situation.message}


def test_argo_cd_shows_a_refused_spec_while_the_one_before_runs() -> None:
    situation = Situation(Reason.INVALID_SPEC, "Mend it.", runs_last_valid=True)
    assert lua(_argo("health"), _changefeed(situation))["status"] == "Degraded"


@pytest.mark.parametrize("observed", [-1, 2])
def test_argo_cd_waits_until_the_operator_has_seen_the_newest_version(observed: int) -> None:
    changefeed = _changefeed(Situation(Reason.RUNNING, "Runs.") if observed > 0 else None, observed)
    answer = {"status": "Progressing", "message": "The operator has not seen this version yet."}
    assert lua(_argo("health"), changefeed) == answer
    del changefeed["status"]
    assert lua(_argo("health"), changefeed) == answer


def test_the_actions_of_argo_cd_change_the_spec_and_nothing_else() -> None:
    actions = yaml.safe_load(_argo("actions"))
    scripts = {action["name"]: action["action.lua"] for action in actions["definitions"]}
    offered = lua(actions["discovery.lua"], _changefeed())
    assert set(scripts) == set(offered) == {"pause", "resume", "restart"}
    assert [name for name in offered if offered[name]["disabled"]] == ["resume"]

    plain = {"metadata": {"name": "orders"}, "spec": {"startTs": "470621062737690627"}}
    paused = lua(scripts["pause"], plain)
    assert paused == {"metadata": plain["metadata"], "spec": {**plain["spec"], "paused": True}}
    offered = lua(actions["discovery.lua"], paused)
    assert sorted(name for name in offered if offered[name]["disabled"]) == ["pause", "restart"]
    assert lua(scripts["resume"], paused)["spec"]["paused"] is False
    assert lua(scripts["restart"], plain)["spec"]["restartNonce"] == 1
    assert lua(scripts["restart"], {"spec": {"restartNonce": 41}})["spec"] == {"restartNonce": 42}


@pytest.mark.parametrize("overlay", ["staging", "production"])
def test_kustomize_builds_a_valid_changefeed(overlay: str) -> None:
    done = run([program("kubectl"), "kustomize", GITOPS / "kustomize" / "overlays" / overlay])
    assert done.returncode == 0, done.stderr
    documents = list(yaml.safe_load_all(done.stdout))
    (changefeed,) = of_kind(documents, "Changefeed")
    parse(yaml.safe_dump(changefeed))
    named = {
        changefeed["spec"]["state"]["credentials"]["secretRef"]["name"],
        changefeed["spec"]["sink"]["storage"]["credentials"]["secretRef"]["name"],
    }
    # A generated Secret has a hash in its name, and the Changefeed must follow it.
    generated = {secret["metadata"]["name"] for secret in of_kind(documents, "Secret")}
    assert named == (generated or {"lake-writer"})
