"""Harm to a running development cluster, and DDLs, from another process: `/devcluster.Control` on PD's port.

A request is a JSON object: `action`, and what it needs; keys are hex. The answer has `ok`, and the result or `error`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import grpc

from .cluster import LocalCluster
from .ddl.requests import do_ddl
from .pd.heartbeats import INTERVAL_S
from .pd.regions import ELECTION_S, Region

_SERVICE = "devcluster.Control"
HARM_METHOD, DDL_METHOD = f"/{_SERVICE}/Harm", f"/{_SERVICE}/Ddl"
_ANSWERED_S = 0.1
Arguments = Mapping[str, Any]
Answer = dict[str, Any]


def control_handler(cluster: LocalCluster) -> grpc.GenericRpcHandler:
    """The service, to be added to PD's server."""

    def method(do: Callable[[LocalCluster, str, Arguments], Answer]) -> grpc.RpcMethodHandler[bytes, bytes]:
        async def answered(body: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            try:
                request = json.loads(body)
                action = str(request.pop("action", ""))
                answer = {"ok": True, **await asyncio.to_thread(do, cluster, action, request)}
            except ValueError as error:
                answer = {"ok": False, "error": str(error)}
            return json.dumps(answer).encode()

        return grpc.unary_unary_rpc_method_handler(answered)

    return grpc.method_handlers_generic_handler(_SERVICE, {"Harm": method(do_harm), "Ddl": method(do_ddl)})


def do_harm(cluster: LocalCluster, action: str, arguments: Arguments) -> Answer:
    """Raises ValueError for an unknown or wrong request."""
    do = _ACTIONS.get(action)
    if do is None:
        raise ValueError(f"unknown harm {action!r}: one of {', '.join(_ACTIONS)}")
    try:
        return do(cluster, arguments) or {}
    except (KeyError, TypeError) as error:
        raise ValueError(f"harm {action!r} lacks or has a wrong argument: {error}") from error


def _regions(cluster: LocalCluster, given: Arguments) -> Answer:
    return _described(*cluster.regions.all())


def _split(cluster: LocalCluster, given: Arguments) -> Answer:
    return _described(*cluster.split(bytes.fromhex(given["key"])))


def _merge(cluster: LocalCluster, given: Arguments) -> Answer:
    return _described(cluster.merge(int(given["left"]), int(given["right"])))


def _transfer(cluster: LocalCluster, given: Arguments) -> Answer:
    return _described(cluster.transfer(int(given["region"]), int(given["store"])))


def _cut(cluster: LocalCluster, given: Arguments) -> None:
    cluster.cut(given.get("store"), int(given.get("messages", 0)))


def _kill(cluster: LocalCluster, given: Arguments) -> None:
    cluster.kill(int(given["store"]), _seconds(given), float(given.get("election", ELECTION_S)))


def _freeze_pd(cluster: LocalCluster, given: Arguments) -> None:
    cluster.freeze_pd(_seconds(given))


def _restart_pd(cluster: LocalCluster, given: Arguments) -> None:
    """Once this has been answered, on a connection that it breaks."""
    cluster.restart_pd(float(given.get("heartbeat", INTERVAL_S)), _ANSWERED_S)


def _upgrade(cluster: LocalCluster, given: Arguments) -> None:
    cluster.upgrade(given.get("store"))


def _watermark(cluster: LocalCluster, given: Arguments) -> Answer:
    gate, requests = cluster.watermarks.gate, cluster.watermarks.statuses.requests
    return {
        "stores": [
            {"id": id_, "version": gate.version(id_), "proposed": gate.spares_large(id_), "requests": requests[id_]}
            for id_ in cluster.regions.store_ids
        ]
    }


def _stall(cluster: LocalCluster, given: Arguments) -> None:
    cluster.stall(_seconds(given), given.get("store"))


def _stall_region(cluster: LocalCluster, given: Arguments) -> None:
    cluster.stall_region(int(given["region"]), _seconds(given))


def _delay(cluster: LocalCluster, given: Arguments) -> None:
    cluster.delay(float(given["by"]), _seconds(given), given.get("store"))


def _slow_scans(cluster: LocalCluster, given: Arguments) -> None:
    cluster.slow_scans(float(given["bytes_per_second"]), _seconds(given), given.get("store"))


def _congest(cluster: LocalCluster, given: Arguments) -> None:
    cluster.congest(_seconds(given), given.get("store"))


def _repeat(cluster: LocalCluster, given: Arguments) -> None:
    cluster.repeat(_seconds(given))


def _reorder(cluster: LocalCluster, given: Arguments) -> None:
    cluster.reorder(_seconds(given))


def _lock(cluster: LocalCluster, given: Arguments) -> Answer:
    return {"start_ts": str(cluster.lock(bytes.fromhex(given["key"]), _seconds(given)))}


def _abandon(cluster: LocalCluster, given: Arguments) -> Answer:
    key = bytes.fromhex(given["key"])
    if given.get("committed"):
        start_ts, commit_ts = cluster.abandon_secondary(key)
        return {"start_ts": str(start_ts), "commit_ts": str(commit_ts)}
    return {"start_ts": str(cluster.hold_lock(key, int(given.get("ttl_ms", 0))))}


def _heal(cluster: LocalCluster, given: Arguments) -> None:
    cluster.heal()


_ACTIONS: dict[str, Callable[[LocalCluster, Arguments], Answer | None]] = {
    "regions": _regions,
    "split": _split,
    "merge": _merge,
    "transfer": _transfer,
    "cut": _cut,
    "kill": _kill,
    "freeze-pd": _freeze_pd,
    "restart-pd": _restart_pd,
    "upgrade": _upgrade,
    "watermark": _watermark,
    "stall": _stall,
    "stall-region": _stall_region,
    "lock": _lock,
    "abandon": _abandon,
    "delay": _delay,
    "slow-scans": _slow_scans,
    "congest": _congest,
    "repeat": _repeat,
    "reorder": _reorder,
    "heal": _heal,
}


def _seconds(given: Arguments) -> float | None:
    seconds = given.get("seconds")
    return None if seconds is None else float(seconds)


def _described(*regions: Region) -> Answer:
    return {
        "regions": [
            {
                "id": region.id,
                "start": region.start.hex(),
                "end": region.end.hex(),
                "version": region.version,
                "leader_store": region.leader_store,
                "stores": [store for store, _ in region.peers],
            }
            for region in regions
        ]
    }
