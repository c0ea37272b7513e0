"""The address by which people know the upstream of a resource as it is stored; nothing heavy comes with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def upstream_address(spec: Mapping[str, Any]) -> str:
    """Return what `UpstreamSpec.address` says of a spec that may not be valid; "": it names none."""
    upstream = spec.get("upstream")
    addresses = upstream.get("pdAddresses") if isinstance(upstream, Mapping) else None
    return ", ".join(map(str, addresses)) if isinstance(addresses, list) else ""
