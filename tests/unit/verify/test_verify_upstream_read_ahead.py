from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from changefeed.verify.upstream.read_ahead import read_ahead


class Upstream:
    def __init__(self, last: int, error: Exception | None = None) -> None:
        self.read = asyncio.Condition()
        self.asked = 0
        self.closed = False
        self._last = last
        self._error = error

    async def pieces(self) -> AsyncGenerator[int]:
        try:
            for number in range(self._last):
                async with self.read:
                    self.asked = number
                    self.read.notify_all()
                yield number
            if self._error is not None:
                raise self._error
        finally:
            self.closed = True

    async def until_asked(self, number: int) -> None:
        async with asyncio.timeout(10.0), self.read:
            await self.read.wait_for(lambda: self.asked >= number)


async def test_the_next_piece_is_read_while_the_caller_has_one() -> None:
    upstream = Upstream(3)
    found = []
    async for piece in read_ahead(upstream.pieces()):
        await upstream.until_asked(min(piece + 1, 2))
        assert upstream.asked <= piece + 1, "one alone is read ahead"
        found.append(piece)
    assert found == [0, 1, 2]
    assert upstream.closed


async def test_an_error_comes_behind_the_pieces_before_it() -> None:
    found: list[int] = []

    async def read() -> None:
        async for piece in read_ahead(Upstream(2, ValueError("broken")).pieces()):
            await asyncio.sleep(0)
            found.append(piece)

    with pytest.raises(ValueError, match="broken"):
        await read()
    assert found == [0, 1]


@pytest.mark.parametrize("error", [None, ValueError("of what nobody waits for any more")])
async def test_who_stops_leaves_nothing_behind(error: Exception | None) -> None:
    upstream = Upstream(1, error)
    async with aclosing(read_ahead(upstream.pieces())) as pieces:
        async for _ in pieces:
            break
    assert upstream.closed
    assert len(asyncio.all_tasks()) == 1
