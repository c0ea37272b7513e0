"""Who leads PD, and calls to it, whoever that comes to be (docs/design/tikv.md, PD).

It must never follow a PD of another cluster than the one it was connected to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

from changefeed.errors import InvalidSpec, NeedsHuman, Refused, Transient, Unavailable
from changefeed.upstream.attempts import Attempts
from changefeed.upstream.contract import PATIENCE_S
from changefeed.upstream.tikv.client.channels import Channels, kept_out, parse_address
from changefeed.upstream.tikv.client.requests import to_pd
from changefeed.upstream.tikv.client.requests.to_pd import Response
from changefeed.upstream.tikv.client.tls import NoAnswer, UpstreamTls
from changefeed.wire import pdpb_pb2

PATIENCE = PATIENCE_S
CALL_TIMEOUT = 3.0
_CHECK_ADDRESSES = "Check spec.upstream.pdAddresses and that PD runs and can be reached from here."
_NOT_A_PD = "Give PD's client address in spec.upstream.pdAddresses: by default port 2379, https:// where there is TLS."
_GIVE_TLS = "Name the Secret that holds PD's CA; commands take it with -f FILE and --secrets-dir DIR."
_NOT_GRPC = ("http1.x server", "Failed parsing HTTP/2")


class UnknownCall(NeedsHuman):
    """PD is too old, or too new, for the call."""


class PdLeader:
    """PD's members, and the one of them that leads. Channels to stores are shared by way of `channels`.

    `cluster_id`: whose PD it must be; 0: any, and from then on the one that answered.
    """

    def __init__(self, addresses: Sequence[str], tls: UpstreamTls | None, cluster_id: int) -> None:
        parsed = [parse_address(address) for address in addresses]
        if tls is None and any(secure for _, secure in parsed):
            raise InvalidSpec("spec.upstream.tls", "missing, and PD's address has https://", _GIVE_TLS)
        self._targets = {target: address for (target, _), address in zip(parsed, addresses, strict=True)}
        self._configured = tuple(self._targets)
        self.target = ""  #: `host:port`, as known
        self.channels = Channels(tls)
        self.cluster_id = cluster_id

    async def wait(self, deadline: float) -> None:
        """Find it, and wait up to `deadline` seconds for a PD that does not answer yet.

        Raises Unavailable, Refused, NeedsHuman.
        """
        attempts = Attempts("Finding PD's leader", deadline)
        while True:
            try:
                return await self.find(min(CALL_TIMEOUT, deadline))
            except Unavailable as unavailable:
                try:
                    await attempts.pause(unavailable.message, base=0.1)
                except Transient:
                    raise unavailable from None

    async def find(self, seconds: float = CALL_TIMEOUT) -> None:
        """Ask every known member who leads. Raises Unavailable, Refused, NeedsHuman."""
        not_pd: list[str] = []
        silent: list[str] = []
        refused: list[Refused] = []
        for target in list(self._targets):
            try:
                members = await self._members(target, seconds)
                if self._follow(members, target):
                    if self.target != target:
                        await self._check(self.target, seconds)
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
            await self.channels.check(f"PD at {address}", target, seconds)
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
        self.target = next(iter(known))
        self._targets = {self.target: known[self.target], **{t: self._targets[t] for t in self._configured}, **known}
        return True

    async def _send(self, target: str, request: to_pd.PdRequest[Response], seconds: float) -> Response:
        rpc: grpc.aio.UnaryUnaryMultiCallable[Any, Response] = self.channels.get(target).unary_unary(
            f"/pdpb.PD/{request.method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=request.response.FromString,
        )
        return await rpc(request.message, timeout=seconds)

    async def call(self, request: to_pd.PdRequest[Response]) -> Response:
        """One unary call to the leader, whoever that comes to be."""
        attempts = Attempts(f"PD's {request.method}", PATIENCE)
        while True:
            try:
                response = await self._send(self.target, request, min(CALL_TIMEOUT, attempts.left))
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
        why = f"PD at {self._targets[self.target]} does not answer: {_short(reason(error))}"
        if error.code() is grpc.StatusCode.FAILED_PRECONDITION and "cluster" in reason(error):
            raise NeedsHuman(
                f"PD at {self._targets[self.target]} is not of cluster {self.cluster_id}: {_short(reason(error))}.",
                _CHECK_ADDRESSES,
            ) from error
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise UnknownCall(
                f"PD at {self._targets[self.target]} does not know {method}.", "Upgrade the cluster to 7.5.0 or later."
            ) from error
        await self.relocate(why, attempts)

    async def relocate(self, why: str, attempts: Attempts) -> None:
        """Wait, then find the leader anew."""
        await attempts.pause(why, base=0.05)
        try:
            await self.find()
        except Unavailable as unavailable:
            await attempts.pause(unavailable.message.rstrip("."), base=0.1)
        except Refused as refused:
            # It may be mended meanwhile: a run asks again, and says at once what is to be mended.
            raise Transient(str(refused), retry_after=1.0) from refused

    def channel(self) -> grpc.aio.Channel:
        return self.channels.get(self.target)

    async def close(self) -> None:
        await self.channels.close()


class _NotAPd(Exception):
    """Something else answers at that address."""


class _NothingListens(Exception):
    """Nothing answers at that address."""


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
