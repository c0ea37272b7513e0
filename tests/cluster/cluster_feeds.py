"""The changefeeds of one namespace, as people handle them, and what can be seen of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cluster_api import Namespace
from cluster_history import History
from cluster_processes import READY_S, wait_until
from spark_applications import KUBEFLOW

SPEC: dict[str, Any] = {
    "upstream": {"pdAddresses": ["http://pd:2379"]},
    "state": {"uri": "s3://cdc-state"},
    "sink": {"storage": {"uri": "s3://lake/orders", "protocol": "csv"}},
}
_CORE_KINDS = ("pods", "configmaps", "serviceaccounts", "services")
_KINDS = {
    "roles": "rbac.authorization.k8s.io/v1",
    "rolebindings": "rbac.authorization.k8s.io/v1",
    "poddisruptionbudgets": "policy/v1",
    "networkpolicies": "networking.k8s.io/v1",
    "cronjobs": "batch/v1",
    "jobs": "batch/v1",
}

Status = dict[str, Any]


@dataclass(frozen=True)
class Feeds:
    """`history`: of all Changefeeds. `spark`: API group and version of SparkApplications."""

    namespace: Namespace
    history: History
    spark: str = KUBEFLOW

    def create(self, name: str, labels: Mapping[str, str] | None = None, **spec: Any) -> None:
        body = {"apiVersion": "changefeed.dev/v1alpha1", "kind": "Changefeed", "spec": {**SPEC, **spec}}
        metadata = {"name": name, "labels": dict(labels or {})}
        self.namespace.api.create(self.namespace.changefeeds(), {**body, "metadata": metadata})

    def edit(self, name: str, **spec: Any) -> None:
        """Merged into the spec; returns when the history has it, so that what is asked next is of this spec."""
        edited = self.namespace.api.merge(self.namespace.changefeeds(name), {"spec": spec})

        def is_seen() -> bool:
            found = self.history.latest(self.namespace.name, name) or {"metadata": {}}
            return bool(found["metadata"].get("generation", 0) >= edited["metadata"]["generation"])

        self.wait_for(is_seen, f"the edit of {name} is seen")

    def delete(self, name: str) -> None:
        """Returns when it is gone, as kubectl does."""
        self.ask_to_delete(name)
        wait_until(lambda: self.namespace.api.find(self.namespace.changefeeds(name)) is None, f"{name} is gone")

    def ask_to_delete(self, name: str) -> None:
        self.namespace.api.delete(self.namespace.changefeeds(name))

    def status(self, name: str) -> Status:
        """As it was last seen; empty when it is gone."""
        status: Status = (self.history.latest(self.namespace.name, name) or {}).get("status", {})
        return status

    def statuses(self, name: str) -> list[Status]:
        """All that was ever seen, the oldest first."""
        return [state.get("status", {}) for state in self.history.of(self.namespace.name, name)]

    def is_in(self, name: str, state: str) -> bool:
        """The operator says so of the spec as it stands."""
        found = self.history.latest(self.namespace.name, name) or {"metadata": {}}
        generation, status = found["metadata"].get("generation"), found.get("status", {})
        return bool(status.get("observedGeneration") == generation and status.get("state") == state)

    def wait_until(self, name: str, state: str, deadline_s: float = READY_S) -> Status:
        """The operator says so; the status."""
        self.wait_for(lambda: self.is_in(name, state), f"{name} is {state}", deadline_s)
        return self.status(name)

    def wait_for(self, condition: Callable[[], Any], what: str, deadline_s: float = READY_S) -> Any:
        """On what the history tells."""
        try:
            return self.history.wait_for(condition, what, deadline_s)
        except TimeoutError as late:
            last = {name: state.get("status") for name, state in self.history.all_latest(self.namespace.name).items()}
            raise TimeoutError(f"{late}; as they are: {last}") from late

    def wait_until_said(self, name: str, *texts: str, deadline_s: float = READY_S) -> Status:
        """The first status whose message holds all `texts`."""

        def found() -> Status | None:
            said = self.statuses(name)
            return next((status for status in said if all(text in status.get("message", "") for text in texts)), None)

        status: Status = self.wait_for(found, f"{name} says {texts}", deadline_s)
        return status

    def children(self, name: str) -> list[str]:
        """All that bears its name, as `pods/changefeed-a-driver`, sorted."""
        api, labels = self.namespace.api, f"changefeed.dev/name={name}"
        paths = {plural: self.namespace.core(plural) for plural in _CORE_KINDS}
        kinds = {"sparkapplications": self.spark, **_KINDS}
        paths |= {plural: self.namespace.of(group, plural) for plural, group in kinds.items()}
        return sorted(
            f"{plural}/{item['metadata']['name']}" for plural, path in paths.items() for item in api.items(path, labels)
        )

    def driver(self, name: str) -> dict[str, Any] | None:
        """Its pod."""
        return self.namespace.api.find(self.namespace.core("pods", f"changefeed-{name}-driver"))

    def application(self, name: str) -> dict[str, Any] | None:
        return self.namespace.api.find(self.namespace.of(self.spark, "sparkapplications", f"changefeed-{name}"))
