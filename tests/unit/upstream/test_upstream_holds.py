"""Which holds PD says there are: the newer ones over gRPC, the older ones over HTTP."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from changefeed.errors import Unavailable
from changefeed.upstream.contract import Hold
from changefeed.upstream.tikv.client.holds import holds
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.client.tls import UpstreamTls
from changefeed.wire import pdpb_pb2
from changefeed_devcluster.certificates import Certificates
from upstream_fake import FakeCluster

NEVER = (1 << 63) - 1
#: As PD 8.5 answers; `gc_worker` never expires.
SERVICES = {
    "service_gc_safe_points": [
        {"service_id": "gc_worker", "expired_at": NEVER, "safe_point": 500},
        {"service_id": "changefeed-shop-orders-u-1", "expired_at": 61, "safe_point": 499},
        {"service_id": "changefeed-shop-lapsed-u-1", "expired_at": 1, "safe_point": 499},
    ],
    "gc_safe_point": 0,
}


@contextmanager
def http_pd(answer: str, status: int = 200, context: ssl.SSLContext | None = None) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/pd/api/v1/gc/safepoint"
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def old(cluster: FakeCluster) -> FakeCluster:
    """It knows no GetGCState. Its clock stands at one second."""
    cluster.gc_calls = ("GetGCSafePoint",)
    return cluster


async def test_newer_pds_tell_by_their_gc_state(pd: PdClient, cluster: FakeCluster) -> None:
    cluster.gc_calls = ("GetGCState",)
    cluster.barriers = [
        pdpb_pb2.GCBarrierInfo(barrier_id="b", barrier_ts=499, ttl_seconds=60),
        pdpb_pb2.GCBarrierInfo(barrier_id="a", barrier_ts=7, ttl_seconds=NEVER),
        pdpb_pb2.GCBarrierInfo(barrier_id="expired", barrier_ts=7),
    ]
    assert await holds(pd) == [Hold("a", 8, None), Hold("b", 500, 61_000)]


async def test_older_pds_tell_over_http(old: FakeCluster, pd: PdClient, monkeypatch: pytest.MonkeyPatch) -> None:
    with http_pd(json.dumps(SERVICES)) as address:
        monkeypatch.setattr(PdClient, "address", address)
        assert await holds(pd) == [Hold("changefeed-shop-orders-u-1", 500, 61_000), Hold("gc_worker", 501, None)]


async def test_older_pds_with_tls_want_our_certificate(
    old: FakeCluster, pd: PdClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Certificates(tmp_path, ["127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / "ca.crt"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(tmp_path / "server.pem")
    with http_pd(json.dumps(SERVICES), context=context) as address:
        monkeypatch.setattr(PdClient, "address", address)
        pd.tls = UpstreamTls(tmp_path / "client")
        assert [hold.name for hold in await holds(pd)] == ["changefeed-shop-orders-u-1", "gc_worker"]


@pytest.mark.parametrize(("answer", "status"), [("no such path", 404), ("<html>", 200), ('{"a": 1}', 200), ("[]", 200)])
async def test_a_pd_that_tells_nothing_is_named(
    old: FakeCluster, pd: PdClient, monkeypatch: pytest.MonkeyPatch, answer: str, status: int
) -> None:
    with http_pd(answer, status) as address:
        monkeypatch.setattr(PdClient, "address", address)
        with pytest.raises(Unavailable, match=f"PD at {address} does not list the holds"):
            await holds(pd)
