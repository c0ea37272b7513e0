"""gRPC channels to PD and TiKV, as TiCDC opens them (docs/design/tikv.md, Channels)."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio

from changefeed.errors import InvalidSpec, Refused
from changefeed.upstream.tikv.client.tls import UpstreamTls, handshake
from changefeed.wire import channel

OPTIONS = (
    *channel.OPTIONS,
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),  # the one that counts, 60 s unless it is set
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 1_000),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 3_000),
    # The cluster is on our own network; a proxy that the environment names can't carry its long-lived streams.
    ("grpc.enable_http_proxy", 0),
)


_KEPT_OUT = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_WRONG_NAME = "Common name check fail"  # TiKV's word for it
_SHOWN = 400


def kept_out(who: str, server: str, error: grpc.aio.AioRpcError) -> Refused | None:
    """What a call has failed for, if it is our common name; None: it is not. `server`: what `who` is, PD or TiKV."""
    why = (error.details() or "").rstrip(".")
    if error.code() not in _KEPT_OUT and _WRONG_NAME not in why:
        return None
    return Refused(
        f"{who} does not let us in: {why[:_SHOWN] or error.code().name}.",
        f"Add the client certificate's common name to security.cert-allowed-cn of {server}, or use a certificate with "
        "a name of that list.",
    )


def parse_address(address: str) -> tuple[str, bool]:
    """(`host:port`, whether TLS is wanted) of "http://h:p", "https://h:p" or "h:p". Raises InvalidSpec."""
    scheme, separator, target = address.rpartition("://")
    host, colon, port = target.rstrip("/").rpartition(":")
    if (separator and scheme not in ("http", "https")) or not (host and colon and port.isdecimal()) or "@" in host:
        shown = "an address with credentials" if "@" in address else repr(address)
        raise InvalidSpec(
            "spec.upstream.pdAddresses",
            f"{shown} is not an address of a PD",
            "Write http://host:2379 or https://host:2379.",
        )
    return f"{host}:{port}", scheme == "https"


class Channels:
    """The channels to one cluster, one an address. `tls` None: without TLS.

    Nothing is dialled before the first call. With TLS an address must be checked before its channel is asked for.
    """

    def __init__(self, tls: UpstreamTls | None) -> None:
        self._tls = tls
        self._open: dict[str, grpc.aio.Channel] = {}
        self._made_of: dict[str, tuple[bytes, bytes | None, bytes | None]] = {}  # trusted, key, certificate
        self._replaced: dict[str, grpc.aio.Channel] = {}

    async def check(self, who: str, target: str, seconds: float) -> None:
        """To be called before the first call to `target`, and after a failed one. Without TLS it does nothing.

        It proves who answers at `target`, with the files as they are now; if they have changed, or the server's
        certificate where common names are asked for, the channel is a new one. Raises Refused, NoAnswer.
        """
        if self._tls is None:
            return
        identity = self._tls.read()
        peer = await handshake(who, target, self._tls, identity, seconds)
        # gRPC knows no list of names: so it is told to trust the one certificate that was found to bear one.
        trusted = peer.certificate if self._tls.allowed_common_names else identity.ca
        made_of = (trusted, identity.key, identity.certificate)
        if self._made_of.get(target) != made_of:
            self._made_of[target] = made_of
            if target in self._open:
                # Never closed, which would cancel what goes on over it: a channel that is let go of lets that end.
                # Kept until the next one is replaced, for calls that are just being made.
                self._replaced[target] = self._open[target]
            self._open[target] = grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(*made_of), OPTIONS)

    def get(self, target: str) -> grpc.aio.Channel:
        if target not in self._open:
            assert self._tls is None, "checked before"
            self._open[target] = grpc.aio.insecure_channel(target, OPTIONS)
        return self._open[target]

    async def close(self) -> None:
        await asyncio.gather(*(channel.close() for channel in (*self._open.values(), *self._replaced.values())))
        self._open.clear()
        self._replaced.clear()
