"""The manifests, whole, against testdata/rendered.yaml (`--rewrite` writes them); and what must hold for each."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from changefeed.spec.parse import from_effective, parse
from changefeed_operator import api
from changefeed_operator.manifests.application import application
from changefeed_operator.manifests.children import children
from changefeed_operator.manifests.jobs import close_job, hold_cron_job, hold_job, hold_schedule
from changefeed_operator.observe import Observed
from changefeed_operator.settings import Network, Settings
from changefeed_operator.spark_operator.choice import APACHE
from changefeed_operator.target import CONFIG_KEY, Target, spec_hash, wanted
from changefeed_operator.template import merge, template_problem
from operator_world import NAME, SPEC

GOLDEN = Path(__file__).parent / "testdata" / "rendered.yaml"
GOLDEN_APACHE = GOLDEN.with_name("rendered_apache.yaml")
SETTINGS = Settings(image="changefeed-spark:1", network=Network(), image_pull_secrets=("registry",))
TEMPLATE = {
    "metadata": {"labels": {"team": "shop"}},
    "spec": {
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "cdc", "operator": "Exists"}],
        "volumes": [{"name": "certs", "configMap": {"name": "certs"}}],
        "containers": [
            {
                "name": api.DRIVER_CONTAINER,
                "env": [{"name": "RUST_LOG", "value": "info"}, {"name": "CHANGEFEED_ATTEMPT", "value": "99"}],
                "resources": {"requests": {"cpu": "250m"}, "limits": {"cpu": "2"}},
                "volumeMounts": [{"name": "certs", "mountPath": "/certs"}],
            }
        ],
    },
}


def _owner(**changes: Any) -> dict[str, Any]:
    spec = {
        **SPEC,
        "state": {"uri": "s3://cdc-state", "credentials": {"secretRef": {"name": "state-writer"}}},
        "sink": {"storage": {**SPEC["sink"]["storage"], "credentials": {"secretRef": {"name": "lake-writer"}}}},
        "spark": {"driver": {"template": TEMPLATE}},
        **changes,
    }
    return {"metadata": {"name": NAME, "namespace": "shop", "uid": "u-1"}, "spec": spec}


def _target(**changes: Any) -> Target:
    target = wanted(Observed("shop", NAME, 0.0, _owner(**changes)), SETTINGS).target
    assert target is not None
    return target


def _all(target: Target) -> list[dict[str, Any]]:
    owner = _owner()
    return [
        application(target, SETTINGS, 7, owner),
        *children(target, SETTINGS, owner, hold=True),
        hold_job(target, SETTINGS, owner),
        close_job(target, SETTINGS, "changefeed-orders"),
    ]


def test_the_manifests_are_the_golden_ones(rewrite: bool) -> None:
    text = yaml.safe_dump_all(json.loads(json.dumps(_all(_target()))), sort_keys=False, width=120)
    if rewrite:
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_the_application_for_apaches_spark_operator_is_the_golden_one(rewrite: bool) -> None:
    made = application(_target(), replace(SETTINGS, spark=APACHE), 7, _owner())
    text = yaml.safe_dump(json.loads(json.dumps(made)), sort_keys=False, width=120)
    if rewrite:
        GOLDEN_APACHE.write_text(text)
    assert text == GOLDEN_APACHE.read_text()


def test_pods_leave_a_lost_node_after_half_a_minute_unless_their_template_says_otherwise() -> None:
    slow = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
    template = {"spec": {"tolerations": [{**slow, "tolerationSeconds": 600}]}}
    spec = application(_target(spark={"driver": {"template": template}}), SETTINGS, 1, _owner())["spec"]
    found = {role: spec[role]["template"]["spec"]["tolerations"] for role in ("driver", "executor")}
    seconds = {
        role: {each["key"].rpartition("/")[2]: each["tolerationSeconds"] for each in tolerations}
        for role, tolerations in found.items()
    }
    assert seconds == {
        "driver": {"not-ready": 30, "unreachable": 600},
        "executor": {"not-ready": 30, "unreachable": 30},
    }


def test_a_driver_that_hangs_is_killed_and_an_executor_has_no_probe() -> None:
    spec = application(_target(), SETTINGS, 1, _owner())["spec"]
    driver, executor = (spec[role]["template"]["spec"]["containers"][0] for role in ("driver", "executor"))
    probe = driver["livenessProbe"]
    assert probe["httpGet"] == {"path": "/healthz", "port": 9464}
    assert probe["periodSeconds"] * probe["failureThreshold"] == 40
    assert driver["startupProbe"]["periodSeconds"] * driver["startupProbe"]["failureThreshold"] == 300
    assert "livenessProbe" not in executor


def _pod_specs(manifest: Any) -> list[dict[str, Any]]:
    """Return the spec of every pod that comes of a manifest."""
    if not isinstance(manifest, dict):
        return []
    found = [manifest] if isinstance(manifest.get("containers"), list) else []
    return found + [spec for member in manifest.values() for spec in _pod_specs(member)]


def test_every_pod_is_what_the_restricted_standard_wants() -> None:
    pods = [pod for manifest in _all(_target()) for pod in _pod_specs(manifest)]
    assert len(pods) == 5, "driver, executor, hold twice, close"
    for pod in pods:
        security = pod["securityContext"]
        assert security["runAsNonRoot"]
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(security), "OpenShift gives its own"
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert not context["allowPrivilegeEscalation"]
            assert context["readOnlyRootFilesystem"]
        assert {"emptyDir": {"sizeLimit": "8Gi"}, "name": "changefeed-tmp"} in pod["volumes"]
        secrets = {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
        assert secrets == {"lake-writer", "state-writer"}


@pytest.mark.parametrize(
    ("upstream", "secrets"),
    [
        ({"pdAddresses": ["https://pd:2379"], "tls": {"secretRef": {"name": "tidb-client"}}}, ["tidb-client"]),
        (
            {"tikv": {"pdAddresses": ["https://pd:2379"], "tls": {"secretRef": {"name": "tidb-client"}}}},
            ["tidb-client"],
        ),
        (
            {
                "postgresql": {
                    "host": "db",
                    "database": "shop",
                    "credentials": {"secretRef": {"name": "reader"}},
                    "tls": {"secretRef": {"name": "ca"}},
                }
            },
            ["reader", "ca"],
        ),
    ],
)
def test_every_pod_has_the_secrets_for_the_upstream(upstream: dict[str, Any], secrets: list[str]) -> None:
    pods = [pod for manifest in _all(_target(upstream=upstream)) for pod in _pod_specs(manifest)]
    for pod, secret in product(pods, secrets):
        (name,) = [each["name"] for each in pod["volumes"] if each.get("secret", {}).get("secretName") == secret]
        (container,) = pod["containers"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts[name] == f"/etc/changefeed/secrets/{secret}"


def test_every_pod_has_the_secrets_of_hashes() -> None:
    named = [{"secretRef": {"name": name}} for name in ("masking-a", "masking-b")]
    columns = [{"match": ["shop.*"], "columns": ["mail"], "hash": each} for each in named]
    for pod in (pod for manifest in _all(_target(columns=columns)) for pod in _pod_specs(manifest)):
        secrets = {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
        assert secrets >= {"masking-a", "masking-b"}


def test_only_the_driver_has_a_token() -> None:
    pods = [pod for manifest in _all(_target()) for pod in _pod_specs(manifest)]
    assert [pod["automountServiceAccountToken"] for pod in pods] == [True, False, False, False, False]


def _accounts(target: Target) -> tuple[set[str], list[dict[str, Any]]]:
    """Those that pods run as and that rights are given to; the ServiceAccounts that the operator makes."""
    manifests = _all(target)
    spec = manifests[0]["spec"]
    used = {spec["driver"]["serviceAccount"], spec["executor"]["serviceAccount"]}
    (hold,) = [manifest for manifest in manifests if manifest["kind"] == "CronJob"]
    used |= {pod["serviceAccountName"] for pod in _pod_specs(hold)}
    used |= {each["subjects"][0]["name"] for each in manifests if each["kind"] == "RoleBinding"}
    return used, [each for each in manifests if each["kind"] == "ServiceAccount"]


def test_the_account_of_the_pods_bears_the_annotations_of_a_cloud() -> None:
    annotations = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/cdc"}
    used, (made,) = _accounts(_target(spark={"serviceAccount": {"annotations": annotations}}))
    assert used == {f"changefeed-{NAME}"} == {made["metadata"]["name"]}
    assert annotations.items() <= made["metadata"]["annotations"].items()
    assert api.APPLIED in made["metadata"]["annotations"]


def test_an_account_of_the_users_is_given_the_rights_and_not_touched() -> None:
    used, made = _accounts(_target(spark={"serviceAccount": {"name": "cdc"}}))
    assert (used, made) == ({"cdc"}, [])


def test_sparks_network_policy_step_is_switched_off() -> None:
    conf = application(_target(), SETTINGS, 1, _owner())["spec"]["sparkConf"]
    assert conf["spark.kubernetes.driver.pod.excludedFeatureSteps"].endswith(".NetworkPolicyFeatureStep")


def test_an_application_is_never_restarted_or_labelled_by_somebody_else() -> None:
    spec = application(_target(), SETTINGS, 7, _owner())["spec"]
    assert spec["restartPolicy"] == {"type": "Never"}
    for role in ("driver", "executor"):
        assert spec[role]["labels"][api.ATTEMPT_LABEL] == "7"
        assert spec[role]["labels"][api.SPEC_HASH_LABEL] == _target().hash
        assert spec[role]["annotations"] == {"argocd.argoproj.io/ignore-restart-policy": "true"}


@pytest.mark.parametrize(
    ("memory", "driver", "executor"),
    [
        ("768Mi", ("512m", "256m"), ("512m", "256m")),
        ("2Gi", ("512m", "1536m"), ("512m", "1536m")),
        ("12Gi", ("3072m", "9216m"), ("2048m", "10240m")),
        ("64Gi", ("4096m", "61440m"), ("4096m", "61440m")),
    ],
)
def test_the_containers_limit_is_the_specs_memory(
    memory: str, driver: tuple[str, str], executor: tuple[str, str]
) -> None:
    spark = {"driver": {"memory": memory}, "executor": {"memory": memory}}
    spec = application(_target(spark=spark), SETTINGS, 1, _owner())["spec"]
    assert (spec["driver"]["memory"], spec["driver"]["memoryOverhead"]) == driver
    assert (spec["executor"]["memory"], spec["executor"]["memoryOverhead"]) == executor


def test_a_users_template_wins_but_for_what_the_driver_needs() -> None:
    driver = application(_target(), SETTINGS, 7, _owner())["spec"]["driver"]
    container = driver["template"]["spec"]["containers"][0]
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert env["RUST_LOG"] == "info"
    assert env["CHANGEFEED_ATTEMPT"] == "7"
    assert driver["template"]["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert {"/certs", "/etc/changefeed", "/tmp"} <= {mount["mountPath"] for mount in container["volumeMounts"]}
    assert (driver["coreRequest"], driver["coreLimit"]) == ("250m", "2")


def test_merging_named_things_replaces_them_and_containers_merge() -> None:
    under = {"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}]}], "tolerations": [{"key": "k"}]}
    over = {"containers": [{"name": "a", "env": [{"name": "X", "valueFrom": {}}]}], "tolerations": [{"key": "l"}]}
    merged = merge(under, over)
    assert merged["containers"] == [{"name": "a", "env": [{"name": "X", "valueFrom": {}}]}]
    assert merged["tolerations"] == [{"key": "k"}, {"key": "l"}]
    assert merge(under, {"containers": None}) == under


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ({}, ""),
        (TEMPLATE, ""),
        ({"spec": []}, ".spec: allowed: a mapping"),
        ({"spec": {"volumes": {}}}, ".spec.volumes: allowed: a list of mappings"),
        ({"spec": {"containers": [{}]}}, ".spec.containers: allowed: a list whose members have a name"),
        (
            {"spec": {"containers": [{"name": "a", "volumeMounts": [{"name": "v"}]}]}},
            ".spec.containers[a].volumeMounts: allowed: a list whose members have a mountPath",
        ),
    ],
)
def test_a_template_of_the_wrong_shape_is_told(template: dict[str, Any], problem: str) -> None:
    assert template_problem(template) == problem


def test_the_config_map_holds_the_effective_resource() -> None:
    config_map = next(
        each for each in children(_target(), SETTINGS, _owner(), hold=False) if each["kind"] == "ConfigMap"
    )
    resource = parse(config_map["data"][CONFIG_KEY])
    assert resource == _target().resource
    assert resource.metadata.uid == "u-1"


@pytest.mark.parametrize("text", ["é", "\U0001f600", "a\x7fb", "a\x85b", "a\u2028b", "\ufeff", 'it\'s "so"', "#: -"])
def test_any_text_comes_through_the_config_map(text: str) -> None:
    target = _target(sink={"storage": {**SPEC["sink"]["storage"], "csv": {"null": text}}})
    assert parse(target.config_text) == target.resource


def _job_pods() -> dict[str, dict[str, Any]]:
    spec = TEMPLATE["spec"]
    beside = {"containers": [{"name": "sidecar", "image": "proxy"}, *spec["containers"]], "restartPolicy": "Always"}
    template = {**TEMPLATE, "spec": {**spec, **beside, "imagePullSecrets": [{"name": "theirs"}]}}
    target = _target(spark={"driver": {"template": template}})
    hold = hold_cron_job(target, SETTINGS, _owner())["spec"]["jobTemplate"]["spec"]
    close = close_job(target, SETTINGS, "changefeed-orders")["spec"]
    return {"hold": hold["template"], "close": close["template"]}


def test_nobody_owns_the_close_job_and_it_needs_no_config_map() -> None:
    job = close_job(_target(), SETTINGS, "changefeed-orders")
    assert "ownerReferences" not in job["metadata"], "a foreground deletion would take it away"
    for pod in _job_pods().values():
        assert not [volume for volume in pod["spec"]["volumes"] if "configMap" in volume and volume["name"] != "certs"]
        told = from_effective(json.loads(pod["metadata"]["annotations"][api.RESOURCE]))
        assert told.spec.state == _target().resource.spec.state
        assert told.spec.spark.driver.template == {}, "an annotation has its bounds"


def test_a_job_waits_for_a_node_to_be_added() -> None:
    assert hold_job(_target(), SETTINGS, _owner())["spec"]["activeDeadlineSeconds"] == 900
    assert close_job(_target(), SETTINGS, "")["spec"]["activeDeadlineSeconds"] == 900


@pytest.mark.parametrize("verb", ["hold", "close"])
def test_a_jobs_pod_comes_of_the_drivers_template(verb: str) -> None:
    spec = _job_pods()[verb]["spec"]
    assert spec["nodeSelector"] == {"disk": "ssd"}
    assert spec["tolerations"] == [{"key": "cdc", "operator": "Exists"}]
    assert spec["imagePullSecrets"] == [{"name": "registry"}, {"name": "theirs"}]
    assert spec["serviceAccountName"] == "changefeed-orders"
    assert spec["restartPolicy"] == "Never"
    (container,) = spec["containers"]
    assert container["name"] == verb, "a sidecar would keep the Job from ending"
    assert {"name": "RUST_LOG", "value": "info"} in container["env"]
    assert {"name": "certs", "mountPath": "/certs"} in container["volumeMounts"]
    assert container["command"][:2] == ["changefeed", verb]
    assert container["resources"] == {
        "requests": {"cpu": "50m", "memory": "128Mi"},
        "limits": {"cpu": "2", "memory": "512Mi"},
    }, "a quota on limits.cpu is met, and the Job asks for no more than it needs"


@pytest.mark.parametrize(
    ("ttl", "every"), [("10m", "/2 "), ("15m", "/5 "), ("1h", "/15 "), ("24h", "/30 "), ("720h", "/30 ")]
)
def test_the_hold_comes_three_times_in_a_ttl(ttl: str, every: str) -> None:
    assert every in hold_schedule(_target(upstream={**SPEC["upstream"], "safepointTtl": ttl}))


def test_a_long_name_has_children_that_the_api_server_takes() -> None:
    name = "a" * 45
    assert len(api.hold_cron_job_name(name)) <= 52
    assert api.hold_cron_job_name(name) != api.hold_cron_job_name("a" * 44 + "b")
    assert max(len(api.close_job_name(name)), len(api.driver_pod_name(name))) <= 63
    assert api.hold_cron_job_name(NAME) == "changefeed-orders-hold"


def test_equal_specs_have_equal_hashes_and_pausing_is_no_change() -> None:
    same = _target(drainTimeout="1m", paused=True, mode="Throughput")
    assert same.hash == _target().hash
    assert _target(timeZone="CET").hash != _target().hash
    assert _target(restartNonce=1).hash != _target().hash
    assert _target(upstream={"tikv": SPEC["upstream"]}).hash == _target().hash, "it is the same upstream"


def test_the_hash_is_what_it_was_in_the_versions_before() -> None:
    """Another one restarts every changefeed when the operator is upgraded."""
    assert spec_hash(_target().resource) == "a45e8a9c603118ca"
