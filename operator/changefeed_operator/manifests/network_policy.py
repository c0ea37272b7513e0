"""Who reaches a changefeed's pods, and what they reach: the least with which it works. Pure.

Hosts have names, and a NetworkPolicy knows addresses alone: what is outside the cluster is narrowed down by port, and
by address where the installation says which (`Network.to`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from changefeed_operator import api
from changefeed_operator.api import Json
from changefeed_operator.manifests import pods
from changefeed_operator.settings import Network
from changefeed_operator.target import Target

_DNS = 53
_PORTS = {"http": 80, "https": 443}


def network_policy(target: Target, network: Network, owner: Json) -> dict[str, Any]:
    """For the driver, the executors, and the jobs that hold and close."""
    ours = {"matchLabels": {api.NAME_LABEL: target.resource.metadata.name}}
    return {
        **pods.own_child(api.NETWORK_POLICY, target, owner),
        "spec": {
            "podSelector": ours,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                {"from": [{"podSelector": ours}]},
                _rule([pods.METRICS_PORT], "from", network.metrics_from),
            ],
            "egress": [
                {"to": [{"podSelector": ours}]},
                {"ports": [{"port": _DNS, "protocol": "UDP"}, *_tcp([_DNS])]},
                {"ports": _tcp(network.api_server_ports)},
                _rule([*_pd_ports(target), *network.tikv_ports, *_store_ports(target)], "to", network.to),
                *(dict(rule) for rule in network.extra_egress),
            ],
        },
    }


def _rule(ports: Iterable[int], way: Literal["from", "to"], peers: Sequence[Json]) -> dict[str, Any]:
    """Without peers: everybody, and the API server's own form of that has no list."""
    rule: dict[str, Any] = {"ports": _tcp(sorted(set(ports)))}
    return {**rule, way: [dict(peer) for peer in peers]} if peers else rule


def _tcp(ports: Iterable[int]) -> list[dict[str, Any]]:
    return [{"port": port, "protocol": "TCP"} for port in ports]


def _pd_ports(target: Target) -> Iterator[int]:
    for address in target.resource.spec.upstream.pd_addresses:
        yield _port(address)


def _store_ports(target: Target) -> Iterator[int]:
    """Of the stores of the log and of the sink: that of their endpoint, or of the cloud's."""
    sink = api.text_at(target.config, "spec", "sink", target.sink, "uri")
    for uri in filter(None, (target.state_uri, sink)):
        (endpoint,) = parse_qs(urlsplit(uri).query).get("endpoint", ["https:"])[-1:]
        yield _port(endpoint)


def _port(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or _PORTS.get(parts.scheme, _PORTS["https"])
