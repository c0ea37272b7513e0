"""The change data service of a store: EventFeed and EventFeedV2 over gRPC (docs/design/tikv.md).

The shell around `subscriptions.py`: streams in, bytes out, scans as tasks of the server's event loop. Whatever is wrong
with a request becomes an error event; only an unknown feature ends a stream.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Iterator, Sequence

import grpc
from changefeed.wire import cdcpb_pb2 as cdcpb

from .connection import CdcConnection, CdcRegistration, Frames, LiveRows, QueuedEvent
from .events import MESSAGE_LIMIT
from .requests import wrong_argument
from .subscriptions import Subscriptions
from .troubles import InjectedTrouble, InjectedTroubles, interleaved

MULTIPLEXING = "stream-multiplexing"
SCAN_CONCURRENCY = 6
_SCAN_BACKLOG = 16 << 20
_FLUSH_SECONDS = 0.003
_REORDER_SECONDS = 0.05
_REPEAT_SECONDS = 0.1
UNREAD_SECONDS = 300.0
"""After so long without reading a client is cut (docs/design/tikv.md, Events)."""
_NUMBER = r"(0|[1-9]\d*)"
_SEMVER = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")

Context = grpc.aio.ServicerContext[cdcpb.ChangeDataRequest, bytes]


def parse_version(text: str) -> tuple[int, int, int, int]:
    """Strict semver as (major, minor, patch, 1 unless a pre-release); what is none counts as 0.0.0.

    See docs/design/tikv.md, Streams.
    """
    match = _SEMVER.fullmatch(text)
    if match is None:
        return 0, 0, 0, 1
    return int(match[1]), int(match[2]), int(match[3]), int(match[4] is None)


class _Unread(Exception):
    """The client has not taken a message for UNREAD_SECONDS; it is still being written."""

    def __init__(self, writing: asyncio.Task[None]) -> None:
        super().__init__()
        self.writing = writing


class _CdcStream:
    """A connection with its tasks. `end` ends the call: as the client wished, or with a failure."""

    def __init__(self, store_id: int, multiplexing: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self.something = asyncio.Event()
        self.room = asyncio.Event()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.scans: set[asyncio.Task[None]] = set()
        self.connection = CdcConnection(store_id, multiplexing, self._wake)

    def _wake(self) -> None:
        self._loop.call_soon_threadsafe(self.something.set)

    def end(self, reason: BaseException | None = None) -> None:
        if not self.ended.done():
            if reason is None:
                self.ended.set_result(None)
            else:
                self.ended.set_exception(reason)

    def close(self) -> None:
        """The call ends anyway: why the stream would have ended as well is of no interest."""
        if not self.ended.cancel() and not self.ended.cancelled():
            self.ended.exception()

    def add_scan(self, scan: asyncio.Task[None]) -> None:
        self.scans.add(scan)
        scan.add_done_callback(self._scan_done)

    def _scan_done(self, scan: asyncio.Task[None]) -> None:
        self.scans.discard(scan)
        if not scan.cancelled() and scan.exception() is not None:
            self.end(scan.exception())


class ChangeData:
    """The service of one store. All methods run in the server's event loop."""

    def __init__(
        self, store_id: int, subscriptions: Subscriptions, troubles: InjectedTroubles, scan_speed_limit: float = 0.0
    ) -> None:
        """`scan_speed_limit`: bytes a second of all scans; 0: none."""
        self._store_id = store_id
        self._subscriptions = subscriptions
        self._troubles = troubles
        self._scan_speed_limit = scan_speed_limit
        self._fetching = asyncio.Lock()
        self._scanning = asyncio.Semaphore(SCAN_CONCURRENCY)
        self._messages_left: int | None = None
        self._random = random.Random(store_id)

    def handler(self) -> grpc.GenericRpcHandler:
        def method(behaviour: object) -> grpc.RpcMethodHandler[cdcpb.ChangeDataRequest, bytes]:
            return grpc.stream_stream_rpc_method_handler(
                behaviour,  # type: ignore[arg-type]
                request_deserializer=cdcpb.ChangeDataRequest.FromString,
            )

        methods = {"EventFeed": method(self._event_feed), "EventFeedV2": method(self._event_feed_v2)}
        return grpc.method_handlers_generic_handler("cdcpb.ChangeData", methods)

    def cut_after(self, messages: int) -> None:
        """Breaks the stream that wants to send after so many more messages of this store."""
        self._messages_left = messages

    def heal(self) -> None:
        self._messages_left = None

    async def _event_feed(self, requests: AsyncIterator[cdcpb.ChangeDataRequest], context: Context) -> None:
        await self._serve(requests, context, multiplexing=False)

    async def _event_feed_v2(self, requests: AsyncIterator[cdcpb.ChangeDataRequest], context: Context) -> None:
        offered = [str(value) for key, value in context.invocation_metadata() or () if key == "features"]
        features = [name.strip() for text in offered for name in text.split(",")]
        unknown = [name for name in features if name != MULTIPLEXING]
        if unknown:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, ",".join(unknown))
        await self._serve(requests, context, multiplexing=MULTIPLEXING in features)

    async def _serve(
        self, requests: AsyncIterator[cdcpb.ChangeDataRequest], context: Context, multiplexing: bool
    ) -> None:
        unread: _Unread | None = None
        stream = _CdcStream(self._store_id, multiplexing)
        self._subscriptions.connect(stream.connection)
        reader = asyncio.create_task(self._read(requests, stream, context))
        writer = asyncio.create_task(self._write(stream, context))
        try:
            await asyncio.wait((stream.ended, writer), return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                await writer
            await stream.ended
        except _Unread as found:
            unread = found
        finally:
            self._subscriptions.disconnect(stream.connection)
            for task in (reader, writer, *stream.scans):
                task.cancel()
            stream.close()
        if unread is not None:
            # The status would wait behind it anyway, and gRPC does not always end a call that a write was taken from.
            await unread.writing
            await context.abort(grpc.StatusCode.UNKNOWN, "connection cancelled")

    async def _read(
        self, requests: AsyncIterator[cdcpb.ChangeDataRequest], stream: _CdcStream, context: Context
    ) -> None:
        connection = stream.connection
        try:
            async for request in requests:
                if connection.version is None:
                    connection.version = parse_version(request.header.ticdc_version)
                wrong = wrong_argument(request)
                if wrong is not None:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, wrong)
                if request.WhichOneof("request") == "deregister":
                    self._subscriptions.deregister(connection, request.request_id, request.region_id)
                else:
                    self._register(stream, request)
        except grpc.aio.AbortError as error:
            stream.end(error)
        else:
            stream.end()

    def _register(self, stream: _CdcStream, request: cdcpb.ChangeDataRequest) -> None:
        subscription = self._subscriptions.register(stream.connection, request)
        if subscription is not None:
            stream.add_scan(asyncio.create_task(self._scan(stream, subscription)))

    async def _scan(self, stream: _CdcStream, subscription: CdcRegistration) -> None:
        async with self._scanning:
            snapshot = self._subscriptions.attach(subscription)
            if snapshot is None:
                return
            if self._troubles.amount(InjectedTrouble.REPEAT):
                await asyncio.sleep(_REPEAT_SECONDS)
                snapshot = self._subscriptions.look_again(subscription, snapshot)
            for size in self._subscriptions.scan(subscription, snapshot):
                await self._fetched(size)
                await self._readable(stream)
        for _ in self._subscriptions.play(subscription, snapshot):
            await self._readable(stream)

    async def _fetched(self, size: int) -> None:
        """Until the store's speed limit lets a batch of a scan come; live rows are sent meanwhile."""
        clock = asyncio.get_running_loop().time
        async with self._fetching:
            begun = clock()
            while limit := self._troubles.amount(InjectedTrouble.SLOW_SCAN, self._store_id) or self._scan_speed_limit:
                if clock() - begun >= size / limit:
                    return
                await asyncio.sleep(_FLUSH_SECONDS)

    async def _readable(self, stream: _CdcStream) -> None:
        """What is not live comes as fast as the client reads."""
        await asyncio.sleep(0)
        while stream.connection.backlog > _SCAN_BACKLOG:
            stream.room.clear()
            await stream.room.wait()

    async def _write(self, stream: _CdcStream, context: Context) -> None:
        while True:
            await stream.something.wait()
            stream.something.clear()
            reorders = self._troubles.amount(InjectedTrouble.REORDER) > 0
            await asyncio.sleep(_REORDER_SECONDS if reorders else _FLUSH_SECONDS)
            await self._hold_back()
            with self._subscriptions.lock:
                items = stream.connection.drain()
            if reorders:
                items = interleaved(((item.lane, item) for item in items), self._random)
            for body in messages(stream.connection, items):
                await self._send(body, context)
                stream.room.set()

    async def _hold_back(self) -> None:
        delay = self._troubles.amount(InjectedTrouble.DELAY, self._store_id)
        if delay:
            await asyncio.sleep(delay)
        while self._troubles.amount(InjectedTrouble.STALL, self._store_id):  # noqa: ASYNC110 - any thread ends it
            await asyncio.sleep(_FLUSH_SECONDS)

    async def _send(self, body: bytes, context: Context) -> None:
        if self._messages_left is not None:
            if self._messages_left == 0:
                self._messages_left = None
                await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
            self._messages_left -= 1
        writing = asyncio.ensure_future(context.write(body))
        try:
            written, _ = await asyncio.wait((writing,), timeout=UNREAD_SECONDS)
        except asyncio.CancelledError:
            writing.cancel()
            raise
        if not written:
            raise _Unread(writing)
        await writing


def messages(connection: CdcConnection, items: Sequence[LiveRows | Frames | QueuedEvent]) -> Iterator[bytes]:
    """Serialized ChangeDataEvents: consecutive events together up to MESSAGE_LIMIT, a resolved-ts alone."""
    parts: list[bytes] = []
    size = 0
    for item in items:
        connection.sent_bytes += item.size
        frames = () if isinstance(item, QueuedEvent) else item.frames()
        for frame in frames:
            if parts and size + len(frame) > MESSAGE_LIMIT:
                yield b"".join(parts)
                parts, size = [], 0
            parts.append(frame)
            size += len(frame)
        if isinstance(item, QueuedEvent):
            if parts:
                yield b"".join(parts)
                parts, size = [], 0
            yield item.body
    if parts:
        yield b"".join(parts)
