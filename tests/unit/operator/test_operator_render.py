"""The manifests, whole, against testdata/rendered.yaml (`--rewrite` writes them); and what must hold for each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from changefeed.spec.parse import from_effective, parse
from changefeed_operator import api
from changefeed_operator.children import children, close_job, hold_schedule
from changefeed_operator.render import application
from changefeed_operator.settings import Settings
from changefeed_operator.target import CONFIG_KEY, Target, as_target, spec_hash
from changefeed_operator.template import merge, template_problem
from operator_world import NAME, SPEC

GOLDEN = Path(__file__).parent / "testdata" / "rendered.yaml"
SETTINGS = Settings(image="changefeed-spark:1", network_policy=True, image_pull_secrets=("registry",))
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
    target = as_target(_owner(**changes), "")
    assert target is not None
    return target


def _all(target: Target) -> list[dict[str, Any]]:
    owner = _owner()
    return [
        application(target, SETTINGS, 7, owner),
        *children(target, SETTINGS, owner, hold=True),
        close_job(target, SETTINGS),
    ]


def test_the_manifests_are_the_golden_ones(rewrite: bool) -> None:
    text = yaml.safe_dump_all(json.loads(json.dumps(_all(_target()))), sort_keys=False, width=120)
    if rewrite:
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def _pod_specs(manifest: Any) -> list[dict[str, Any]]:
    """Of every pod that comes of a manifest."""
    if not isinstance(manifest, dict):
        return []
    found = [manifest] if isinstance(manifest.get("containers"), list) else []
    return found + [spec for member in manifest.values() for spec in _pod_specs(member)]


def test_every_pod_is_what_the_restricted_standard_wants() -> None:
    pods = [pod for manifest in _all(_target()) for pod in _pod_specs(manifest)]
    assert len(pods) == 4, "driver, executor, hold, close"
    for pod in pods:
        security = pod["securityContext"]
        assert security["runAsNonRoot"]
        assert security["runAsUser"]
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert not context["allowPrivilegeEscalation"]
            assert context["readOnlyRootFilesystem"]
        assert {"emptyDir": {}, "name": "changefeed-tmp"} in pod["volumes"]
        secrets = {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
        assert secrets == {"lake-writer", "state-writer"}


def test_only_the_driver_has_a_token() -> None:
    pods = [pod for manifest in _all(_target()) for pod in _pod_specs(manifest)]
    assert [pod["automountServiceAccountToken"] for pod in pods] == [True, False, False, False]


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


def test_the_close_job_needs_no_child_and_nobody_owns_it() -> None:
    job = close_job(_target(), SETTINGS)
    assert "ownerReferences" not in job["metadata"]
    assert (job["spec"]["activeDeadlineSeconds"], job["spec"]["ttlSecondsAfterFinished"]) == (120, 60)
    pod = job["spec"]["template"]
    assert pod["spec"]["serviceAccountName"] == "default"
    assert not [volume for volume in pod["spec"]["volumes"] if "configMap" in volume]
    told = from_effective(json.loads(pod["metadata"]["annotations"][api.RESOURCE]))
    assert told.spec.state == _target().resource.spec.state
    assert told.spec.spark.driver.template == {}, "an annotation has its bounds"


@pytest.mark.parametrize(
    ("ttl", "every"), [("1m", "* * * * *"), ("10m", "/2 "), ("1h", "/15 "), ("24h", "/30 "), ("720h", "/30 ")]
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
    assert _target(drainTimeout="61s").hash != _target().hash
    assert _target(restartNonce=1).hash != _target().hash


def test_the_hash_is_what_it_was_in_the_versions_before() -> None:
    """Another one restarts every changefeed when the operator is upgraded."""
    assert spec_hash(_target().resource) == "a45e8a9c603118ca"
