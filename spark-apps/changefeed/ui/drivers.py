"""Fetches `/status` from drivers. Responses are untrusted, so they are limited in size and validated."""

from __future__ import annotations

from dataclasses import dataclass

import aiohttp
from pydantic import ValidationError

from changefeed.spec.driver_status import DriverStatus

TIMEOUT_S = 3.0
_LARGEST = 4 << 20


@dataclass(frozen=True)
class DriverSilence:
    """Why there is no status, as a sentence."""

    why: str


class Drivers:
    """Create it inside a running event loop, and `close` it."""

    def __init__(self) -> None:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        self._session = aiohttp.ClientSession(timeout=timeout, headers={"User-Agent": "changefeed-ui"})

    async def close(self) -> None:
        await self._session.close()

    async def ask(self, address: str) -> DriverStatus | DriverSilence:
        """Ask a driver for its status.

        `address`: host and port of a driver's metrics endpoint.
        """
        try:
            async with self._session.get(f"http://{address}/status", allow_redirects=False) as answer:
                body = await _read(answer)
        except (aiohttp.ClientError, TimeoutError, ValueError) as e:
            return DriverSilence(f"No driver answers at {address} ({type(e).__name__}).")
        if answer.status != 200:
            return DriverSilence(f"{address} returned HTTP {answer.status} instead of a status.")
        try:
            return DriverStatus.model_validate_json(body)
        except ValidationError:
            return DriverSilence(f"{address} is not a driver, or its version is not supported by this page.")


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """The body; empty, and so not valid JSON, if it exceeds _LARGEST bytes."""
    parts, size = [], 0
    async for part in answer.content.iter_chunked(1 << 16):
        parts.append(part)
        size += len(part)
        if size > _LARGEST:
            return b""
    return b"".join(parts)
