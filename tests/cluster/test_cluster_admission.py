"""The API server's side of tests/admission.yaml: our CRD on a real one refuses what the model refuses, in its words.

And the two agree on whatever hypothesis can think of: what `changefeed validate` takes, the API server takes.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from changefeed.spec.parse import effective, parse
from changefeed.spec.problem import InvalidResource
from cluster_api import CORE, Answer, Namespace
from cluster_control_plane import ControlPlane
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
CORPUS = yaml.safe_load((ROOT / "tests/admission.yaml").read_text())
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/changefeeds.changefeed.dev"
pytestmark = pytest.mark.usefixtures("crd")


@pytest.fixture(scope="module")
def shop(cluster: ControlPlane) -> Iterator[Namespace]:
    """One for all cases: they leave nothing in it."""
    made = cluster.create_namespace("admission")
    yield made
    cluster.api.delete(f"{CORE}/namespaces/{made.name}")


def _changed(resource: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(resource)
    for path, value in changes.items():
        *sections, field = path.split(".")
        section = changed
        for name in sections:
            section = section.setdefault(name, {})
        if value is None:
            section.pop(field, None)
        else:
            section[field] = value
    return changed


def _create(namespace: Namespace, resource: dict[str, Any]) -> Answer:
    """As kubectl does, with strict fields; nothing is kept."""
    return namespace.api.request(
        "POST", namespace.changefeeds(), resource, fieldValidation="Strict", dryRun="All", fieldManager="kubectl"
    )


@pytest.mark.parametrize("case", CORPUS["cases"], ids=lambda case: case["name"])
def test_the_api_server_judges_as_the_corpus_says(shop: Namespace, case: dict[str, Any]) -> None:
    answer = _create(shop, _changed(CORPUS["base"], case.get("set", {})))
    words = case.get("refused") or case.get("server")
    if words is None:
        assert answer.status == 201, answer.body["message"]
    else:
        assert answer.status in (400, 422), answer.body
        assert words in answer.body["message"]
        assert "rule evaluation" not in answer.body["message"]


@pytest.mark.parametrize("edit", CORPUS["edits"], ids=lambda edit: edit["name"])
def test_an_edit_is_judged_as_the_corpus_says(shop: Namespace, edit: dict[str, Any]) -> None:
    there = shop.api.create(shop.changefeeds(), _changed(CORPUS["base"], edit["from"]))
    wanted = _changed(there, edit["to"])
    answer = shop.api.request("PUT", shop.changefeeds("orders"), wanted, fieldValidation="Strict")
    shop.api.delete(shop.changefeeds("orders"))
    if "refused" in edit:
        assert answer.status == 422
        assert edit["refused"] in answer.body["message"]
    else:
        assert answer.status == 200, answer.body["message"]


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*.yaml")), ids=lambda path: path.name)
def test_every_example_is_applied(cluster: ControlPlane, namespace: Namespace, path: Path) -> None:
    cluster.kubectl("apply", "-n", namespace.name, "-f", path)
    (applied,) = namespace.api.items(namespace.changefeeds())
    # What is stored is what was written: no default of the schema's gets in.
    assert applied["spec"] == yaml.safe_load(path.read_text())["spec"]
    assert applied["status"] == {"observedGeneration": -1}


def test_what_we_write_out_ourselves_is_taken_and_comes_back_the_same(namespace: Namespace) -> None:
    config = effective(parse(json.dumps(CORPUS["base"])))
    metadata = {"name": "orders"}
    stored = namespace.api.create(namespace.changefeeds(), config | {"metadata": metadata})
    assert stored["spec"] == config["spec"]
    assert effective(parse(json.dumps(stored)))["spec"] == config["spec"]


def test_the_schema_is_structural_and_every_rule_is_affordable(cluster: ControlPlane) -> None:
    crd = cluster.api.get(CRD)
    conditions = {condition["type"]: condition["status"] for condition in crd["status"]["conditions"]}
    assert (conditions["Established"], conditions["NamesAccepted"]) == ("True", "True")
    assert conditions.get("NonStructuralSchema", "False") == "False"
    kept = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    written = yaml.safe_load((ROOT / "crds/changefeeds.yaml").read_text())
    assert kept == written["spec"]["versions"][0]["schema"]["openAPIV3Schema"], "nothing of it is dropped"


def test_a_status_is_of_its_own_and_takes_every_field(namespace: Namespace) -> None:
    namespace.api.create(namespace.changefeeds(), CORPUS["base"])
    time = "2026-01-31T12:00:00Z"
    condition = {"type": "Ready", "status": "True", "reason": "Running", "message": "", "lastTransitionTime": time}
    status = {
        "conditions": [condition],
        "observedGeneration": 1,
        "state": "Normal",
        "message": "It runs.",
        "sink": "storage",
        "clusterId": "73",
        "startTs": "1",
        "checkpointTs": "2",
        "checkpointTime": time,
        "resolvedTs": "3",
        "lagSeconds": 2,
        "epoch": 4,
        "tables": 12,
        "rows": 123456,
        "lastDdl": {"ts": "2", "time": time, "statement": "DROP TABLE `a`"},
        "attempt": 4,
        "effectiveSpecHash": "0a",
        "lastError": {"class": "SinkUnavailable", "message": "x", "time": time, "nextRetryTime": time},
    }
    path = namespace.changefeeds("orders", "status")
    identity = {"apiVersion": CORPUS["base"]["apiVersion"], "kind": "Changefeed", "metadata": {"name": "orders"}}
    stored = namespace.api.apply(path, identity | {"status": status, "spec": {"paused": True}}, "changefeed-operator")
    assert stored["status"] == status
    assert "paused" not in stored["spec"], "a writer of the status can't change the spec"
    # Two managers share the list: each has its own types.
    lag = condition | {"type": "WithinLag"}
    stored = namespace.api.apply(path, identity | {"status": {"conditions": [lag]}}, "changefeed-driver")
    assert [each["type"] for each in stored["status"]["conditions"]] == ["Ready", "WithinLag"]


NUMBERS = st.integers(-1, 1 << 33) | st.sampled_from([0, 1, 5, 6, 20, 21, 64, 65, 1000, 1001])
DIGITS = st.from_regex(r"[0-9]{0,21}", fullmatch=True) | st.sampled_from([str((1 << 64) - 1), str(1 << 64), "1", ""])
DURATIONS = st.from_regex(r"([0-9]{1,4}(\.[0-9]{1,4})?(ms|s|m|h)?){1,2}", fullmatch=True)
SIZES = NUMBERS | st.from_regex(r"[0-9]{1,5}(Ki|Mi|Gi|Ti|k|M|G|T|m|)", fullmatch=True)
TEXTS = st.text("aA1.-_/:@?&=%# \n\t\"'é", max_size=12)
PLACES = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["file://", "file:///", "s3://", "s3:", "gs://", "az://", "http://", ""]),
        st.sampled_from(["lake", "a", "", ".", "..", "b.c", "u:p@x"]),
        st.sampled_from(["", "/", "/x", "/../x", "/./", "//y/", "/a b"]),
        st.sampled_from(
            [
                "",
                "?",
                "?region=x",
                "?endpoint=http://h:1",
                "?key=x",
                "?region=x&sig=1",
                "?a=b",
                "?account-name=shop",
                "#x",
            ]
        ),
    ),
)
ADDRESSES = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["http://", "https://", "", "ftp://"]),
        st.sampled_from(["pd", "127.0.0.1", "[::1]", "[", "a_b", "ü", "u@h", ""]),
        st.sampled_from([":2379", ":0", ":65535", ":65536", "", ":x"]),
        st.sampled_from(["", "/", "//", "/x", "?q"]),
    ),
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "metadata.name": st.from_regex(r"[a-z0-9A-][a-z0-9.-]{0,46}", fullmatch=True),
    "spec.paused": st.booleans() | TEXTS,
    "spec.restartNonce": NUMBERS,
    "spec.mode": st.sampled_from(["Throughput", "LowLatency", "throughput"]),
    "spec.upstream.pdAddresses": st.lists(ADDRESSES, max_size=3),
    "spec.upstream.clusterId": DIGITS,
    "spec.upstream.tls": st.fixed_dictionaries({"secretRef": st.just({"name": "tidb-client"})}),
    "spec.upstream.safepointTtl": DURATIONS,
    "spec.startTs": DIGITS,
    "spec.targetTs": DIGITS,
    "spec.timeZone": TEXTS,
    "spec.filter.rules": st.lists(TEXTS | st.sampled_from(["a.b", "!a.*", "#", " ", "@x", "[a].b"]), max_size=3),
    "spec.eventStore.quota": SIZES,
    "spec.state.uri": PLACES,
    "spec.sink.storage.uri": PLACES,
    "spec.sink.storage.protocol": st.sampled_from(["csv", "canal-json", "parquet", "avro"]),
    "spec.sink.storage.flushInterval": DURATIONS,
    "spec.sink.storage.fileSize": SIZES,
    "spec.sink.storage.fileIndexWidth": NUMBERS,
    "spec.sink.storage.terminator": st.sampled_from(["\r\n", "\n", "\r", "", "x"]),
    "spec.sink.storage.csv.quote": TEXTS,
    "spec.sink.storage.csv.delimiter": TEXTS,
    "spec.sink.storage.csv.null": TEXTS,
    "spec.sink.storage.canalJson.contentCompatible": st.booleans(),
    "spec.sink.storage.credentials.secretRef.name": TEXTS | st.sampled_from(["a.b", "a-", "A"]),
    "spec.sink.blackhole": st.just({}),
    "spec.spark.image": TEXTS,
    "spec.spark.pullers.count": NUMBERS,
    "spec.spark.executor.instances": NUMBERS,
    "spec.spark.executor.cores": NUMBERS,
    "spec.spark.driver.memory": SIZES,
    "spec.lagThreshold": DURATIONS,
}
#: What only a parser can judge: the model may refuse there what the API server takes.
DEEPER = ("spec.filter.rules", "spec.state.uri", "spec.sink.storage.uri")
CHANGES = st.fixed_dictionaries({}, optional=FIELDS).filter(bool) | st.sampled_from(sorted(FIELDS)).flatmap(
    lambda path: st.fixed_dictionaries({path: FIELDS[path]})
)


@settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(changes=CHANGES)
def test_the_model_and_the_api_server_agree(shop: Namespace, changes: dict[str, Any]) -> None:
    resource = _changed(CORPUS["base"], changes)
    answer = _create(shop, resource)
    problems = list(_problems(resource))
    if answer.status == 201:
        unexpected = [line for line in problems if not line.startswith(DEEPER)]
        assert unexpected == [], "the API server took what the model refuses"
    else:
        assert answer.status in (400, 422), answer.body
        assert problems, f"the model took what the API server refuses: {answer.body['message']}"


def _problems(resource: dict[str, Any]) -> Iterator[str]:
    try:
        parse(json.dumps(resource))
    except InvalidResource as refused:
        yield from (problem.line for problem in refused.problems)
