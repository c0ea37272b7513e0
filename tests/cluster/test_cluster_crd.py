"""The resource as the API server itself takes it: the CRD installs, and its rules are in force."""

from __future__ import annotations

import pytest
from cluster_api import ApiRefused, Namespace
from cluster_control_plane import ControlPlane

_CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/changefeeds.changefeed.dev"
pytestmark = pytest.mark.usefixtures("crd")


def _changefeed(name: str) -> dict[str, object]:
    spec = {
        "upstream": {"pdAddresses": ["http://pd:2379"]},
        "filter": {"rules": ["shop.*"]},
        "state": {"uri": "s3://state"},
        "sink": {"storage": {"uri": "s3://lake/orders", "protocol": "csv"}},
    }
    return {
        "apiVersion": "changefeed.dev/v1alpha1",
        "kind": "Changefeed",
        "metadata": {"name": name},
        "spec": spec,
    }


def test_the_crd_is_established(cluster: ControlPlane) -> None:
    conditions = cluster.api.get(_CRD)["status"]["conditions"]
    held = {found["type"]: found["status"] for found in conditions}

    assert (held["Established"], held["NamesAccepted"]) == ("True", "True")
    # A schema that breaks the rules of a structural one loses what it says.
    assert held.get("NonStructuralSchema", "False") == "False"


def test_a_changefeed_is_taken_and_shown(cluster: ControlPlane, namespace: Namespace) -> None:
    namespace.api.create(namespace.changefeeds(), _changefeed("orders"))

    shown = cluster.kubectl("get", "cf", "-n", namespace.name)

    assert shown.splitlines()[0].split() == ["NAME", "STATE", "READY", "CHECKPOINT", "SINK", "AGE"]
    assert shown.splitlines()[1].split()[0] == "orders"


@pytest.mark.parametrize("name", ["x" * 46, "1st", "a.b"])
def test_a_name_that_its_children_could_not_bear_is_refused(namespace: Namespace, name: str) -> None:
    with pytest.raises(ApiRefused) as refused:
        namespace.api.create(namespace.changefeeds(), _changefeed(name))

    assert refused.value.status == 422
