"""PD: what time it is, where the regions are, and how far GC may go (docs/design/tikv.md, PD).

It must never hand out a region list with a hole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import grpc
import grpc.aio

from changefeed.errors import Transient
from changefeed.model.tso import physical_ms
from changefeed.upstream.attempts import Attempts
from changefeed.upstream.tikv.client.leader import CALL_TIMEOUT, PdLeader, UnknownCall
from changefeed.upstream.tikv.client.requests import to_pd
from changefeed.upstream.tikv.client.timestamps import Timestamps
from changefeed.upstream.tikv.client.tls import NoAnswer, UpstreamTls
from changefeed.upstream.tikv.tidb.memcomparable import encode_bytes
from changefeed.wire import metapb_pb2, pdpb_pb2

#: PD that has restarted knows of a region's leader after that one's next heartbeat: up to 64 s later (measured).
LEADERS_PATIENCE = 90.0
_LEADERS_PAUSE = 2.0  # at most: many spans ask at once
_LOCK_TURNS = 2


@dataclass(frozen=True)
class LocatedRegion:
    """A region and where its leader is. Keys are ENCODED as PD has them; b"" is minus or plus infinity."""

    id: int
    start_key: bytes
    end_key: bytes
    conf_ver: int
    version: int
    leader_peer_id: int
    leader_store_id: int

    @classmethod
    def of(cls, region: metapb_pb2.Region, leader: metapb_pb2.Peer) -> LocatedRegion:
        epoch = region.region_epoch
        return cls(
            region.id, region.start_key, region.end_key, epoch.conf_ver, epoch.version, leader.id, leader.store_id
        )


class PdClient:
    """One cluster's PD, whoever leads it. Made by `connect`; for one event loop; safe for concurrent calls.

    Every call raises Transient when PD does not answer for `leader.PATIENCE` seconds, and NeedsHuman when it is another
    cluster's.
    """

    def __init__(self, addresses: Sequence[str], tls: UpstreamTls | None, cluster_id: int = 0) -> None:
        self.tls = tls
        self.leader = PdLeader(addresses, tls, cluster_id)
        self._timestamps = Timestamps(self.leader)
        self._stores: dict[int, str] = {}
        self._lock_turns: dict[int, asyncio.Semaphore] = {}

    @classmethod
    async def connect(
        cls, addresses: Sequence[str], deadline: float = 10.0, tls: UpstreamTls | None = None, cluster_id: int = 0
    ) -> PdClient:
        """Find the leader by way of any of `addresses` ("http://h:p", "https://h:p" or "h:p").

        `cluster_id`: whose PD it must be; 0: any, and from then on the one that answered.
        Waits up to `deadline` seconds for a PD that does not answer yet.
        Raises Unavailable, Refused (TLS), NeedsHuman (what answers is not a PD, or another cluster's), InvalidSpec.
        """
        pd = cls(addresses, tls, cluster_id)
        try:
            await pd.leader.wait(deadline)
        except BaseException:
            await pd.close()
            raise
        return pd

    @property
    def cluster_id(self) -> int:
        return self.leader.cluster_id

    @property
    def address(self) -> str:
        """`host:port` of the leader, as known."""
        return self.leader.target

    async def tso(self) -> int:
        """A new timestamp, higher than every one handed out before."""
        return await self._timestamps.get()

    async def pd_ms(self) -> int:
        """PD's clock, milliseconds since the epoch."""
        return physical_ms(await self.tso())

    async def scan_regions(self, start: bytes, end: bytes) -> list[LocatedRegion]:
        """The regions that cover the RAW range `[start, end)` (b"": unbounded) without a hole, in order, not clipped.

        Waits for holes to close, and for leaders to be elected and made known. Raises Transient after
        `LEADERS_PATIENCE` seconds without progress.
        """
        low, high = encode_bound(start), encode_bound(end)
        attempts = Attempts(f"Finding the regions of [{start.hex()}, {end.hex()})", LEADERS_PATIENCE)
        found: list[LocatedRegion] = []
        position = low
        while True:
            response = await self.leader.call(to_pd.regions(self.cluster_id, position, high))
            taken, problem = _without_holes(response.regions, position, first=not found)
            found += taken
            if found and (not found[-1].end_key or (high and found[-1].end_key >= high)):
                return found
            if taken:
                attempts.progress()
                position = taken[-1].end_key
            if problem:
                await attempts.pause(problem, cap=_LEADERS_PAUSE)
                if problem is _OVERLAP:
                    found, position = [], low

    async def store_address(self, store_id: int) -> str:
        """`host:port` of a store, from the cache or from PD.

        Raises Transient when there is no such store now or it does not answer, Refused (TLS).
        """
        if store_id not in self._stores:
            store = (await self.leader.call(to_pd.store(self.cluster_id, store_id))).store
            if store.state == metapb_pb2.Tombstone or not store.address:
                raise Transient(f"Store {store_id} is gone.", "Its regions have moved: look them up again.")
            try:
                await self.leader.channels.check(f"Store {store_id} at {store.address}", store.address, CALL_TIMEOUT)
            except NoAnswer as error:
                raise Transient(f"Store {store_id} at {store.address} does not answer: {error}.") from error
            self._stores[store_id] = store.address
        return self._stores[store_id]

    def forget_store(self, store_id: int) -> None:
        """Ask PD again for its address the next time."""
        self._stores.pop(store_id, None)

    def store_channel(self, address: str) -> grpc.aio.Channel:
        """The shared channel to a store at `host:port`; closed with this client."""
        return self.leader.channels.get(address)

    async def update_safepoint(self, service_id: str, ttl_seconds: int, safe_point: int) -> int:
        """Set (`ttl_seconds` > 0) a service's safepoint, or remove it (0). Gives the ts that PD answers.

        If that is above `safe_point`, the safepoint was not taken: see `client.safepoint`. It says no more than that:
        an older PD answers the least safepoint of all services, a newer one how far GC may go by now.
        """
        if ttl_seconds:
            request = to_pd.safepoint(self.cluster_id, service_id, ttl_seconds, safe_point)
        else:
            request = to_pd.no_safepoint(self.cluster_id, service_id)
        return (await self.leader.call(request)).min_safe_point

    async def gc_safepoint(self) -> int:
        """How far GC may have gone when the call began: history above it was whole then.

        See docs/design/tikv.md, Service safepoints.
        """
        try:
            return (await self.leader.call(to_pd.gc_safepoint(self.cluster_id))).safe_point
        except UnknownCall:
            return (await self.gc_state()).gc_safe_point

    async def gc_state(self) -> pdpb_pb2.GCState:
        """With its barriers. Raises UnknownCall: PDs before 9.0 have none."""
        return (await self.leader.call(to_pd.gc_state(self.cluster_id))).gc_state

    def lock_turn(self, store_id: int) -> asyncio.Semaphore:
        """To be held during a call to the store that settles a lock: this process makes two of them at a time."""
        return self._lock_turns.setdefault(store_id, asyncio.Semaphore(_LOCK_TURNS))

    async def close(self) -> None:
        await self._timestamps.close()
        await self.leader.close()


_OVERLAP = "regions were merged or split meanwhile"


def _without_holes(regions: Sequence[pdpb_pb2.Region], position: bytes, first: bool) -> tuple[list[LocatedRegion], str]:
    """Regions from `position` on up to the first one that can't be taken, and why that one can't ("" if there is none).

    `first`: nothing was taken before, so the first one may begin below `position`.
    """
    taken: list[LocatedRegion] = []
    for candidate in regions:
        region = LocatedRegion.of(candidate.region, candidate.leader)
        if region.start_key > position:
            return taken, f"no region covers {position.hex()}"
        if region.start_key < position and not (first and not taken):
            return taken, _OVERLAP
        if not region.leader_peer_id:
            return taken, f"region {region.id} has no leader"
        taken.append(region)
        position = region.end_key
        if not position:
            break
    return taken, "" if taken else f"no region covers {position.hex()}"


def encode_bound(raw: bytes) -> bytes:
    """A raw bound as PD has it; b"" stays: minus or plus infinity."""
    return encode_bytes(raw) if raw else b""
