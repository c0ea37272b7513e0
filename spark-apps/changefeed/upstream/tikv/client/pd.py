"""PD: who leads, what time it is, where the regions are, and how far GC may go (docs/design/tikv.md, PD).

It must never answer from another cluster than the one it was connected to, nor hand out a region list with a hole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from changefeed.errors import InvalidSpec, NeedsHuman, Refused, Transient, Unavailable
from changefeed.model.tso import physical_ms
from changefeed.upstream.attempts import Attempts
from changefeed.upstream.contract import PATIENCE_S
from changefeed.upstream.tikv.client.channels import Channels, kept_out, parse_address
from changefeed.upstream.tikv.client.requests import to_pd
from changefeed.upstream.tikv.client.requests.to_pd import Response
from changefeed.upstream.tikv.client.timestamps import Timestamps
from changefeed.upstream.tikv.client.tls import NoAnswer, UpstreamTls
from changefeed.upstream.tikv.tidb.memcomparable import encode_bytes
from changefeed.wire import metapb_pb2, pdpb_pb2

PATIENCE = PATIENCE_S
#: PD that has restarted knows of a region's leader after that one's next heartbeat: up to 64 s later (measured).
LEADERS_PATIENCE = 90.0
_LEADERS_PAUSE = 2.0  # at most: many spans ask at once
_CALL_TIMEOUT = 3.0
_LOCK_TURNS = 2
_CHECK_ADDRESSES = "Check spec.upstream.pdAddresses and that PD runs and can be reached from here."
_NOT_A_PD = "Give PD's client address in spec.upstream.pdAddresses: by default port 2379, https:// where there is TLS."
_GIVE_TLS = "Name the Secret that holds PD's CA; commands take it with -f FILE and --secrets-dir DIR."
_NOT_GRPC = ("http1.x server", "Failed parsing HTTP/2")


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

    Every call raises Transient when PD does not answer for `PATIENCE` seconds, NeedsHuman when it is another cluster's.
    """

    def __init__(self, addresses: Sequence[str], tls: UpstreamTls | None, cluster_id: int = 0) -> None:
        parsed = [parse_address(address) for address in addresses]
        if tls is None and any(secure for _, secure in parsed):
            raise InvalidSpec("spec.upstream.tls", "missing, and PD's address has https://", _GIVE_TLS)
        self._targets = {target: address for (target, _), address in zip(parsed, addresses, strict=True)}
        self._configured = tuple(self._targets)
        self.tls = tls
        self._channels = Channels(tls)
        self._leader = ""
        self._stores: dict[int, str] = {}
        self._lock_turns: dict[int, asyncio.Semaphore] = {}
        self._timestamps = Timestamps(self, PATIENCE)
        self.cluster_id = cluster_id

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
        attempts = Attempts("Finding PD's leader", deadline)
        try:
            while True:
                try:
                    await pd.find_leader(min(_CALL_TIMEOUT, deadline))
                except Unavailable as unavailable:
                    try:
                        await attempts.pause(unavailable.message, base=0.1)
                    except Transient:
                        raise unavailable from None
                else:
                    return pd
        except BaseException:
            await pd.close()
            raise

    async def find_leader(self, seconds: float = _CALL_TIMEOUT) -> None:
        """Ask every known member who leads. Raises Unavailable, Refused, NeedsHuman."""
        not_pd: list[str] = []
        silent: list[str] = []
        refused: list[Refused] = []
        for target in list(self._targets):
            try:
                members = await self._members(target, seconds)
                if self._follow(members, target):
                    if self._leader != target:
                        await self._check(self._leader, seconds)
                    return
                silent.append(f"PD at {self._targets[target]} knows no leader.")
            except _NotAPd as error:
                not_pd.append(str(error))
            except _NothingListens as error:
                silent.append(str(error))
            except Refused as error:
                refused.append(error)
        if refused and not silent:
            raise refused[0]
        if not_pd and not silent:
            raise NeedsHuman(" ".join(not_pd), _NOT_A_PD)
        raise Unavailable(" ".join([*silent, *not_pd, *(each.message for each in refused)]), _CHECK_ADDRESSES)

    async def _check(self, target: str, seconds: float) -> None:
        """Raises Refused, _NothingListens."""
        address = self._targets[target]
        try:
            await self._channels.check(f"PD at {address}", target, seconds)
        except NoAnswer as error:
            raise _NothingListens(f"PD at {address} does not answer: {error}.") from error

    async def _members(self, target: str, seconds: float) -> pdpb_pb2.GetMembersResponse:
        await self._check(target, seconds)
        address = self._targets[target]
        try:
            members = await self._send(target, to_pd.members(), seconds)
        except grpc.aio.AioRpcError as error:
            if refused := kept_out(f"PD at {address}", "PD", error):
                raise refused from error
            why = reason(error)
            if error.code() is grpc.StatusCode.UNIMPLEMENTED or any(sign in why for sign in _NOT_GRPC):
                raise _NotAPd(f"What answers at {address} is not a PD ({_short(why)}).") from error
            raise _NothingListens(f"PD at {address} does not answer: {_short(why)}.") from error
        if not members.header.cluster_id:
            raise _NotAPd(f"What answers at {address} is not a PD (it names no cluster).")
        return members

    def _follow(self, members: pdpb_pb2.GetMembersResponse, target: str) -> bool:
        """Take over what `members` says; False when there is no leader at the moment."""
        found = members.header.cluster_id
        if self.cluster_id and found != self.cluster_id:
            raise NeedsHuman(
                f"PD at {self._targets[target]} belongs to cluster {found}, not to {self.cluster_id}.",
                "Point all of spec.upstream.pdAddresses at the changefeed's own cluster.",
            )
        if not members.leader.client_urls:
            return False
        self.cluster_id = found
        urls = [url for member in (members.leader, *members.members) for url in member.client_urls[:1]]
        known = {parse_address(url)[0]: url for url in urls}
        self._leader = next(iter(known))
        self._targets = {self._leader: known[self._leader], **{t: self._targets[t] for t in self._configured}, **known}
        return True

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
            response = await self._call(to_pd.regions(self.cluster_id, position, high))
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
            store = (await self._call(to_pd.store(self.cluster_id, store_id))).store
            if store.state == metapb_pb2.Tombstone or not store.address:
                raise Transient(f"Store {store_id} is gone.", "Its regions have moved: look them up again.")
            try:
                await self._channels.check(f"Store {store_id} at {store.address}", store.address, _CALL_TIMEOUT)
            except NoAnswer as error:
                raise Transient(f"Store {store_id} at {store.address} does not answer: {error}.") from error
            self._stores[store_id] = store.address
        return self._stores[store_id]

    def forget_store(self, store_id: int) -> None:
        """Ask PD again for its address the next time."""
        self._stores.pop(store_id, None)

    def store_channel(self, address: str) -> grpc.aio.Channel:
        """The shared channel to a store at `host:port`; closed with this client."""
        return self._channels.get(address)

    async def update_safepoint(self, service_id: str, ttl_seconds: int, safe_point: int) -> int:
        """Set (`ttl_seconds` > 0) a service's safepoint, or remove it (0). Gives the ts that PD answers.

        If that is above `safe_point`, the safepoint was not taken: see `client.safepoint`. It says no more than that:
        an older PD answers the least safepoint of all services, a newer one how far GC may go by now.
        """
        if ttl_seconds:
            request = to_pd.safepoint(self.cluster_id, service_id, ttl_seconds, safe_point)
        else:
            request = to_pd.no_safepoint(self.cluster_id, service_id)
        return (await self._call(request)).min_safe_point

    async def gc_safepoint(self) -> int:
        """How far GC may have gone when the call began: history above it was whole then.

        See docs/design/tikv.md, Service safepoints.
        """
        try:
            return (await self._call(to_pd.gc_safepoint(self.cluster_id))).safe_point
        except UnknownCall:
            return (await self.gc_state()).gc_safe_point

    async def gc_state(self) -> pdpb_pb2.GCState:
        """With its barriers. Raises UnknownCall: PDs before 9.0 have none."""
        return (await self._call(to_pd.gc_state(self.cluster_id))).gc_state

    def lock_turn(self, store_id: int) -> asyncio.Semaphore:
        """To be held during a call to the store that settles a lock: this process makes two of them at a time."""
        return self._lock_turns.setdefault(store_id, asyncio.Semaphore(_LOCK_TURNS))

    async def _send(self, target: str, request: to_pd.PdRequest[Response], seconds: float) -> Response:
        rpc: grpc.aio.UnaryUnaryMultiCallable[Any, Response] = self._channels.get(target).unary_unary(
            f"/pdpb.PD/{request.method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=request.response.FromString,
        )
        return await rpc(request.message, timeout=seconds)

    async def _call(self, request: to_pd.PdRequest[Response]) -> Response:
        """One unary call to the leader, whoever that comes to be."""
        attempts = Attempts(f"PD's {request.method}", PATIENCE)
        while True:
            try:
                response = await self._send(self._leader, request, min(_CALL_TIMEOUT, attempts.left))
            except grpc.aio.AioRpcError as error:
                await self.recover(error, attempts, request.method)
                continue
            problem = response.header.error
            if problem.type == pdpb_pb2.OK:
                return response
            why = f"PD answers {pdpb_pb2.ErrorType.Name(problem.type)}: {problem.message}"
            if problem.type != pdpb_pb2.NOT_BOOTSTRAPPED:
                raise Transient(f"{request.method}: {why}", retry_after=1.0)
            await attempts.pause(why, base=0.1)

    async def recover(self, error: grpc.aio.AioRpcError, attempts: Attempts, method: str) -> None:
        """After a failed call to the leader: wait and find the leader anew, or raise what it means."""
        why = f"PD at {self._targets[self._leader]} does not answer: {_short(reason(error))}"
        if error.code() is grpc.StatusCode.FAILED_PRECONDITION and "cluster" in reason(error):
            raise NeedsHuman(
                f"PD at {self._targets[self._leader]} is not of cluster {self.cluster_id}: {_short(reason(error))}.",
                _CHECK_ADDRESSES,
            ) from error
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise UnknownCall(
                f"PD at {self._targets[self._leader]} does not know {method}.", "Upgrade the cluster to 7.5.0 or later."
            ) from error
        await self.relocate(why, attempts)

    async def relocate(self, why: str, attempts: Attempts) -> None:
        """Wait, then find the leader anew."""
        await attempts.pause(why, base=0.05)
        try:
            await self.find_leader()
        except Unavailable as unavailable:
            await attempts.pause(unavailable.message.rstrip("."), base=0.1)
        except Refused as refused:
            # It may be mended meanwhile: a run asks again, and says at once what is to be mended.
            raise Transient(str(refused), retry_after=1.0) from refused

    @property
    def leader(self) -> str:
        """`host:port` of the leader, as known."""
        return self._leader

    def leader_channel(self) -> grpc.aio.Channel:
        return self._channels.get(self._leader)

    async def close(self) -> None:
        await self._timestamps.close()
        await self._channels.close()


class _NotAPd(Exception):
    """Something else answers at that address."""


class UnknownCall(NeedsHuman):
    """PD is too old, or too new, for the call."""


class _NothingListens(Exception):
    """Nothing answers at that address."""


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


def reason(error: grpc.aio.AioRpcError) -> str:
    return error.details() or error.code().name


def _short(why: str) -> str:
    """The part of gRPC's text that a person wants."""
    for sign, said in (
        ("Connection refused", "connection refused"),
        ("ddress lookup", "its host name is not known"),
        ("SETTINGS frame", "it takes the connection, but says nothing"),
        ("Method not found", "it does not know PD's calls"),
        ("http1.x server", "it speaks HTTP/1, not gRPC"),
        ("Failed parsing HTTP/2", "it does not speak gRPC"),
        ("Socket closed", "it closes the connection, as a PD does that wants TLS (spec.upstream.tls)"),
        ("CERTIFICATE_VERIFY_FAILED", "its certificate is another one than a moment ago"),
        ("Deadline Exceeded", "no reply in time"),
    ):
        if sign in why:
            return said
    return why.rsplit("last error: ", 1)[-1].rstrip(".")[:200]
