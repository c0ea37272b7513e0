"""The owner's gRPC service: authenticates the changefeed's own tasks and hands what they say to a `Handler`.

It decides nothing and keeps no state but the open puller streams.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Protocol

import grpc
import grpc.aio

from changefeed.owner.serving.certificate import self_signed
from changefeed.wire import owner_pb2 as pb
from changefeed.wire.owner import CHANNEL_OPTIONS, SERVER_NAME, OwnerAddress

#: A puller whose machine is gone has left, though nobody closed its stream.
_SERVER_OPTIONS = (
    *CHANNEL_OPTIONS,
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # the one that counts, 60 s unless it is set
    ("grpc.so_reuseport", 0),  # a taken port must be seen to be taken
)

#: A puller that is told to leave has left by then, or does not answer.
_LEAVE_SECONDS = 2.0

_Context = grpc.aio.ServicerContext[Any, Any]


class Handler(Protocol):
    """What the owner does with a call. All run on the service's event loop and must not block it."""

    def puller_joined(self, puller: int) -> Iterable[pb.Command]:
        """A puller's stream is open; what to tell it first."""
        ...

    def puller_left(self, puller: int) -> None: ...

    def report(self, puller: int, report: pb.Report) -> None: ...

    def latest(self) -> int: ...

    def plan(self, record: int) -> bytes: ...

    async def commit(self, done: pb.Done) -> None: ...

    def fail(self, failure: pb.Failure) -> None: ...

    def working(self, at_work: pb.AtWork) -> None: ...


class OwnerService:
    """Serves one run of one driver; see wire/owner.proto for the methods."""

    def __init__(self, handler: Handler, epoch: int, nonce: str) -> None:
        self._handler = handler
        self._epoch = epoch
        self._nonce = nonce
        self._token = secrets.token_hex(32)
        self._streams: dict[int, asyncio.Queue[pb.Command | None]] = {}  # commands to be sent; None ends the stream
        self._crash: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._server: grpc.aio.Server | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0, reached_at: str = "") -> OwnerAddress:
        """Listen at `host`, on another port when `port` is taken; the address with everything a task needs to get in.

        `reached_at`: the host by which tasks come, where that is not the one to listen at.
        """
        key, certificate = self_signed(SERVER_NAME)
        server = grpc.aio.server(options=_SERVER_OPTIONS)
        server.add_generic_rpc_handlers((self._methods(),))
        credentials = grpc.ssl_server_credentials([(key, certificate)])
        try:
            bound = server.add_secure_port(_target(host, port), credentials)
        except RuntimeError:
            bound = server.add_secure_port(_target(host, 0), credentials)
        await server.start()
        self._server = server
        target = _target(reached_at or host, bound)
        return OwnerAddress(target, self._epoch, self._nonce, self._token, certificate)

    def send(self, puller: int, command: pb.Command) -> None:
        """To the puller's open stream; when it has none, its assignments have ended with the last one."""
        if stream := self._streams.get(puller):
            stream.put_nowait(command)

    async def crashed(self) -> None:
        """Raises what the handler raised on a report; else it never ends. Without it the run would only stand still."""
        raise await self._crash

    async def stop(self, grace: float = _LEAVE_SECONDS) -> None:
        """End every puller's stream, which ends its task, and stop listening."""
        for stream in self._streams.values():
            stream.put_nowait(None)
        if self._server is not None:
            await self._server.stop(grace)

    def _methods(self) -> grpc.GenericRpcHandler:
        def unary(call: Callable[[Any, _Context], Any], request: Any, response: Any) -> grpc.RpcMethodHandler[Any, Any]:
            return grpc.unary_unary_rpc_method_handler(
                call, request_deserializer=request.FromString, response_serializer=response.SerializeToString
            )

        return grpc.method_handlers_generic_handler(
            "changefeed.Owner",
            {
                "Puller": grpc.stream_stream_rpc_method_handler(
                    self._puller,
                    request_deserializer=pb.Report.FromString,
                    response_serializer=pb.Command.SerializeToString,
                ),
                "Latest": unary(self._latest, pb.LatestRequest, pb.LatestResponse),
                "Plan": unary(self._plan, pb.PlanRequest, pb.PlanResponse),
                "Commit": unary(self._commit, pb.Done, pb.Acknowledged),
                "Fail": unary(self._fail, pb.Failure, pb.Acknowledged),
                "Working": unary(self._working, pb.AtWork, pb.Acknowledged),
            },
        )

    async def _authenticate(self, context: _Context) -> None:
        metadata = dict(context.invocation_metadata() or ())
        said = str(metadata.get("authorization", ""))
        if not hmac.compare_digest(said.encode(), f"Bearer {self._token}".encode()):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "not a task of this driver's run")
        if metadata.get("epoch") != str(self._epoch):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"this driver's epoch is {self._epoch}")

    async def _puller(self, reports: AsyncIterator[pb.Report], context: _Context) -> AsyncIterator[pb.Command]:
        await self._authenticate(context)
        first = await anext(reports, None)
        if first is None:
            return
        puller = first.puller
        # A retried task takes its predecessor's place: the old stream ends, and with it the old task.
        previous = self._streams.get(puller)
        if previous is not None:
            self._left(puller, previous)
        stream: asyncio.Queue[pb.Command | None] = asyncio.Queue()
        self._streams[puller] = stream
        reader = asyncio.create_task(self._read(puller, stream, first, reports))
        reader.add_done_callback(self._reader_ended)
        try:
            while (command := await stream.get()) is not None:
                yield command
            self._left(puller, stream)
            reader.cancel()
            # It is told to leave, and cancels this when it does. If the stream ended here first, grpc.aio could make
            # INTERNAL of the end: it does when a report that is being written meets it (grpc/grpc#36066).
            yield pb.Command(end=pb.End())
            await asyncio.sleep(_LEAVE_SECONDS)
        finally:
            reader.cancel()
            self._left(puller, stream)

    async def _read(
        self,
        puller: int,
        stream: asyncio.Queue[pb.Command | None],
        first: pb.Report,
        reports: AsyncIterator[pb.Report],
    ) -> None:
        try:
            for command in self._handler.puller_joined(puller):
                stream.put_nowait(command)
            self._handler.report(puller, first)
            async for report in reports:
                if self._streams.get(puller) is not stream:
                    return
                self._handler.report(puller, report)
        finally:
            stream.put_nowait(None)

    def _reader_ended(self, reader: asyncio.Task[None]) -> None:
        if not reader.cancelled() and (error := reader.exception()) is not None and not self._crash.done():
            self._crash.set_result(error)

    def _left(self, puller: int, stream: asyncio.Queue[pb.Command | None]) -> None:
        if self._streams.get(puller) is stream:
            del self._streams[puller]
            stream.put_nowait(None)
            self._handler.puller_left(puller)

    async def _latest(self, request: pb.LatestRequest, context: _Context) -> pb.LatestResponse:
        await self._authenticate(context)
        return pb.LatestResponse(record=self._handler.latest())

    async def _plan(self, request: pb.PlanRequest, context: _Context) -> pb.PlanResponse:
        await self._authenticate(context)
        return pb.PlanResponse(work=self._handler.plan(request.record))

    async def _commit(self, request: pb.Done, context: _Context) -> pb.Acknowledged:
        await self._authenticate(context)
        await self._handler.commit(request)
        return pb.Acknowledged()

    async def _fail(self, request: pb.Failure, context: _Context) -> pb.Acknowledged:
        await self._authenticate(context)
        self._handler.fail(request)
        return pb.Acknowledged()

    async def _working(self, request: pb.AtWork, context: _Context) -> pb.Acknowledged:
        await self._authenticate(context)
        self._handler.working(request)
        return pb.Acknowledged()


def _target(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
