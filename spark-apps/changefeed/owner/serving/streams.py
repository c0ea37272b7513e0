"""The open streams of one kind of task, by task number: carries reports in and commands out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Generic, TypeVar

Said = TypeVar("Said")
Told = TypeVar("Told")

#: A task that is told to leave has left by then, or does not answer.
LEAVE_S = 2.0


class Streams(Generic[Said, Told]):
    """One event loop makes all calls.

    `joined` gives what a task is told first; `left` and `heard` must not block. `end`: what tells a task to leave.
    """

    def __init__(
        self,
        number_of: Callable[[Said], int],
        joined: Callable[[int], Iterable[Told]],
        left: Callable[[int], None],
        heard: Callable[[int, Said], None],
        end: Told,
    ) -> None:
        self._number_of = number_of
        self._joined = joined
        self._left = left
        self._heard = heard
        self._end = end
        self._open: dict[int, asyncio.Queue[Told | None]] = {}  # what is to be sent; None ends the stream
        self._crash: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    def send(self, number: int, told: Told) -> None:
        """To the task's open stream; when it has none, nothing that was meant for the last one matters."""
        if stream := self._open.get(number):
            stream.put_nowait(told)

    def end_all(self) -> None:
        for stream in self._open.values():
            stream.put_nowait(None)

    async def crashed(self) -> None:
        """Raises what `joined` or `heard` raised; else it never ends. Without it the run would only stand still."""
        raise await self._crash

    async def serve(self, said: AsyncIterator[Said]) -> AsyncIterator[Told]:
        """The stream of a task, which says who it is with its first message."""
        first = await anext(said, None)
        if first is None:
            return
        number = self._number_of(first)
        # A retried task takes its predecessor's place: the old stream ends, and with it the old task.
        if (previous := self._open.get(number)) is not None:
            self._close(number, previous)
        stream: asyncio.Queue[Told | None] = asyncio.Queue()
        self._open[number] = stream
        reader = asyncio.create_task(self._read(number, stream, first, said))
        reader.add_done_callback(self._reader_ended)
        try:
            while (told := await stream.get()) is not None:
                yield told
        finally:
            reader.cancel()
            self._close(number, stream)
        # It is told to leave, and cancels this when it does. If the stream ended here first, grpc.aio could make
        # INTERNAL of the end: it does when a message that is being written meets it (grpc/grpc#36066).
        yield self._end
        await asyncio.sleep(LEAVE_S)

    async def _read(
        self, number: int, stream: asyncio.Queue[Told | None], first: Said, said: AsyncIterator[Said]
    ) -> None:
        try:
            for told in self._joined(number):
                stream.put_nowait(told)
            self._heard(number, first)
            async for each in said:
                if self._open.get(number) is not stream:
                    return
                self._heard(number, each)
        finally:
            stream.put_nowait(None)

    def _reader_ended(self, reader: asyncio.Task[None]) -> None:
        if not reader.cancelled() and (error := reader.exception()) is not None and not self._crash.done():
            self._crash.set_result(error)

    def _close(self, number: int, stream: asyncio.Queue[Told | None]) -> None:
        if self._open.get(number) is stream:
            del self._open[number]
            stream.put_nowait(None)
            self._left(number)
