"""The address by which people know the upstream of a resource as it is stored; nothing heavy comes with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PORT = 5432


def upstream_address(spec: Mapping[str, Any]) -> str:
    """Return what `UpstreamSpec.address` says of a spec that may not be valid; "": it names none."""
    upstream = _mapping_at(spec, "upstream")
    if postgresql := _mapping_at(upstream, "postgresql"):
        host, database = (postgresql.get(field, "") for field in ("host", "database"))
        return postgresql_address(host, postgresql.get("port", _PORT), database)
    addresses = (_mapping_at(upstream, "tikv") or upstream).get("pdAddresses")
    return ", ".join(map(str, addresses)) if isinstance(addresses, list) else ""


def postgresql_address(host: object, port: object, database: object) -> str:
    """Say where a database is, without a user."""
    named = f"[{host}]" if ":" in str(host) else host
    return f"postgresql://{named}:{port}/{database}"


def _mapping_at(members: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = members.get(name)
    return found if isinstance(found, Mapping) else {}
