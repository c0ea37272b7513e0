"""What is done to an operator and its changefeeds by others: one harm after another, drawn from a seed.

Children are edited and deleted, drivers and the operator killed, a namespace is forbidden, a quota refuses all pods,
the registry or the Spark operator is away for more than an hour of the operator's time. Every harm but an edit or a
deletion is taken back by whoever did it; nobody touches a Changefeed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from cluster_api import ApiRefused, Namespace
from cluster_changefeed_operator import RELEASE, ForkedOperator
from cluster_control_plane import ControlPlane
from cluster_running_drivers import RunningDrivers
from cluster_spark_operator import SparkOperator

WEIGHTS = {
    "edit": 8,
    "delete": 8,
    "kill driver": 4,
    "kill operator": 3,
    "forbid": 2,
    "quota": 2,
    "registry": 1,
    "spark operator": 1,
}
#: An outage of more than an hour, told in jumps: what waits for a time is due after each.
JUMPS, JUMP_S = 7, 600.0
_RBAC = "rbac.authorization.k8s.io/v1"
_OPERATORS = "app.kubernetes.io/managed-by=changefeed-operator"
_CORE = ("configmaps", "serviceaccounts", "services", "pods")
_GROUPS = {
    "roles": _RBAC,
    "rolebindings": _RBAC,
    "poddisruptionbudgets": "policy/v1",
    "networkpolicies": "networking.k8s.io/v1",
    "cronjobs": "batch/v1",
    "sparkapplications": "sparkoperator.k8s.io/v1beta2",
}
_EDITS: dict[str, dict[str, Any]] = {
    "roles": {"rules": []},
    "rolebindings": {"subjects": []},
    "serviceaccounts": {"automountServiceAccountToken": True},
    "services": {"spec": {"selector": {"app": "nobody"}}},
    "poddisruptionbudgets": {"metadata": {"labels": {"changefeed.dev/name": None}}},
    "networkpolicies": {"spec": {"ingress": []}},
    "cronjobs": {"spec": {"suspend": True}},
}


@dataclass
class Chaos:
    """`namespaces`: where there are changefeeds. `say`: takes a line for each step. `done`: how often each was."""

    cluster: ControlPlane
    operator: ForkedOperator
    namespaces: Sequence[Namespace]
    drivers: RunningDrivers
    spark_operator: SparkOperator
    rng: random.Random
    say: Callable[[str], None]
    done: Counter[str] = field(default_factory=Counter)

    def run(self, seconds: float) -> None:
        """Each kind once, then as the weights have it, until the time is over."""
        until = time.monotonic() + seconds
        first = list(WEIGHTS)
        self.rng.shuffle(first)
        while first or time.monotonic() < until:
            kind = first.pop() if first else self.rng.choices(tuple(WEIGHTS), tuple(WEIGHTS.values()))[0]
            self.step(kind)
            self._pause(0.5, 3.0)

    def end(self) -> None:
        """The longest wait between two tries is over."""
        self._restart(JUMP_S)

    def step(self, kind: str) -> None:
        what = _STEPS[kind](self)
        self.say(f"{kind}: {what}")
        self.done[kind] += 1

    def _pause(self, least: float, most: float) -> None:
        time.sleep(self.rng.uniform(least, most))  # for others to meet the harm, whatever they are at

    def _children(self, namespace: Namespace) -> list[tuple[str, str, dict[str, Any]]]:
        """(plural, path, object) of what belongs to changefeeds there."""
        found = []
        for plural in (*_CORE, *_GROUPS):
            path = namespace.core(plural) if plural in _CORE else namespace.of(_GROUPS[plural], plural)
            items = self.cluster.api.items(path, _OPERATORS)
            found += [(plural, f"{path}/{item['metadata']['name']}", item) for item in items]
        return sorted(found, key=lambda child: child[1])

    def edit(self) -> str:
        namespace = self.rng.choice(self.namespaces)
        editable = [child for child in self._children(namespace) if child[0] in (*_EDITS, "configmaps")]
        if not editable:
            return "nothing to edit"
        plural, path, found = self.rng.choice(editable)
        with _refusals_are_fine():
            if plural == "configmaps":
                self._replace_config(namespace, path, found)
            else:
                self.cluster.api.merge(path, _EDITS[plural])
        return path

    def _replace_config(self, namespace: Namespace, path: str, found: dict[str, Any]) -> None:
        """One that selects less, under the same marks: whoever believes it loses rows."""
        data = {name: text.replace("bank.*", "bank.accounts_0") for name, text in found.get("data", {}).items()}
        kept = ("name", "labels", "annotations", "ownerReferences")
        metadata = {name: found["metadata"][name] for name in kept if name in found["metadata"]}
        made = {**found, "metadata": metadata, "data": data}
        self.cluster.api.delete(path)
        self.cluster.api.create(namespace.core("configmaps"), made)

    def delete(self) -> str:
        children = self._children(self.rng.choice(self.namespaces))
        if not children:
            return "nothing to delete"
        _, path, _ = self.rng.choice(children)
        self.cluster.api.delete(path)
        return path

    def kill_driver(self) -> str:
        living = self.drivers.living
        if not living:
            return "none lives"
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.rng.choice(living), signal.SIGKILL)
        return "killed"

    def kill_operator(self) -> str:
        self._restart(jump_s=0.0)
        return "killed and started"

    def forbid(self) -> str:
        namespace = self.rng.choice(self.namespaces)
        path = namespace.of(_RBAC, "rolebindings")
        bindings = [each for each in self.cluster.api.items(path, f"app.kubernetes.io/instance={RELEASE}") if each]
        for binding in bindings:
            self.cluster.api.delete(f"{path}/{binding['metadata']['name']}")
        self._pause(3.0, 10.0)
        if self.rng.random() < 0.5:
            self._restart(jump_s=0.0)
            self._pause(1.0, 3.0)
        for binding in bindings:
            for gone in ("resourceVersion", "uid", "creationTimestamp", "managedFields"):
                binding["metadata"].pop(gone, None)
            self.cluster.api.create(path, binding)
        return f"{namespace.name}, {len(bindings)} bindings"

    def quota(self) -> str:
        namespace = self.rng.choice(self.namespaces)
        path = namespace.core("resourcequotas")
        self.cluster.api.create(path, {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}})
        self.kill_driver()
        self._pause(5.0, 10.0)
        self.cluster.api.delete(f"{path}/none")
        return namespace.name

    def registry(self) -> str:
        self.drivers.registry_away = True
        self._outage()
        self.drivers.registry_away = False
        return f"away for {JUMPS * JUMP_S:.0f} s of the operator's time"

    def without_spark_operator(self) -> str:
        self.spark_operator.stop()
        try:
            self._outage()
        finally:
            self.spark_operator.start()
        return f"away for {JUMPS * JUMP_S:.0f} s of the operator's time"

    def _outage(self) -> None:
        for pid in self.drivers.living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for _ in range(JUMPS):
            self._pause(2.0, 3.0)
            self._restart(JUMP_S)

    def _restart(self, jump_s: float) -> None:
        self.operator.kill()
        if jump_s:
            self.operator.jumps.append((time.time(), jump_s))
        self.operator.start()


_STEPS: dict[str, Callable[[Chaos], str]] = {
    "edit": Chaos.edit,
    "delete": Chaos.delete,
    "kill driver": Chaos.kill_driver,
    "kill operator": Chaos.kill_operator,
    "forbid": Chaos.forbid,
    "quota": Chaos.quota,
    "registry": Chaos.registry,
    "spark operator": Chaos.without_spark_operator,
}


@contextlib.contextmanager
def _refusals_are_fine() -> Iterator[None]:
    """What has gone meanwhile, or may not be changed, is not."""
    try:
        yield
    except ApiRefused as refused:
        if refused.status not in (404, 409, 422):
            raise
