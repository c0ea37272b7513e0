"""The puller task against an owner and the development cluster: reports, drain, fencing."""

from __future__ import annotations

import asyncio
import datetime
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlparse

import grpc
import grpc.aio
import pyarrow as pa
import pytest
from changefeed.errors import Fenced, NeedsHuman, Unavailable
from changefeed.objectstore import Location
from changefeed.objectstore.patience import REQUESTS
from changefeed.puller.task import Limits, address_towards, run_puller
from changefeed.upstream.tikv.access import TikvAccess
from changefeed.upstream.tikv.client.tls import UpstreamTls
from changefeed.wire import owner_pb2
from changefeed.wire.owner import SERVER_NAME, OwnerAddress, RunKey
from changefeed_devcluster.certificates import Certificates, retire, rotate
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.store.txn import Mutation, Op
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from puller_fake_owner import DEADLINE, heard

START, END = b"t\x80\0\0\0\0\0\0\x09_r", b"t\x80\0\0\0\0\0\0\x09_s"


Context = grpc.aio.ServicerContext[owner_pb2.Report, owner_pb2.Command]


@pytest.fixture
def cluster() -> Iterator[DevCluster]:
    with DevCluster(stores=2, min_ts_interval=0.05) as running:
        yield running


@pytest.fixture(scope="module")
def certificate() -> tuple[bytes, bytes]:
    """(certificate, private key), PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, SERVER_NAME)])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return signed.public_bytes(serialization.Encoding.PEM), private


class Owner:
    """The other end of the stream: sends commands, keeps what is reported."""

    def __init__(self) -> None:
        self.commands: asyncio.Queue[owner_pb2.Command | grpc.StatusCode | None] = asyncio.Queue()
        self.segments: list[owner_pb2.SegmentMeta] = []
        self.resolved: dict[int, owner_pb2.Resolved] = {}
        self.metrics: dict[str, float] = {}
        self.pullers: set[int] = set()
        self.changed = asyncio.Event()

    async def puller(self, reports: AsyncIterator[owner_pb2.Report], context: Context) -> None:
        assert dict(context.invocation_metadata() or ())["authorization"] == "Bearer secret"
        reader = asyncio.create_task(self._read(reports))
        while (command := await self.commands.get()) is not None:
            if isinstance(command, grpc.StatusCode):
                reader.cancel()
                await context.abort(command, "epoch 3 is not 4")
            await context.write(command)
        reader.cancel()
        await context.write(owner_pb2.Command(end=owner_pb2.End()))
        await asyncio.sleep(DEADLINE)  # until the puller leaves

    async def _read(self, reports: AsyncIterator[owner_pb2.Report]) -> None:
        async for report in reports:
            self.pullers.add(report.puller)
            self.segments += report.segments
            for resolved in report.resolved:
                # Rule 2: a resolved-ts comes with, or after, all the segments that it stands on.
                assert resolved.last_segment <= len(self.segments)
                self.resolved[resolved.sub_id] = resolved
            self.metrics |= {metric.name: metric.value for metric in report.metrics}
            if report.segments:
                self.commands.put_nowait(heard(len(self.segments)))
            self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    def subscribe(self, sub_id: int, start_ts: int) -> None:
        subscribe = owner_pb2.Subscribe(
            sub_id=sub_id, span_id=70 + sub_id, start_key=START, end_key=END, start_ts=start_ts
        )
        self.commands.put_nowait(owner_pb2.Command(subscribe=subscribe))

    def rows(self, sub_id: int) -> set[tuple[bytes, int]]:
        """(key, commit_ts) in the reported segments up to the last one that counts."""
        found = set()
        for meta in self.segments[: self.resolved[sub_id].last_segment]:
            reader = pa.ipc.open_file(pa.memory_map(urlparse(meta.uri).path))
            for span in (span for span in meta.spans if span.sub_id == sub_id):
                for index in range(span.first_batch, span.end_batch):
                    batch = reader.get_batch(index)
                    found |= set(zip(batch["key"].to_pylist(), batch["commit_ts"].to_pylist(), strict=True))
        return found


@asynccontextmanager
async def owning(
    cluster: DevCluster, certificate: tuple[bytes, bytes], state: Path, limits: Limits, tls: UpstreamTls | None = None
) -> AsyncIterator[tuple[Owner, asyncio.Future[None]]]:
    owner = Owner()
    handler = grpc.stream_stream_rpc_method_handler(
        owner.puller,
        request_deserializer=owner_pb2.Report.FromString,
        response_serializer=owner_pb2.Command.SerializeToString,
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("changefeed.Owner", {"Puller": handler})])
    pem, private = certificate
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(private, pem)]))
    await server.start()
    address = OwnerAddress(f"127.0.0.1:{port}", 3, "ab", "secret", pem, RunKey(private, pem))
    upstream = TikvAccess((cluster.pd_address,), tls, cluster.cluster_id)
    task = asyncio.ensure_future(
        asyncio.to_thread(run_puller, address, 5, "puller-5-0", upstream, Location(state.as_uri()), limits)
    )
    try:
        yield owner, task
    finally:
        owner.commands.put_nowait(None)
        await asyncio.wait([task], timeout=DEADLINE)
        await server.stop(None)


async def resolve(cluster: DevCluster, owner: Owner, sub_id: int) -> None:
    now = cluster.oracle.next()
    await owner.until(lambda: sub_id in owner.resolved and owner.resolved[sub_id].ts >= now)


def transaction(cluster: DevCluster, numbers: range) -> set[tuple[bytes, int]]:
    keys = [START + (number | 1 << 63).to_bytes(8, "big") for number in numbers]
    start_ts = cluster.oracle.next()
    cluster.store.prewrite([Mutation(Op.PUT, key, bytes(500)) for key in keys], keys[0], start_ts)
    commit_ts = cluster.oracle.next()
    cluster.store.commit(keys, start_ts, commit_ts)
    return {(key, commit_ts) for key in keys}


async def test_rule_2_rows_below_a_reported_resolved_ts_stand_in_the_reported_segments(
    cluster: DevCluster, certificate: tuple[bytes, bytes], tmp_path: Path
) -> None:
    limits = Limits(quota_bytes=20_000, roll_bytes=5_000, roll_interval=0.02)
    start_ts = cluster.oracle.next()
    async with owning(cluster, certificate, tmp_path, limits) as (owner, task):
        owner.subscribe(1, start_ts)
        written = set()
        for step in range(20):
            written |= transaction(cluster, range(step * 10, step * 10 + 30))
            if step % 5 == 0:
                await resolve(cluster, owner, 1)
            if step == 10:
                later = cluster.oracle.next()
                owner.subscribe(2, later)
        await resolve(cluster, owner, 1)
        await resolve(cluster, owner, 2)
        assert [meta.seq for meta in owner.segments] == list(range(1, len(owner.segments) + 1))
        assert len(owner.segments) > 3
        assert owner.rows(1) == written
        assert owner.rows(2) == {(key, commit_ts) for key, commit_ts in written if commit_ts > later}
        assert owner.pullers == {5}
        owner.commands.put_nowait(owner_pb2.Command(release=owner_pb2.Release(sub_id=2)))
        active = "changefeed_puller_span_pipeline_active_subscriptions"
        await owner.until(lambda: owner.metrics.get(active) == 1)
        assert owner.metrics[REQUESTS] > 0, "writing segments"
        owner.commands.put_nowait(None)
        assert await task is None


async def test_rows_come_over_tls_through_a_rotation_of_all_certificates(
    certificate: tuple[bytes, bytes], tmp_path: Path
) -> None:
    """In the end nothing is left of the old ones: neither side takes them, and every stream was opened anew."""
    folder = tmp_path / "tls"
    secure = Certificates(folder, ["127.0.0.1"])
    with DevCluster(stores=2, min_ts_interval=0.05, certificates=secure, common_names=["changefeed"]) as cluster:
        start_ts = cluster.oracle.next()
        tls = UpstreamTls(folder / "client", ("devcluster",))
        async with owning(cluster, certificate, tmp_path, Limits(roll_interval=0.02), tls) as (owner, _):
            owner.subscribe(1, start_ts)
            written = transaction(cluster, range(30))
            await resolve(cluster, owner, 1)
            rotate(folder)
            await asyncio.to_thread(cluster.restart_pd, 0)
            written |= transaction(cluster, range(30, 60))
            await resolve(cluster, owner, 1)
            retire(folder)
            await asyncio.to_thread(cluster.restart_pd, 0)
            await asyncio.to_thread(cluster.cut)
            written |= transaction(cluster, range(60, 90))
            await resolve(cluster, owner, 1)
            assert owner.rows(1) == written


async def test_drain_writes_what_waits_at_once(
    cluster: DevCluster, certificate: tuple[bytes, bytes], tmp_path: Path
) -> None:
    start_ts = cluster.oracle.next()
    written = transaction(cluster, range(3))
    async with owning(cluster, certificate, tmp_path, Limits(roll_interval=3600.0)) as (owner, _):
        owner.subscribe(1, start_ts)
        inflight = "changefeed_puller_span_pipeline_inflight_bytes"
        await owner.until(lambda: owner.metrics.get(inflight, 0) > 0)
        assert owner.segments == []
        owner.commands.put_nowait(owner_pb2.Command(drain=owner_pb2.Drain()))
        await owner.until(lambda: 1 in owner.resolved and bool(owner.resolved[1].last_segment))
        assert owner.rows(1) == written


async def test_the_end_of_the_stream_ends_the_task_whatever_is_not_due_yet(
    cluster: DevCluster, certificate: tuple[bytes, bytes], tmp_path: Path
) -> None:
    start_ts = cluster.oracle.next()
    transaction(cluster, range(3))
    async with owning(cluster, certificate, tmp_path, Limits(roll_interval=3600.0)) as (owner, task):
        owner.subscribe(1, start_ts)
        await owner.until(lambda: owner.metrics.get("changefeed_puller_span_pipeline_inflight_bytes", 0) > 0)
        owner.commands.put_nowait(None)
        await asyncio.wait([task], timeout=DEADLINE)
        assert task.done()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (grpc.StatusCode.FAILED_PRECONDITION, Fenced),
        (grpc.StatusCode.UNAUTHENTICATED, Fenced),
        (grpc.StatusCode.INTERNAL, Unavailable),
    ],
)
async def test_stream_that_the_owner_breaks_ends_the_task(
    cluster: DevCluster,
    certificate: tuple[bytes, bytes],
    tmp_path: Path,
    status: grpc.StatusCode,
    error: type[Exception],
) -> None:
    async with owning(cluster, certificate, tmp_path, Limits()) as (owner, task):
        owner.subscribe(1, cluster.oracle.next())
        owner.commands.put_nowait(status)
        with pytest.raises(error, match="epoch 3 is not 4"):
            await asyncio.wait_for(task, DEADLINE)


@pytest.mark.parametrize(
    ("target", "address"),
    [("127.0.0.1:5", "127.0.0.1"), *([("[::1]:5", "::1")] if socket.has_dualstack_ipv6() else [])],
)
def test_a_puller_is_reached_where_it_reaches_the_owner(target: str, address: str) -> None:
    assert address_towards(target) == address


def test_a_puller_that_knows_no_way_to_the_owner_says_so() -> None:
    with pytest.raises(Unavailable, match=r"Cannot reach the owner at nobody\.invalid:5"):
        address_towards("nobody.invalid:5")


@pytest.mark.parametrize(
    ("upstream", "error", "said"),
    [
        (lambda pd, folder: TikvAccess((pd,), cluster_id=5), NeedsHuman, r"belongs to cluster \d+, not to 5"),
        (lambda pd, folder: TikvAccess((pd,), UpstreamTls(folder)), Unavailable, "ca.crt can't be read"),
    ],
    ids=["another cluster", "a Secret that is being replaced"],
)
def test_a_puller_takes_nothing_from_a_pd_that_is_not_the_changefeeds(
    cluster: DevCluster, tmp_path: Path, upstream: Callable[[str, Path], TikvAccess], error: type[Exception], said: str
) -> None:
    nobody = OwnerAddress("127.0.0.1:1", 3, "ab", "secret", b"", RunKey(b"", b""))
    with pytest.raises(error, match=said):
        run_puller(nobody, 5, "puller-5-0", upstream(cluster.pd_address, tmp_path), Location(tmp_path.as_uri()))
