"""Calling the leader of the region that holds a key, whoever that is by now (docs/design/tikv.md, Region errors).

It must never take a region error for an answer.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import grpc
import grpc.aio

from changefeed.errors import NeedsHuman, Transient
from changefeed.upstream.attempts import Attempts
from changefeed.upstream.tikv.client.channels import kept_out
from changefeed.upstream.tikv.client.leader import reason
from changefeed.upstream.tikv.client.pd import LocatedRegion, encode_bound
from changefeed.upstream.tikv.client.requests.to_store import Response, StoreRequest
from changefeed.upstream.tikv.tidb.memcomparable import decode_bytes
from changefeed.wire import errorpb_pb2, metapb_pb2

_CALL_TIMEOUT = 10.0


class Pd(Protocol):
    """What pulling and calls to stores need of PD; `PdClient` is one, those of tests are others."""

    @property
    def cluster_id(self) -> int: ...

    async def tso(self) -> int: ...

    async def gc_safepoint(self) -> int:
        """How far GC may have gone when the call began. Raises Transient or Unavailable."""
        ...

    async def scan_regions(self, start: bytes, end: bytes, /) -> Sequence[LocatedRegion]: ...

    async def store_address(self, store_id: int) -> str: ...

    def forget_store(self, store_id: int) -> None: ...

    def store_channel(self, address: str) -> grpc.aio.Channel: ...

    def lock_turn(self, store_id: int) -> asyncio.Semaphore: ...


@dataclass(frozen=True)
class Reaction:
    """What to do about a region error: look the region up again (and its store's address), then wait."""

    relocate: bool
    base: float
    cap: float
    forget_store: bool = False


_RELOCATE = Reaction(relocate=True, base=0.002, cap=0.5)
_REACTIONS = {
    "store_not_match": Reaction(relocate=True, base=0.002, cap=0.5, forget_store=True),
    "server_is_busy": Reaction(relocate=False, base=2.0, cap=10.0),
    "stale_command": Reaction(relocate=False, base=0.002, cap=1.0),
    "region_not_initialized": Reaction(relocate=False, base=0.002, cap=1.0),
    "read_index_not_ready": Reaction(relocate=False, base=0.002, cap=0.5),
    "proposal_in_merging_mode": Reaction(relocate=False, base=0.002, cap=0.5),
    "max_timestamp_not_synced": Reaction(relocate=False, base=0.002, cap=0.5),
    "RecoveryInProgress": Reaction(relocate=True, base=0.1, cap=10.0),
    "is_witness": Reaction(relocate=True, base=1.0, cap=10.0),
    "disk_full": Reaction(relocate=False, base=0.5, cap=5.0),
}
_FLASHBACK = ("FlashbackInProgress", "FlashbackNotPrepared")
_LOST_CALL = Reaction(relocate=True, base=0.1, cap=2.0, forget_store=True)


def error_name(error: errorpb_pb2.Error) -> str:
    """The field that is set, or "unknown" when there is a message only."""
    return next((field.name for field, _ in error.ListFields() if field.name != "message"), "unknown")


def reaction_to(error: errorpb_pb2.Error) -> Reaction:
    """An unknown error relocates. Raises NeedsHuman during a flashback (rule 29)."""
    name = error_name(error)
    if name in _FLASHBACK:
        raise NeedsHuman(
            f"The cluster is running FLASHBACK ({name}): its history is being rewritten.",
            "Wait for it to finish, then start a new changefeed.",
        )
    if name == "server_is_busy" and error.server_is_busy.backoff_ms:
        wait = error.server_is_busy.backoff_ms / 1000
        return Reaction(relocate=False, base=wait, cap=wait)
    return _REACTIONS.get(name, _RELOCATE)


class RegionCalls:
    """A small region cache and the calls that go by it. For meta reads and locks, not for row data."""

    def __init__(self, pd: Pd) -> None:
        self._pd = pd
        self._regions: list[LocatedRegion] = []  # disjoint, by start_key

    async def send(
        self, key: bytes, build: Callable[[LocatedRegion], StoreRequest[Response]], attempts: Attempts
    ) -> tuple[Response, LocatedRegion]:
        """Call the region of the raw `key`, again and again until there is no region error.

        `build` makes the request for the region it is sent to.
        Raises Transient, Refused, NeedsHuman, InvalidRequest.
        """
        while True:
            with attempts.apart():
                region = await self._locate(key)
            try:
                response = await self._call(region, build(region), attempts)
            except grpc.aio.AioRpcError as error:
                why, then = f"store {region.leader_store_id}: {reason(error)}", _LOST_CALL
            except Transient as gone:
                why, then = gone.message.rstrip("."), _LOST_CALL
            else:
                if not response.HasField("region_error"):
                    return response, region
                why = f"region {region.id}: {error_name(response.region_error)} {response.region_error.message}".strip()
                then = reaction_to(response.region_error)
                if self._follow(region, response.region_error.not_leader.leader):
                    then = replace(then, relocate=False)
            if then.relocate:
                self._forget(region)
            if then.forget_store:
                self._pd.forget_store(region.leader_store_id)
            await attempts.pause(why, then.base, then.cap)

    async def _call(self, region: LocatedRegion, request: StoreRequest[Response], attempts: Attempts) -> Response:
        message = request.addressed(region, self._pd.cluster_id)
        store_id = region.leader_store_id
        address = await self._pd.store_address(store_id)
        channel = self._pd.store_channel(address)
        rpc: grpc.aio.UnaryUnaryMultiCallable[Any, Response] = channel.unary_unary(
            f"/tikvpb.Tikv/{request.method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=request.response.FromString,
        )
        try:
            async with self._pd.lock_turn(store_id) if request.settles_locks else nullcontext():
                return await rpc(message, timeout=max(0.1, min(_CALL_TIMEOUT, attempts.left)))
        except grpc.aio.AioRpcError as error:
            if refused := kept_out(f"Store {store_id} at {address}", "TiKV", error):
                raise refused from error
            raise

    async def _locate(self, key: bytes) -> LocatedRegion:
        position = encode_bound(key)
        at = bisect_right(self._regions, position, key=lambda region: region.start_key) - 1
        if at >= 0 and (not self._regions[at].end_key or position < self._regions[at].end_key):
            return self._regions[at]
        (found, *_) = await self._pd.scan_regions(key, key + b"\0")
        apart = [known for known in self._regions if not _overlap(known, found)]
        self._regions = sorted([*apart, found], key=lambda region: region.start_key)
        return found

    def _follow(self, region: LocatedRegion, leader: metapb_pb2.Peer) -> bool:
        """Use the leader that a not_leader error names, if it names one."""
        if not leader.id or region not in self._regions:
            return False
        moved = replace(region, leader_peer_id=leader.id, leader_store_id=leader.store_id)
        self._regions[self._regions.index(region)] = moved
        return True

    def _forget(self, region: LocatedRegion) -> None:
        self._regions = [known for known in self._regions if known != region]


def raw_end(region: LocatedRegion) -> bytes:
    """The raw key at which `region` ends; b"": nowhere."""
    return decode_bytes(region.end_key)[0] if region.end_key else b""


def _overlap(one: LocatedRegion, other: LocatedRegion) -> bool:
    return (not other.end_key or one.start_key < other.end_key) and (not one.end_key or other.start_key < one.end_key)
