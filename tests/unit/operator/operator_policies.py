"""What a NetworkPolicy lets through, by the rules of networking.k8s.io/v1: for tests without a network to enforce it.

Policies add up. A pod that none selects, in a direction, takes and says everything; else what some rule of some policy
allows. Both ends must agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any


@dataclass(frozen=True)
class End:
    """A pod with its labels, or a host outside the cluster, which has no namespace."""

    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    address: str = "203.0.113.9"


def passes(policies: Sequence[Mapping[str, Any]], source: End, target: End, port: int, protocol: str = "TCP") -> bool:
    """Whether a connection from `source` reaches `port` of `target`."""
    return _allows(policies, source, target, "Egress", port, protocol) and _allows(
        policies, target, source, "Ingress", port, protocol
    )


def _allows(policies: Sequence[Mapping[str, Any]], pod: End, other: End, way: str, port: int, protocol: str) -> bool:
    peers = {"Ingress": "from", "Egress": "to"}[way]
    of_pod = [
        policy
        for policy in policies
        if pod.namespace == policy["metadata"]["namespace"]
        and way in policy["spec"]["policyTypes"]
        and _selects(policy["spec"]["podSelector"], pod.labels)
    ]
    rules = [rule for policy in of_pod for rule in policy["spec"].get(way.lower(), ())]
    return not of_pod or any(
        _has_port(rule, port, protocol)
        and (not rule.get(peers) or any(_is_peer(peer, other, pod.namespace) for peer in rule[peers]))
        for rule in rules
    )


def _has_port(rule: Mapping[str, Any], port: int, protocol: str) -> bool:
    ports = rule.get("ports")
    return not ports or any(
        each["protocol"] == protocol and each["port"] <= port <= each.get("endPort", each["port"]) for each in ports
    )


def _is_peer(peer: Mapping[str, Any], other: End, namespace: str) -> bool:
    if "ipBlock" in peer:
        return ip_address(other.address) in ip_network(peer["ipBlock"]["cidr"])
    if not other.namespace:
        return False
    if "namespaceSelector" in peer:
        is_there = _selects(peer["namespaceSelector"], other.namespace_labels)
    else:
        is_there = other.namespace == namespace
    return is_there and _selects(peer.get("podSelector", {}), other.labels)


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels", "matchExpressions"}
    holds = {"In": lambda value, values: value in values, "Exists": lambda value, _: value is not None}
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        holds[each["operator"]](labels.get(each["key"]), each.get("values"))
        for each in selector.get("matchExpressions", ())
    )
