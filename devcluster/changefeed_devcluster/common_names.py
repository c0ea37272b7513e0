"""TiKV's `cert-allowed-cn`: clients with another common name get through the handshake, and each call is refused."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any

import grpc
import grpc.aio


class CommonNames(grpc.aio.ServerInterceptor):
    """Calls of anybody else end as TiKV ends them, with UNAUTHENTICATED."""

    def __init__(self, allowed: Collection[str]) -> None:
        self._allowed = frozenset(allowed)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None
        serializers = (handler.request_deserializer, handler.response_serializer)
        if handler.stream_stream:
            return grpc.stream_stream_rpc_method_handler(self._guarded(handler.stream_stream), *serializers)
        return grpc.unary_unary_rpc_method_handler(self._guarded(handler.unary_unary), *serializers)

    def _guarded(self, behaviour: Any) -> Any:
        async def stream(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            await self._check(context)
            async for answer in behaviour(request, context):
                yield answer

        async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            await self._check(context)
            return await behaviour(request, context)

        return stream if inspect.isasyncgenfunction(behaviour) else call

    async def _check(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        names = [name.decode() for name in context.auth_context().get("x509_common_name", ())]
        if self._allowed.isdisjoint(names):
            allowed = ", ".join(f'"{name}"' for name in sorted(self._allowed))
            reason = f"x509_common_name from peer is {', '.join(names)}, cert_allowed_cn: {{{allowed}}}"
            why = f"Common name check fail, reason: {reason}"
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, why)
