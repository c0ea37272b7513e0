"""Whatever differs between a manifest and its object is found; what the API server adds is no difference."""

from __future__ import annotations

import copy
from typing import Any

import hypothesis.strategies as st
import pytest
from changefeed_operator import api
from changefeed_operator.decision.children.drift import differences
from changefeed_operator.manifests.children import children
from changefeed_operator.observe import Observed
from changefeed_operator.settings import Network, Settings
from changefeed_operator.target import wanted
from hypothesis import given, settings
from operator_world import NAME, SPEC

Manifest = dict[str, Any]
TEMPLATE = {"spec": {"nodeSelector": {"disk": "ssd"}, "tolerations": [{"key": "cdc", "operator": "Exists"}]}}


def _manifests() -> dict[str, Manifest]:
    spec = {**SPEC, "spark": {"driver": {"template": TEMPLATE}}}
    owner = {"metadata": {"name": NAME, "namespace": "shop", "uid": "u-1"}, "spec": spec}
    chosen = Settings(image="changefeed-spark:1", network=Network())
    target = wanted(Observed("shop", NAME, 0.0, owner), chosen).target
    assert target is not None
    made = children(target, chosen, owner, hold=True)
    return {manifest["kind"]: manifest for manifest in reversed(made)}


MANIFESTS = _manifests()


def _as_served(manifest: Manifest) -> Manifest:
    """As the API server gives it: with marks, addresses and defaults, and without empty members."""
    found = copy.deepcopy(manifest)
    found["metadata"] |= {"uid": "x", "resourceVersion": "1", "managedFields": [{"manager": "x"}], "generation": 1}
    found["metadata"]["labels"]["somebody"] = "else"
    found["metadata"]["ownerReferences"].append({"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "x"})
    if found["kind"] == "Service":
        found["spec"] |= {"clusterIPs": ["None"], "ipFamilies": ["IPv4"], "sessionAffinity": "None"}
    if found["kind"] == "ServiceAccount":
        found |= {"secrets": [{"name": "x"}], "imagePullSecrets": [{"name": "x"}]}
    if found["kind"] == "CronJob":
        spec = found["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        spec |= {"dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler"}
        spec["containers"][0] |= {"terminationMessagePath": "/dev/termination-log"}
        spec["containers"][0]["resources"]["limits"]["memory"] = "536870912"
        if not (marks := found["spec"]["jobTemplate"]["spec"]["template"]["metadata"]).get("annotations"):
            marks.pop("annotations", None)
    found["status"] = {"active": 1}
    return found


@pytest.mark.parametrize("kind", MANIFESTS)
def test_what_the_api_server_adds_is_no_difference(kind: str) -> None:
    assert differences(MANIFESTS[kind], _as_served(MANIFESTS[kind])) == ()


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all that is not empty, marks of ours aside."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    paths = [] if value in ({}, []) or not path else [path]
    return paths + [deeper for key, member in members for deeper in _paths(member, (*path, key))]


def _set_by_us(manifest: Manifest) -> list[tuple[Any, ...]]:
    marks = [("metadata", name) for name in ("name", "namespace", "annotations")]
    heads = [("apiVersion",), ("kind",), ("metadata",)]
    return [path for path in _paths(manifest) if path not in heads and not any(path[:2] == mark for mark in marks)]


OTHERS = st.sampled_from(["", "other", 0, 7, True, False, None, [], {}, [{"name": "x"}], {"x": "y"}])


@given(data=st.data())
@settings(deadline=None)
def test_any_change_of_what_is_set_is_found(data: st.DataObject) -> None:
    manifest = MANIFESTS[data.draw(st.sampled_from(sorted(MANIFESTS)))]
    found = _as_served(manifest)
    *above, last = data.draw(st.sampled_from(_set_by_us(manifest)))
    at: Any = found
    for key in above:
        at = at[key]
    was = at[last]
    if data.draw(st.booleans()):
        del at[last]
    else:
        at[last] = data.draw(OTHERS.filter(lambda other: other != was or type(other) is not type(was)))
    assert differences(manifest, found), (manifest["kind"], above, last)


@given(data=st.data())
@settings(deadline=None)
def test_anything_more_in_a_list_is_found(data: st.DataObject) -> None:
    manifest = MANIFESTS[data.draw(st.sampled_from(sorted(MANIFESTS.keys() - {"ConfigMap", "ServiceAccount"})))]
    lists = [path for path in _set_by_us(manifest) if isinstance(_at(manifest, path), list)]
    path = data.draw(st.sampled_from([path for path in lists if path != ("metadata", "ownerReferences")]))
    found = _as_served(manifest)
    _at(found, path).append(data.draw(st.sampled_from([{"name": "more"}, {}, "more"])))
    assert differences(manifest, found)


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


@given(
    manifest=st.sampled_from(sorted(MANIFESTS)).map(lambda kind: MANIFESTS[kind]),
    damage=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    ),
    data=st.data(),
)
@settings(deadline=None)
def test_nothing_that_the_api_server_may_give_makes_it_raise(
    manifest: Manifest, damage: Any, data: st.DataObject
) -> None:
    found = _as_served(manifest)
    *above, last = data.draw(st.sampled_from([path for path in _paths(found) if len(path) > 1]))
    _at(found, tuple(above))[last] = damage
    differences(manifest, found)


@pytest.mark.parametrize(
    ("kind", "change", "needs_new"),
    [
        ("Role", lambda found: found["rules"].append({"verbs": ["*"]}), False),
        ("Service", lambda found: found["spec"]["selector"].update(more="x"), False),
        ("Service", lambda found: found["spec"]["ports"].append({"name": "more", "port": 1}), True),
        ("Service", lambda found: found["spec"].update(clusterIP="10.0.0.1"), True),
        ("RoleBinding", lambda found: found["roleRef"].update(name="cluster-admin"), True),
        ("RoleBinding", lambda found: found["subjects"].append({"kind": "User", "name": "eve"}), False),
        ("ConfigMap", lambda found: found["data"].update(more="x"), True),
        ("ConfigMap", lambda found: found["metadata"]["labels"].pop(api.MANAGED_BY), False),
        ("CronJob", lambda found: _pod(found)["containers"].append({"name": "more"}), True),
        ("CronJob", lambda found: _pod(found)["tolerations"].append({"key": "more"}), False),
        ("NetworkPolicy", lambda found: found["spec"]["ingress"].append({}), False),
    ],
)
def test_what_applying_does_not_put_back_needs_a_new_object(kind: str, change: Any, needs_new: bool) -> None:
    found = _as_served(MANIFESTS[kind])
    change(found)
    assert any(each.needs_new for each in differences(MANIFESTS[kind], found)) == needs_new
    assert differences(MANIFESTS[kind], found)


def _pod(cron_job: Manifest) -> Manifest:
    spec: Manifest = cron_job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return spec
