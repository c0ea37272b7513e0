"""A changefeed's NetworkPolicy: what its pods need passes, everything else does not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from changefeed.errors import InvalidSpec
from changefeed_operator.manifests.application import application
from changefeed_operator.manifests.children import children
from changefeed_operator.observe import Observed
from changefeed_operator.settings import Network, Settings
from changefeed_operator.target import wanted
from operator_policies import End, passes
from operator_world import NAME, SPEC

MONITORING = {"kubernetes.io/metadata.name": "monitoring"}
NETWORK = Network(({"namespaceSelector": {"matchLabels": MONITORING}},))
OUTSIDE = End()
PROMETHEUS = End("monitoring", {"app": "prometheus"}, MONITORING, "10.88.1.1")
NEIGHBOUR = End("shop", {"app": "web"}, {"kubernetes.io/metadata.name": "shop"}, "10.88.2.1")


def _made(network: Network | None = NETWORK, **spec: Any) -> tuple[list[dict[str, Any]], End, End]:
    """The NetworkPolicies of a changefeed, its driver, and one of its executors."""
    owner = {"metadata": {"name": NAME, "namespace": "shop", "uid": "u-1"}, "spec": {**SPEC, **spec}}
    settings = Settings("image", network=network)
    target = wanted(Observed("shop", NAME, 0.0, owner), settings).target
    assert target
    roles = application(target, settings, 1, owner)["spec"]
    driver, executor = (
        End("shop", {**roles[role]["labels"], "spark-role": role}, {"kubernetes.io/metadata.name": "shop"}, address)
        for role, address in (("driver", "10.88.3.1"), ("executor", "10.88.3.2"))
    )
    return (
        [each for each in children(target, settings, owner, hold=False) if each["kind"] == "NetworkPolicy"],
        driver,
        executor,
    )


def test_driver_and_executors_reach_each_other() -> None:
    policies, driver, executor = _made()
    for port in (7078, 7079, 7400, 45_001):
        assert passes(policies, executor, driver, port)
        assert passes(policies, driver, executor, port)


@pytest.mark.parametrize("port", [4040, 7078, 7079, 7400, 9464])
def test_nobody_else_reaches_them(port: int) -> None:
    policies, driver, executor = _made()
    of_another = End("shop", {**driver.labels, "changefeed.dev/name": "other"}, NEIGHBOUR.namespace_labels)
    of_another_namespace = End("bank", driver.labels, {"kubernetes.io/metadata.name": "bank"})
    for stranger in (NEIGHBOUR, of_another, of_another_namespace, OUTSIDE):
        assert not passes(policies, stranger, driver, port)
        assert not passes(policies, stranger, executor, port)


def test_metrics_are_for_monitoring_and_nothing_else_is() -> None:
    policies, driver, _ = _made()
    assert passes(policies, PROMETHEUS, driver, 9464)
    assert not passes(policies, PROMETHEUS, driver, 7078)
    everybody, driver, _ = _made(Network())
    assert passes(everybody, NEIGHBOUR, driver, 9464)


@pytest.mark.parametrize(
    ("spec", "open_ports"),
    [
        ({}, {2379, 443}),
        (
            {"upstream": {"pdAddresses": ["http://a:1379", "http://b:12379"]}},
            {1379, 12379, 443},
        ),
        (
            {
                "state": {"uri": "s3://state/x?endpoint=http://minio:9000"},
                "sink": {"storage": {"uri": "s3://lake/x?endpoint=https://ceph:8443&region=x", "protocol": "csv"}},
            },
            {2379, 9000, 8443},
        ),
        ({"upstream": {"tikv": {"pdAddresses": ["http://a:1379"]}}}, {1379, 443}),
        (
            {
                "upstream": {
                    "postgresql": {"host": "db", "database": "shop", "credentials": {"secretRef": {"name": "a"}}}
                }
            },
            {5432, 443},
        ),
        ({"sink": {"mysql": {"uri": "mysql://tidb:4000"}}}, {2379, 443, 4000}),
        ({"sink": {"mysql": {"uri": "mysql://db"}}}, {2379, 443, 3306}),
        (
            {
                "sink": {
                    "kafka": {
                        "uri": "kafka://a:19092,b:19093/orders",
                        "protocol": "avro",
                        "schemaRegistry": "http://registry:8081",
                        "largeMessages": {
                            "option": "claim-check",
                            "claimCheckUri": "s3://claims/y?endpoint=http://minio:9000",
                        },
                    }
                }
            },
            {2379, 443, 19092, 19093, 8081, 9000},
        ),
        (
            {
                "sink": {
                    "iceberg": {
                        "warehouse": "s3://lake/x?endpoint=http://minio:9000",
                        "catalog": {"uri": "postgresql://db/lake"},
                    }
                }
            },
            {2379, 443, 9000, 5432},
        ),
        (
            {"sink": {"iceberg": {"warehouse": "s3://lake/x", "catalog": {"uri": "https://catalog:8181/v1"}}}},
            {2379, 443, 8181},
        ),
        ({"sink": {"delta": {"uri": "s3://lake/x?endpoint=http://minio:9000"}}}, {2379, 443, 9000}),
        ({"sink": {"blackhole": {}}}, {2379, 443}),
    ],
)
def test_they_reach_what_the_spec_names_and_nothing_else(spec: dict[str, Any], open_ports: set[int]) -> None:
    policies, driver, executor = _made(**spec)
    always = {53, 443, 6443} | ({20160} if "postgresql" not in spec.get("upstream", {}) else set())
    for pod in (driver, executor):
        reached = {port for port in range(1, 32768) if passes(policies, pod, OUTSIDE, port)}
        assert reached == always | open_ports
        assert passes(policies, pod, NEIGHBOUR, 53, "UDP")
        assert not passes(policies, pod, OUTSIDE, 443, "UDP")


def test_an_installation_narrows_down_where_and_adds_what_else() -> None:
    proxy = {"to": [{"ipBlock": {"cidr": "198.51.100.7/32"}}], "ports": [{"port": 3128, "protocol": "TCP"}]}
    tidb = {"ipBlock": {"cidr": "10.0.0.0/8"}}
    network = Network(NETWORK.metrics_from, (6443,), (20161,), (tidb,), (proxy,))
    policies, driver, _ = _made(network)
    assert passes(policies, driver, End(address="10.1.2.3"), 20161)
    assert passes(policies, driver, End(address="10.1.2.3"), 443)
    assert not passes(policies, driver, OUTSIDE, 443)
    assert passes(policies, driver, End(address="198.51.100.7"), 3128)
    assert not passes(policies, driver, OUTSIDE, 3128)


def test_without_policies_everything_passes() -> None:
    policies, driver, _ = _made(None)
    assert policies == []
    assert passes(policies, OUTSIDE, driver, 7078)


def test_the_chart_tells_it_as_json() -> None:
    told = {"metrics_from": [], "api_server_ports": [6443], "tikv_ports": [1], "to": [], "extra_egress": []}
    assert Network.parse(json.dumps(told)) == Network((), (6443,), (1,))


@pytest.mark.parametrize("text", ["true", "{", '{"metrics_from": [], "ports": []}'])
def test_what_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpec, match="allowed: JSON with metrics_from, api_server_ports"):
        Network.parse(text)
