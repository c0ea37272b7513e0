"""Which holds PD keeps on a cluster's history: its GC barriers, which PDs before 9.0 call service safepoints.

Only newer PDs list them over gRPC; the older ones do over HTTP.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any

from changefeed.errors import Unavailable
from changefeed.upstream.contract import Hold
from changefeed.upstream.tikv.client.leader import UnknownCall
from changefeed.upstream.tikv.client.pd import PdClient

_PATH = "/pd/api/v1/gc/safepoint"
_TIMEOUT_S = 5.0
_NEVER = (1 << 63) - 1


async def holds(pd: PdClient) -> list[Hold]:
    """Those that have not expired, by name. Raises Transient, Unavailable."""
    now_ms = await pd.pd_ms()
    try:
        found = [
            Hold(
                barrier.barrier_id,
                barrier.barrier_ts + 1,
                None if barrier.ttl_seconds == _NEVER else now_ms + barrier.ttl_seconds * 1000,
            )
            for barrier in (await pd.gc_state()).gc_barriers
        ]
    except UnknownCall:
        found = await asyncio.to_thread(_over_http, pd)
    alive = [hold for hold in found if hold.until_ms is None or hold.until_ms > now_ms]
    return sorted(alive, key=lambda hold: hold.name)


def _over_http(pd: PdClient) -> list[Hold]:
    host, _, port = pd.address.rpartition(":")
    connection: HTTPConnection
    if pd.tls is None:
        connection = HTTPConnection(host.strip("[]"), int(port), timeout=_TIMEOUT_S)
    else:
        connection = HTTPSConnection(host.strip("[]"), int(port), timeout=_TIMEOUT_S, context=_for_http(pd))
    try:
        connection.request("GET", _PATH)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise HTTPException(f"it answers {answer.status}")
        return [_of_service(each) for each in json.loads(text)["service_gc_safe_points"] or ()]
    except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        raise Unavailable(
            f"PD at {pd.address} does not list the holds on the cluster's history ({_PATH}): {error}.",
            "Look at PD; pd-ctl service-gc-safepoint lists them too.",
        ) from error
    finally:
        connection.close()


def _for_http(pd: PdClient) -> ssl.SSLContext:
    assert pd.tls is not None
    context = pd.tls.read().context
    context.set_alpn_protocols(["http/1.1"])
    return context


def _of_service(service: dict[str, Any]) -> Hold:
    expires_s = int(service["expired_at"])
    return Hold(
        service["service_id"], int(service["safe_point"]) + 1, None if expires_s == _NEVER else expires_s * 1000
    )
