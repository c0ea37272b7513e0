"""gRPC channels to PD and TiKV, as TiCDC opens them (facts, tikv-wire 2.11)."""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc
import grpc.aio

from changefeed.errors import InvalidSpec

OPTIONS = (
    ("grpc.max_receive_message_length", 256 << 20),
    ("grpc.max_send_message_length", 256 << 20),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 1_000),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 3_000),
    # The cluster is on our own network; a proxy that the environment names can't carry its long-lived streams.
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True)
class Tls:
    """PEM bytes; `ca` None: the system's roots. `cert` and `key`: where the cluster asks for a client certificate."""

    ca: bytes | None = None
    cert: bytes | None = None
    key: bytes | None = field(default=None, repr=False)


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


def open_channel(target: str, tls: Tls | None) -> grpc.aio.Channel:
    """A channel to `host:port`; `tls` None: without TLS. Nothing is dialled before the first call."""
    if tls is None:
        return grpc.aio.insecure_channel(target, OPTIONS)
    credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.cert)
    return grpc.aio.secure_channel(target, credentials, OPTIONS)
