"""What a driver's pod is told, and which changefeed may run in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from changefeed.errors import Fenced, InvalidSpec, NeedsHuman
from changefeed.owner.pod import Pod, check_pod, pod_of
from changefeed.spec.model import Changefeed
from changefeed.spec.parse import parse

ENVIRONMENT = {
    "CHANGEFEED_NAMESPACE": "shop",
    "CHANGEFEED_NAME": "orders",
    "CHANGEFEED_UID": "0f-1",
    "POD_IP": "10.1.2.3",
}


def changefeed(uid: str = "0f-1", state: str | None = "s3://state/x", sink: str = "s3://lake/orders") -> Changefeed:
    resource: dict[str, Any] = {
        "apiVersion": "changefeed.dev/v1alpha1",
        "kind": "Changefeed",
        "metadata": {"name": "orders", "namespace": "shop", "uid": uid},
        "spec": {
            "upstream": {"pdAddresses": ["http://127.0.0.1:2379"]},
            "state": {"uri": state} if state else {},
            "sink": {"storage": {"uri": sink, "protocol": "csv"}},
        },
    }
    return parse(json.dumps(resource))


def test_a_laptop_is_no_pod() -> None:
    assert pod_of({"POD_IP": "10.1.2.3"}) is None


def test_a_pod_knows_its_changefeed_and_its_address() -> None:
    pod = pod_of(ENVIRONMENT)
    assert pod == Pod("shop", "orders", "0f-1", "10.1.2.3")
    assert pod.every_address == "0.0.0.0"
    assert Pod("shop", "orders", "0f-1", "fd00::7").every_address == "::"
    check_pod(pod, changefeed())


@pytest.mark.parametrize("missing", ["CHANGEFEED_NAMESPACE", "CHANGEFEED_NAME", "POD_IP"])
def test_half_a_pod_says_what_is_missing(missing: str) -> None:
    with pytest.raises(NeedsHuman, match=f"lacks {missing} in"):
        pod_of({**ENVIRONMENT, missing: ""})


def test_rule_6_a_pod_of_a_namesake_made_anew_does_nothing() -> None:
    with pytest.raises(Fenced, match="uid 0f-1; its file is of shop/orders, uid 0f-2") as caught:
        check_pod(Pod("shop", "orders", "0f-1", "10.1.2.3"), changefeed(uid="0f-2"))
    assert caught.value.exit_code == 75


@pytest.mark.parametrize(
    ("places", "field"),
    [
        ({"state": "file:///state"}, "spec.state.uri: file:///state"),
        ({"state": None}, "spec.state.uri: none"),
        ({"sink": "file:///lake"}, "spec.sink.storage.uri: file:///lake"),
    ],
)
def test_folders_of_one_machine_are_refused_in_pods(places: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidSpec, match=field):
        check_pod(Pod("shop", "orders", "0f-1", "10.1.2.3"), changefeed(**places))
