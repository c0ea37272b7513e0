"""The owner's gRPC service: authenticates the changefeed's own tasks and passes their messages to a `Handler`.

It decides nothing and keeps no state except the open streams.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import AsyncIterator, Iterable
from typing import Any, Protocol

import grpc
import grpc.aio

from changefeed.owner.serving.certificate import self_signed
from changefeed.owner.serving.streams import LEAVE_S, Streams
from changefeed.wire import owner_pb2 as pb
from changefeed.wire.owner import CHANNEL_OPTIONS, SERVER_NAME, TASK_NAME, OwnerAddress, RunKey

#: A task whose machine is gone has left, though nobody closed its stream.
_SERVER_OPTIONS = (
    *CHANNEL_OPTIONS,
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # the one that counts, 60 s unless it is set
    ("grpc.so_reuseport", 0),  # a taken port must be seen to be taken
)

_Context = grpc.aio.ServicerContext[Any, Any]


class Handler(Protocol):
    """What the owner does with a call. All run on the service's event loop and must not block it."""

    def puller_joined(self, puller: int) -> Iterable[pb.Command]:
        """A puller's stream is open; what to tell it first."""
        ...

    def puller_left(self, puller: int) -> None: ...

    def report(self, puller: int, report: pb.Report) -> None: ...

    def task_joined(self, task: int) -> Iterable[pb.Order]:
        """A pipeline task's stream is open; what to tell it first."""
        ...

    def task_left(self, task: int) -> None: ...

    def written(self, task: int, written: pb.Written) -> None: ...

    def fail(self, failure: pb.Failure) -> None: ...


class OwnerService:
    """Serves one run of one driver; see wire/owner.proto for the methods."""

    def __init__(self, handler: Handler, epoch: int, nonce: str) -> None:
        self._handler = handler
        self._epoch = epoch
        self._nonce = nonce
        self._token = secrets.token_hex(32)
        self._server: grpc.aio.Server | None = None
        self._pullers: Streams[pb.Report, pb.Command] = Streams(
            lambda report: report.puller,
            handler.puller_joined,
            handler.puller_left,
            handler.report,
            pb.Command(end=pb.End()),
        )
        self._tasks: Streams[pb.Written, pb.Order] = Streams(
            lambda written: written.task,
            handler.task_joined,
            handler.task_left,
            handler.written,
            pb.Order(end=pb.End()),
        )

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
        run_key = RunKey(*self_signed(TASK_NAME))
        return OwnerAddress(target, self._epoch, self._nonce, self._token, certificate, run_key)

    def command(self, puller: int, command: pb.Command) -> None:
        """To the puller, if its stream is open."""
        self._pullers.send(puller, command)

    def order(self, task: int, order: pb.Order) -> None:
        """To the pipeline task, if its stream is open."""
        self._tasks.send(task, order)

    async def crashed(self) -> None:
        """Raises what the handler raised on a message; else it never ends."""
        await asyncio.gather(self._pullers.crashed(), self._tasks.crashed())

    async def stop(self) -> None:
        """Have every task leave, and stop listening."""
        self._pullers.end_all()
        self._tasks.end_all()
        if self._server is not None:
            await self._server.stop(LEAVE_S)

    def _methods(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            "changefeed.Owner",
            {
                "Puller": grpc.stream_stream_rpc_method_handler(
                    self._puller,
                    request_deserializer=pb.Report.FromString,
                    response_serializer=pb.Command.SerializeToString,
                ),
                "Pipeline": grpc.stream_stream_rpc_method_handler(
                    self._pipeline,
                    request_deserializer=pb.Written.FromString,
                    response_serializer=pb.Order.SerializeToString,
                ),
                "Fail": grpc.unary_unary_rpc_method_handler(
                    self._fail,
                    request_deserializer=pb.Failure.FromString,
                    response_serializer=pb.Acknowledged.SerializeToString,
                ),
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
        async for command in self._pullers.serve(reports):
            yield command

    async def _pipeline(self, written: AsyncIterator[pb.Written], context: _Context) -> AsyncIterator[pb.Order]:
        await self._authenticate(context)
        async for order in self._tasks.serve(written):
            yield order

    async def _fail(self, request: pb.Failure, context: _Context) -> pb.Acknowledged:
        await self._authenticate(context)
        self._handler.fail(request)
        return pb.Acknowledged()


def _target(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
