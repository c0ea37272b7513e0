"""Timestamps over one long-lived Tso stream: callers that come while a request is out share the next one.

See docs/design/tikv.md, Timestamps.

It must never hand out a timestamp twice, nor one of a request that was sent before the caller asked.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc
import grpc.aio

from changefeed.errors import ChangefeedError, Transient
from changefeed.model.tso import compose
from changefeed.upstream.attempts import Attempts
from changefeed.upstream.tikv.client import leader
from changefeed.upstream.tikv.client.requests import to_pd
from changefeed.wire import pdpb_pb2

REPLY_TIMEOUT = 3.0


class Timestamps:
    def __init__(self, of: leader.PdLeader) -> None:
        self._leader = of
        self._waiting: list[asyncio.Future[int]] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def get(self) -> int:
        """Raises Transient after the client's patience, NeedsHuman when PD is another cluster's."""
        if self._task is None:
            self._task = asyncio.create_task(self._serve(), name="pd-tso")
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._wake.set()
        return await future

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._fail(Transient("The client of PD is closed."))

    async def _serve(self) -> None:
        attempts = Attempts("PD's Tso", leader.PATIENCE)
        while True:
            try:
                await self._one_stream(attempts)
            except (grpc.aio.AioRpcError, _Broken) as failure:
                await self._recover(failure, attempts)

    async def _recover(self, failure: grpc.aio.AioRpcError | _Broken, attempts: Attempts) -> None:
        try:
            if isinstance(failure, _Broken):
                await self._leader.relocate(str(failure), attempts)
            else:
                await self._leader.recover(failure, attempts, "Tso")
        except ChangefeedError as final:
            self._fail(final)
            attempts.progress()

    async def _one_stream(self, attempts: Attempts) -> None:
        stream = self._leader.channel().stream_stream(
            "/pdpb.PD/Tso",
            request_serializer=pdpb_pb2.TsoRequest.SerializeToString,
            response_deserializer=pdpb_pb2.TsoResponse.FromString,
        )()
        try:
            while True:
                if not self._wake.is_set():
                    await self._wake.wait()
                    attempts.progress()
                await self.one_request(stream)
                attempts.progress()
        finally:
            stream.cancel()

    async def one_request(self, stream: grpc.aio.StreamStreamCall[Any, pdpb_pb2.TsoResponse]) -> None:
        self._waiting = [future for future in self._waiting if not future.done()]
        asked = self._waiting[: to_pd.MOST_TIMESTAMPS]
        if not asked:
            self._wake.clear()
            return
        try:
            await stream.write(to_pd.timestamps(self._leader.cluster_id, len(asked)))
        except asyncio.InvalidStateError:  # while nobody asked; `read` would say so, `write` doesn't
            raise _Broken("PD ended the Tso stream") from None
        try:
            async with asyncio.timeout(REPLY_TIMEOUT):  # not wait_for: a `close` together with the reply would be lost
                response = await stream.read()
        except TimeoutError:
            raise _Broken("PD's Tso stream does not answer") from None
        if response is grpc.aio.EOF or not isinstance(response, pdpb_pb2.TsoResponse):
            raise _Broken("PD closed the Tso stream")
        if response.count != len(asked):
            raise _Broken(f"PD gave {response.count} timestamps, asked were {len(asked)}")
        first = compose(response.timestamp.physical, response.timestamp.logical) - len(asked) + 1
        self._waiting = self._waiting[len(asked) :]
        if not self._waiting:
            self._wake.clear()
        for number, future in enumerate(asked):
            if not future.done():
                future.set_result(first + number)

    def _fail(self, error: ChangefeedError) -> None:
        waiting, self._waiting = self._waiting, []
        self._wake.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(error)


class _Broken(Exception):
    """The stream is of no use any more."""
