"""What an installation of the operator sets for all its changefeeds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """`image`: the data plane's (CHANGEFEED_IMAGE). `state_uri`: of resources without one ("": they must have one)."""

    image: str
    state_uri: str = ""
    network_policy: bool = False
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
