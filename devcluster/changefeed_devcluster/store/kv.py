"""The transactional calls of a store over gRPC: who may call, with what, and when it is its turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import Message

from ..pd.oracle import Oracle, compose
from .calls import StoreCalls, message_class
from .requests import wrong_argument
from .scheduler import Scheduler

_DRIFT = compose(60_000)
"""So far may a client's ts be ahead of PD's."""

Context = grpc.aio.ServicerContext[Any, Any]


class Tikv:
    """The service of one store."""

    def __init__(self, cluster_id: int, oracle: Oracle, calls: StoreCalls, scheduler: Scheduler) -> None:
        self._cluster_id = cluster_id
        self._oracle = oracle
        self._calls = calls
        self._scheduler = scheduler

    def handler(self) -> grpc.GenericRpcHandler:
        methods = {name: self._method(name) for name in self._calls.names}
        return grpc.method_handlers_generic_handler("tikvpb.Tikv", methods)

    def _method(self, name: str) -> grpc.RpcMethodHandler[Any, Any]:
        return grpc.unary_unary_rpc_method_handler(
            self._call(name),
            request_deserializer=message_class(name, "Request").FromString,
            response_serializer=lambda answer: answer if isinstance(answer, bytes) else answer.SerializeToString(),
        )

    def _call(self, name: str) -> Callable[[Any, Context], Awaitable[Message | bytes]]:
        async def call(request: Any, context: Context) -> Message | bytes:
            wanted = request.context.cluster_id
            if wanted and wanted != self._cluster_id:
                why = f"cluster id mismatch: this cluster is {self._cluster_id}, the request is for {wanted}"
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)
            wrong = wrong_argument(name, request, self._oracle.latest + _DRIFT)
            if wrong is not None:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{name}: {wrong}")
            async with self._scheduler.turn(name, request):
                return self._calls.answer(name, request)

        return call
