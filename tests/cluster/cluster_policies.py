"""NetworkPolicies enforced on the node's network: no network plugin that does it can be had from package registries.

`with Policies(cluster, network)`: every half a second the API server's policies, pods and namespaces become rules of
iptables, as such plugins write them. A packet that no policy lets through is dropped, so that who connects waits in
vain. What comes from the node itself passes, as with every plugin: the kubelet's probes do.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from cluster_api import CORE, ApiRefused
from cluster_control_plane import ControlPlane
from cluster_network import POD_BRIDGE, Network

_EVERY_S = 0.5
_POLICIES = "/apis/networking.k8s.io/v1/networkpolicies"
_GATES = ("egress", "ingress")  # chains that each packet from a pod passes, in this order
_PEERS = {"egress": "to", "ingress": "from"}
_OWN, _OTHER = {"egress": "source", "ingress": "destination"}, {"egress": "destination", "ingress": "source"}
#: Replies, and whatever else belongs to a connection that was let through.
_KNOWN = "--match conntrack --ctstate ESTABLISHED,RELATED --jump RETURN"
Json = Mapping[str, Any]


class Policies:
    """Runs in a thread; ends with the rules of its last look, which go with the network."""

    def __init__(self, cluster: ControlPlane, network: Network) -> None:
        self._cluster = cluster
        self._network = network
        self._rules = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._enforce, name="policies", daemon=True)

    def __enter__(self) -> Self:
        self._apply()
        for chain in ("FORWARD", "INPUT"):  # to other pods, and to this node
            for gate in reversed(_GATES):
                self._network.run(
                    *f"iptables --wait --insert {chain} --in-interface {POD_BRIDGE} --jump {gate}".split()
                )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _enforce(self) -> None:
        while not self._stopping.wait(_EVERY_S):
            try:
                self._apply()
            except (ApiRefused, OSError):  # a test has stopped the API server: what was last known holds
                continue

    def _apply(self) -> None:
        api = self._cluster.api
        namespaces = {each["metadata"]["name"]: each for each in api.items(f"{CORE}/namespaces")}
        pods = [pod for pod in api.items(f"{CORE}/pods") if _is_in_network(pod)]
        lines = _chains(api.items(_POLICIES), pods, namespaces)
        rules = "\n".join(["*filter", *lines, "COMMIT", ""])
        if rules != self._rules:
            command = [*self._network.enter, "iptables-restore", "--wait", "--noflush"]
            subprocess.run(command, input=rules, text=True, check=True, capture_output=True)
            self._rules = rules


def _is_in_network(pod: Json) -> bool:
    ends = ("Succeeded", "Failed")
    return (
        bool(pod["status"].get("podIP")) and pod["status"]["phase"] not in ends and not pod["spec"].get("hostNetwork")
    )


def _chains(policies: Sequence[Json], pods: Sequence[Json], namespaces: Mapping[str, Json]) -> Iterator[str]:
    """Yield lines for iptables-restore: both gates anew, and each pod's chains, named for its address."""
    gates = [f"--append {gate} {_KNOWN}" for gate in _GATES]
    rules: list[str] = []
    for gate in _GATES:
        yield f":{gate} - [0:0]"
        for pod in pods:
            own = [policy for policy in policies if _is_of(policy, pod, gate)]
            if own:
                address = pod["status"]["podIP"]
                chain = f"{gate}-{address}"
                yield f":{chain} - [0:0]"
                gates.append(f"--append {gate} --{_OWN[gate]} {address} --jump {chain}")
                allowed = _matches(own, gate, pod, pods, namespaces)
                rules += [f"--append {chain} {match} --jump RETURN" for match in allowed]
                rules.append(f"--append {chain} --jump DROP")
    yield from gates
    yield from rules


def _is_of(policy: Json, pod: Json, gate: str) -> bool:
    return (
        policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
        and gate in map(str.lower, policy["spec"]["policyTypes"])
        and _selects(policy["spec"]["podSelector"], pod)
    )


def _matches(
    policies: Sequence[Json], gate: str, pod: Json, pods: Sequence[Json], namespaces: Mapping[str, Json]
) -> Iterator[str]:
    """Yield matches for each packet that one of the policies lets through."""
    for policy in policies:
        for rule in policy["spec"].get(gate, ()):
            ports = list(_ports(rule, pod))
            for address in _addresses(rule.get(_PEERS[gate]), policy["metadata"]["namespace"], pods, namespaces):
                for port in ports:
                    yield f"{address and f'--{_OTHER[gate]} {address}'} {port}".strip()


def _ports(rule: Json, pod: Json) -> Iterator[str]:
    if not rule.get("ports"):
        yield ""
    containers = pod["spec"]["containers"]
    named = {port.get("name"): port["containerPort"] for each in containers for port in each.get("ports", ())}
    for each in rule.get("ports", ()):
        first = named.get(each["port"], each["port"])
        yield f"--protocol {each.get('protocol', 'TCP').lower()} --dport {first}:{each.get('endPort', first)}"


def _addresses(
    peers: Sequence[Json] | None, namespace: str, pods: Sequence[Json], namespaces: Mapping[str, Json]
) -> Iterator[str]:
    """Networks and addresses; one empty text for everybody."""
    if not peers:
        yield ""
    for peer in peers or ():
        if "ipBlock" in peer:
            assert not peer["ipBlock"].get("except"), f"not enforced here: {peer}"
            yield peer["ipBlock"]["cidr"]
            continue
        for pod in pods:
            home = pod["metadata"]["namespace"]
            if "namespaceSelector" in peer:
                is_there = _selects(peer["namespaceSelector"], namespaces[home])
            else:
                is_there = home == namespace
            if is_there and _selects(peer.get("podSelector", {}), pod):
                yield pod["status"]["podIP"]


def _selects(selector: Json, thing: Json) -> bool:
    """`thing`: a pod or a namespace."""
    assert selector.keys() <= {"matchLabels"}, f"not enforced here: {selector}"
    wanted: Mapping[str, str] = selector.get("matchLabels", {})
    return wanted.items() <= thing["metadata"].get("labels", {}).items()
