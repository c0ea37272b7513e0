"""The minimal NetworkPolicy for a changefeed's pods, in both directions. Pure.

The spec has host names, but a NetworkPolicy only knows addresses: traffic to the outside is restricted by port, and by
address if the installation names them (`Network.to`).
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
_PORTS = {"http": 80, "https": 443, "mysql": 3306, "postgresql": 5432, "kafka": 9092}


def network_policy(target: Target, network: Network, owner: Json) -> dict[str, Any]:
    """Covers the driver, the executors, and the hold and close Jobs."""
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
                _rule([*_upstream_ports(target, network), *_store_ports(target)], "to", network.to),
                *(dict(rule) for rule in network.extra_egress),
            ],
        },
    }


def _rule(ports: Iterable[int], way: Literal["from", "to"], peers: Sequence[Json]) -> dict[str, Any]:
    """Without peers, anyone: the API server normalizes that to no list."""
    rule: dict[str, Any] = {"ports": _tcp(sorted(set(ports)))}
    return {**rule, way: [dict(peer) for peer in peers]} if peers else rule


def _tcp(ports: Iterable[int]) -> list[dict[str, Any]]:
    return [{"port": port, "protocol": "TCP"} for port in ports]


def _upstream_ports(target: Target, network: Network) -> Iterator[int]:
    upstream = target.resource.spec.upstream
    yield from map(_port, upstream.servers())
    if upstream.pd_addresses:
        yield from network.tikv_ports


def _store_ports(target: Target) -> Iterator[int]:
    """Ports of the log's store, and of the sink and what belongs to it. Brokers that advertise other ports need a rule
    of their own (changefeedEgress.extra).
    """
    sink = target.resource.spec.sink.section
    if target.state_uri:
        yield _store_port(target.state_uri)
    yield from map(_store_port, sink.stores())
    yield from map(_port, sink.servers())


def _store_port(uri: str) -> int:
    """The port of its endpoint, or of the cloud's."""
    (endpoint,) = parse_qs(urlsplit(uri).query).get("endpoint", ["https:"])[-1:]
    return _port(endpoint)


def _port(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or _PORTS.get(parts.scheme, _PORTS["https"])
