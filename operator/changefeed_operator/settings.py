"""Settings of an operator installation that apply to all its changefeeds."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from changefeed.errors import InvalidSpec
from changefeed.spec.names import API_VERSION, KIND
from changefeed.spec.parse import from_effective
from changefeed.spec.problem import InvalidResource

from changefeed_operator import api
from changefeed_operator.spark_operator.choice import KUBEFLOW
from changefeed_operator.spark_operator.contract import SparkApi

#: Fields of `spec.spark.driver` and `spec.spark.executor` that an installation may default.
_ROLES = ("driver", "executor")
_RESOURCES = ("cores", "memory")


@dataclass(frozen=True)
class Network:
    """What changefeeds' NetworkPolicies allow besides their own traffic, DNS and the endpoints in each spec.

    In NetworkPolicy syntax: `metrics_from`, peers that may scrape metrics; `to`, peers where PD, TiKV and the stores
    are (empty: anyone, anywhere); `extra_egress`, rules.
    """

    metrics_from: tuple[Mapping[str, Any], ...] = ()
    api_server_ports: tuple[int, ...] = (443, 6443)
    tikv_ports: tuple[int, ...] = (20160,)
    to: tuple[Mapping[str, Any], ...] = ()
    extra_egress: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Network:
        """Parse JSON with these names. Raises InvalidSpec."""
        known = [field.name for field in fields(cls)]
        try:
            said = json.loads(text)
        except ValueError:
            said = None
        if not isinstance(said, dict) or not said.keys() <= set(known):
            raise InvalidSpec("--network-policy", f"{text}; allowed: JSON with {', '.join(known)}")
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in said.items()})


Defaults = Mapping[str, Mapping[str, Any]]


def parse_defaults(text: str) -> Defaults:
    """Parse JSON such as `{"driver": {"memory": "4Gi"}, "executor": {"cores": 4}}`. Raises InvalidSpec."""
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if not _is_of(said, _ROLES) or not all(_is_of(resources, _RESOURCES) for resources in said.values()):
        allowed = f"JSON with {' and '.join(_ROLES)}, in each {' and '.join(_RESOURCES)}"
        raise InvalidSpec("--defaults", f"{text}; allowed: {allowed}")
    least = {"upstream": {"pdAddresses": ["http://pd:2379"]}, "sink": {"blackhole": {}}}
    resource = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "least"},
        "spec": {**least, "spark": said},
    }
    try:
        from_effective(resource)
    except InvalidResource as e:
        raise InvalidSpec("--defaults", "; ".join(problem.line for problem in e.problems)) from None
    return {role: dict(resources) for role, resources in said.items()}


def _is_of(value: object, names: Collection[str]) -> bool:
    return isinstance(value, dict) and value.keys() <= set(names)


@dataclass(frozen=True)
class Settings:
    """The operator's own settings.

    `image`: of the data plane (CHANGEFEED_IMAGE). `state_uri`: for resources without one ("": it is required).

    `network`: None for no NetworkPolicies. `driver_role`: what drivers may do for their executors, a ClusterRole, or a
    Role in each namespace. `defaults`: by role, defaults for fields of `spec.spark`.

    `spark`: of the Spark operator that the cluster has.
    """

    image: str
    state_uri: str = ""
    network: Network | None = None
    disruption_budget: bool = True
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    driver_role: str = "changefeed-operator-driver"
    driver_role_kind: Literal["ClusterRole", "Role"] = "ClusterRole"
    allow_privileged_templates: bool = False
    defaults: Defaults = field(default_factory=dict)
    spark: SparkApi = KUBEFLOW

    @property
    def child_kinds(self) -> tuple[api.Kind, ...]:
        """The kinds that belong to a changefeed, listed by `api.NAME_LABEL`."""
        return self.spark.kind, *api.CHILD_KINDS

    @property
    def kinds(self) -> Mapping[str, api.Kind]:
        """By name, the kinds that the operator writes."""
        return {**api.KINDS, api.APPLICATION: self.spark.kind}
