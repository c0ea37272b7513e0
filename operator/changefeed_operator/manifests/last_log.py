"""The ConfigMap that keeps the log of the last failed attempt. Pure.

The driver's pod has the same name in all attempts, so the next attempt would lose the previous one's log. The ConfigMap
lacks the changefeed's label, so passes don't read it. It is deleted with its owner.
"""

from __future__ import annotations

from typing import Any

from changefeed_operator import api
from changefeed_operator.api import Json

#: Bytes kept from the end of the log; a ConfigMap has room for 1 MiB.
KEPT_BYTES = 256 << 10


def last_log(name: str, owner: Json, attempt: int, log: str) -> dict[str, Any]:
    kept = log.encode(errors="replace")[-KEPT_BYTES:].decode(errors="ignore")
    return {
        "apiVersion": api.CONFIG_MAP.api_version,
        "kind": api.CONFIG_MAP.kind,
        "metadata": {
            "name": api.last_log_name(name),
            "namespace": api.text_at(owner, "metadata", "namespace"),
            "labels": {api.MANAGED_BY: api.OPERATOR},
            "ownerReferences": [
                {
                    "apiVersion": api.API_VERSION,
                    "kind": api.CHANGEFEED.kind,
                    "name": name,
                    "uid": api.uid_of(owner),
                }
            ],
        },
        "data": {"attempt": str(attempt), "log": kept},
    }
