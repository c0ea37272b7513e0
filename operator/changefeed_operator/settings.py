"""What an installation of the operator sets for all its changefeeds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from changefeed.errors import InvalidSpec


@dataclass(frozen=True)
class Network:
    """What changefeeds' NetworkPolicies let through beside their own traffic, DNS, and what each spec names.

    As they stand in one: `metrics_from`, peers that may read metrics, and `to`, peers at which PD, TiKV and the stores
    are (none: everybody, anywhere); `extra_egress`, rules.
    """

    metrics_from: tuple[Mapping[str, Any], ...] = ()
    api_server_ports: tuple[int, ...] = (443, 6443)
    tikv_ports: tuple[int, ...] = (20160,)
    to: tuple[Mapping[str, Any], ...] = ()
    extra_egress: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Network:
        """From JSON with these names. Raises InvalidSpec."""
        known = [field.name for field in fields(cls)]
        try:
            said = json.loads(text)
        except ValueError:
            said = None
        if not isinstance(said, dict) or not said.keys() <= set(known):
            raise InvalidSpec("--network-policy", f"{text}; allowed: JSON with {', '.join(known)}")
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in said.items()})


@dataclass(frozen=True)
class Settings:
    """`image`: the data plane's (CHANGEFEED_IMAGE). `state_uri`: of resources without one ("": they must have one).

    `network`: None for no NetworkPolicies. `driver_role`: what drivers may do for their executors, a ClusterRole, or a
    Role in each namespace.
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
