"""The puller task against an owner and the development cluster: segments, reports, drain, fencing."""

from __future__ import annotations

import asyncio
import datetime
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import grpc
import grpc.aio
import pyarrow as pa
import pytest
from changefeed.clock import Clock
from changefeed.errors import Fenced, NeedsHuman, Transient, Unavailable
from changefeed.eventstore import writer as segment_writer
from changefeed.eventstore.arena import can_share_memory
from changefeed.eventstore.flight import ArenaServer, RemoteArenas
from changefeed.eventstore.reader import MemoryGone, read_slice
from changefeed.eventstore.run_folder import RunFolder
from changefeed.eventstore.slices import SegmentSlice
from changefeed.model.rows import RAW_SCHEMA
from changefeed.objectstore import Location
from changefeed.objectstore.patience import REQUESTS
from changefeed.owner.pulling.known_files import Memory
from changefeed.owner.serving.certificate import self_signed
from changefeed.puller.task import Limits, PullerTask, address_towards, run_puller
from changefeed.upstream.contract import BlockedRegion, Data, FeedEvent, FeedMetrics, Resolved, Stopped
from changefeed.upstream.tikv.access import TikvAccess
from changefeed.upstream.tikv.client.tls import UpstreamTls
from changefeed.wire import owner_pb2
from changefeed.wire.owner import SERVER_NAME, TASK_NAME, OwnerAddress, RunKey
from changefeed_devcluster.certificates import Certificates, retire, rotate
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.store.txn import Mutation, Op
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from puller_fake_store import ManualClock

DEADLINE = 30.0
HOST = "here"
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


def heard(segment: int) -> owner_pb2.Command:
    return owner_pb2.Command(heard=owner_pb2.Heard(segment=segment))


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


class FakeFeed:
    """Does what it is told, and remembers; given as Upstream.feed, it keeps what a feed would call."""

    emit: Callable[[FeedEvent], Awaitable[None]]
    room: Callable[[], Awaitable[None]]
    scratch_folder: Path

    def __init__(self) -> None:
        self.said: list[str] = []
        self.told = asyncio.Event()
        self.metrics = FeedMetrics()

    def __call__(self, emit: Callable[[FeedEvent], Awaitable[None]], clock: object, **given: Any) -> Any:
        self.emit, self.room, self.scratch_folder = emit, given["room"], given["scratch_folder"]
        return self

    async def __aenter__(self) -> FakeFeed:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def subscribe(self, sub_id: int, *_: object) -> None:
        self._say(f"subscribe {sub_id}")

    def release(self, sub_id: int) -> None:
        self._say(f"release {sub_id}")

    def hold(self, sub_id: int) -> None:
        self._say(f"hold {sub_id}")

    def resume(self, sub_id: int) -> None:
        self._say(f"resume {sub_id}")

    def blocked(self) -> list[tuple[int, BlockedRegion]]:
        return []

    def stopped(self) -> None:
        return None

    def congested(self) -> list[Stopped]:
        return []

    def _say(self, what: str) -> None:
        self.said.append(what)
        self.told.set()

    async def until(self, what: str) -> None:
        while what not in self.said:
            self.told.clear()
            await self.told.wait()


class FakeCall:
    """An owner that says what it is told to, and reads reports; `silent`: it does not say what it has heard."""

    def __init__(self, silent: bool = False) -> None:
        self.silent = silent
        self.commands: asyncio.Queue[owner_pb2.Command | None] = asyncio.Queue()
        self.segments: list[owner_pb2.SegmentMeta] = []
        self.archived: dict[int, str] = {}
        self.resolved: dict[int, int] = {}
        self.troubles: list[str] = []
        self.changed = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[owner_pb2.Command]:
        while (command := await self.commands.get()) is not None:
            yield command

    async def write(self, report: owner_pb2.Report) -> None:
        self.troubles.append(report.trouble)
        self.segments += report.segments
        self.archived |= {archived.segment: archived.uri for archived in report.archived}
        self.resolved |= {resolved.sub_id: resolved.ts for resolved in report.resolved}
        if report.segments and not self.silent:
            self.commands.put_nowait(heard(len(self.segments)))
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()


def rows(commit_ts: int, size: int, count: int = 1) -> pa.RecordBatch:
    values = [0, commit_ts, commit_ts - 1, 2, b"k", bytes(size), None, 0]
    columns = [pa.array([value] * count, field.type) for value, field in zip(values, RAW_SCHEMA, strict=True)]
    return pa.record_batch(columns, RAW_SCHEMA)


def pulling(
    call: FakeCall, feed: FakeFeed, state: Path, limits: Limits, clock: Clock | None = None
) -> asyncio.Future[None]:
    """The run of a task that is told to pull two spans."""
    run_folder = RunFolder(Location(state.as_uri()), 1, "ab")
    task = PullerTask(0, "puller-0-0", feed, run_folder, limits, clock, host=HOST)
    for sub_id, start_ts in ((1, 10), (2, 20)):
        asked = owner_pb2.Subscribe(sub_id=sub_id, span_id=sub_id, start_key=b"a", end_key=b"b", start_ts=start_ts)
        call.commands.put_nowait(owner_pb2.Command(subscribe=asked))
    return asyncio.ensure_future(task.run(call))  # type: ignore[arg-type]


async def test_rule_17_no_more_is_written_than_the_owner_has_heard_of_and_four_segments(tmp_path: Path) -> None:
    """The owner, which holds the store's quota, holds nobody back for what it does not know."""
    call, feed = FakeCall(silent=True), FakeFeed()
    segment = 10_000
    running = pulling(call, feed, tmp_path, Limits(roll_bytes=segment, roll_interval=0.01))
    async with asyncio.timeout(DEADLINE):
        await feed.until("subscribe 2")
        for number in range(40):
            await feed.emit(Data(1, 1, rows(30 + number, 900, count=10)))
        await feed.emit(Resolved(1, 80))
        said = 0
        while call.resolved.get(1) != 80:
            await call.until(lambda said=said: len(call.segments) > said)
            unheard = call.segments[said:]
            assert all(meta.spans[0].bytes <= 2 * segment for meta in unheard), "a large batch is divided"
            assert sum(meta.spans[0].bytes for meta in unheard) <= 4 * segment
            said = len(call.segments)
            call.commands.put_nowait(heard(said))
        call.commands.put_nowait(None)
        await running


async def test_rule_17_memory_is_bounded_by_holding_subscriptions_and_no_event_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    write = segment_writer.write_segment

    def slow(*arguments: Any) -> owner_pb2.SegmentMeta:
        gate.wait(DEADLINE)
        return write(*arguments)

    monkeypatch.setattr(segment_writer, "write_segment", slow)
    call, feed = FakeCall(), FakeFeed()
    running = pulling(call, feed, tmp_path, Limits(quota_bytes=10_000, roll_bytes=1_000, roll_interval=0.01))
    async with asyncio.timeout(DEADLINE):
        await feed.until("subscribe 2")
        for number in range(6):
            for sub_id in (1, 2):
                await feed.emit(Data(sub_id, sub_id, rows(30 + number, 900)))  # never waits
                await feed.emit(Resolved(sub_id, 30 + number))
        assert feed.said[2:] == ["hold 2", "hold 1"]
        call.commands.put_nowait(owner_pb2.Command(release=owner_pb2.Release(sub_id=2)))
        await feed.until("release 2")
        gate.set()
        await call.until(lambda: call.resolved.get(1) == 35)
        assert feed.said[-1] == "resume 1"
        assert {span.sub_id for meta in call.segments for span in meta.spans} == {1}, "the other one was released"
        assert all(meta.host == HOST for meta in call.segments if meta.uri)
        assert sorted(meta.seq for meta in call.segments) == list(range(1, len(call.segments) + 1))
        call.commands.put_nowait(None)
        await running


async def test_rule_17_what_comes_fast_waits_for_segments_but_not_for_a_store_that_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, begun, may_write = segment_writer.write_segment, list[int](), threading.Semaphore(0)

    def slow(run_folder: RunFolder, task: str, seq: int, spans: Any) -> owner_pb2.SegmentMeta:
        begun.append(seq)
        may_write.acquire(timeout=DEADLINE)
        return write(run_folder, task, seq, spans)

    monkeypatch.setattr(segment_writer, "write_segment", slow)
    call, feed, clock = FakeCall(), FakeFeed(), ManualClock()
    running = pulling(call, feed, tmp_path, Limits(roll_bytes=1_000), clock)
    async with asyncio.timeout(DEADLINE):
        await feed.until("subscribe 2")
        for seq in (1, 2):
            await feed.room()  # at once: there is little to write
            await feed.emit(Data(1, 1, rows(30, 450, count=2)))
            await clock.run_until(lambda seq=seq: len(begun) == seq)
        for _ in range(4):
            await feed.emit(Data(1, 1, rows(30, 900)))
        waiting = asyncio.ensure_future(feed.room())
        for written in (1, 2):
            await clock.run(4.0)
            assert not waiting.done()
            may_write.release()
            await call.until(lambda written=written: len(call.segments) == written)
        await clock.run(4.0)
        assert not waiting.done()
        may_write.release()
        await waiting
        for _ in range(4):
            await feed.emit(Data(1, 1, rows(40, 900)))
        stuck = asyncio.ensure_future(feed.room())
        await clock.run(4.0)
        assert not stuck.done()
        await clock.run(3.5)
        assert stuck.done(), "the quota is for that"
        may_write.release(9)
        call.commands.put_nowait(None)
        await running


@pytest.mark.skipif(not can_share_memory(), reason="this system has no memory without a name to share")
async def test_where_all_read_the_files_what_is_in_memory_is_served_and_archived_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store's segments are compressed; the owner is told one size, of the slot and of the file."""
    monkeypatch.setattr(RunFolder, "compression", "lz4")
    run_folder, key = RunFolder(Location(tmp_path.as_uri()), 1, "ab"), RunKey(*self_signed(TASK_NAME))
    serve, elsewhere = partial(ArenaServer, key=key, host="127.0.0.1"), RemoteArenas(key, "elsewhere")
    call, feed, limits = FakeCall(), FakeFeed(), Limits(roll_interval=0.01, buffer_bytes=1 << 20)
    task = PullerTask(0, "puller-0-0", feed, run_folder, limits, serve=serve)
    call.commands.put_nowait(owner_pb2.Command(subscribe=owner_pb2.Subscribe(sub_id=1, span_id=1, start_ts=10)))
    running = asyncio.ensure_future(task.run(call))  # type: ignore[arg-type]
    async with asyncio.timeout(DEADLINE):
        await feed.until("subscribe 1")
        await feed.emit(Data(1, 1, rows(30, 900, count=10)))
        await call.until(lambda: bool(call.segments))
        [meta] = call.segments
        assert meta.host == "", "its file can be read by all"
        assert meta.bytes < 9000, "compressed"
        memory = Memory.from_proto(0, meta)
        assert memory is not None
        piece = SegmentSlice(
            uri=meta.uri,
            size=meta.bytes,
            slot=memory.address,
            run=run_folder.run,
            seq=1,
            first_batch=0,
            end_batch=1,
            rows=10,
        )
        fetched = await asyncio.to_thread(read_slice, run_folder, piece, elsewhere)
        call.commands.put_nowait(owner_pb2.Command(archive=owner_pb2.Archive(segments=[1])))
        await call.until(lambda: call.archived == {1: meta.uri})
        assert read_slice(run_folder, piece.model_copy(update={"slot": None})) == fetched
        call.commands.put_nowait(None)
        await running

        def until_gone() -> None:
            while True:  # nobody waits for the server's end, which is soon
                read_slice(run_folder, piece, elsewhere)

        with pytest.raises(MemoryGone):
            await asyncio.to_thread(until_gone)


@pytest.mark.parametrize(
    ("target", "address"),
    [("127.0.0.1:5", "127.0.0.1"), *([("[::1]:5", "::1")] if socket.has_dualstack_ipv6() else [])],
)
def test_a_puller_is_reached_where_it_reaches_the_owner(target: str, address: str) -> None:
    assert address_towards(target) == address


def test_a_puller_that_knows_no_way_to_the_owner_says_so() -> None:
    with pytest.raises(Unavailable, match=r"Cannot reach the owner at nobody\.invalid:5"):
        address_towards("nobody.invalid:5")


async def test_scratch_stands_in_the_folder_that_the_run_clears_on_this_machine(tmp_path: Path) -> None:
    run_folder, feed = RunFolder(Location(tmp_path.as_uri()), 1, "ab"), FakeFeed()
    PullerTask(0, "puller-0-0", feed, run_folder, Limits())
    assert feed.scratch_folder == run_folder.spool_folder


async def test_a_segment_that_is_written_at_once_does_not_hide_another_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, fails = segment_writer.write_segment, threading.Event()
    fails.set()

    def full(run_folder: RunFolder, task: str, seq: int, spans: Any) -> owner_pb2.SegmentMeta:
        def attempt() -> owner_pb2.SegmentMeta:
            if seq == 1 and fails.is_set():
                raise Transient("s3://state answers 503.")
            return write(run_folder, task, seq, spans)

        return run_folder.patience.call("the state", attempt)

    monkeypatch.setattr(segment_writer, "write_segment", full)
    call, feed, clock = FakeCall(), FakeFeed(), ManualClock()
    running = pulling(call, feed, tmp_path, Limits(roll_bytes=1_000), clock)
    async with asyncio.timeout(DEADLINE):
        await feed.until("subscribe 2")
        await feed.emit(Data(1, 1, rows(30, 900)))
        await feed.emit(Data(1, 1, rows(30, 900)))
        await clock.run_until(lambda: "s3://state answers 503." in call.troubles)
        await feed.emit(Data(2, 2, rows(30, 900, count=2)))  # another writer's
        stored = tmp_path.rglob
        await clock.run_until(lambda: any(stored("*2.arrow")))
        call.troubles.clear()
        await clock.run_until(lambda: len(call.troubles) >= 2)
        assert set(call.troubles) == {"s3://state answers 503."}
        fails.clear()
        await clock.run_until(lambda: "" in call.troubles)
        call.commands.put_nowait(None)
        await running


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
