"""Where a store's calls wait: for one of its few workers, and for PD where the client is not trusted with a ts.

Whoever is not TiDB (Context.request_origin) and names a ts to be read up to has that ts compared with PD's. A ts that
is newer than the last one which the store had of PD costs a call to PD, inside the worker; PD is waited for
PD_PATIENCE_S, and then the call goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from changefeed.wire import kvrpcpb_pb2 as kvrpcpb

from ..pd.oracle import Oracle
from .txn import MAX_TS

WORKERS = 2
PD_PATIENCE_S = 2.0
_POLL_S = 0.003

_READS = {"KvGet", "KvScan", "KvBatchGet", "KvBufferBatchGet", "KvScanLock", "SplitRegion"}
"""They need no worker."""
_TIMESTAMPS = {
    "KvScanLock": "max_version",
    "KvCheckTxnStatus": "current_ts",
    "KvCleanup": "current_ts",
    "KvCheckSecondaryLocks": "start_version",
}


class Scheduler:
    """Schedules one store's work in the server's event loop. `asked_pd`: how often it fetched a ts for a client."""

    def __init__(self, oracle: Oracle, pd_is_frozen: Callable[[], object]) -> None:
        self.asked_pd = 0
        self._oracle = oracle
        self._pd_is_frozen = pd_is_frozen
        self._workers = asyncio.Semaphore(WORKERS)
        self._known_ts = 0

    @asynccontextmanager
    async def turn(self, call: str, request: Any) -> AsyncIterator[None]:
        """A call may be answered inside it."""
        if call in _READS:
            await self._check(call, request)
            yield
            return
        async with self._workers:
            await self._check(call, request)
            yield

    async def _check(self, call: str, request: Any) -> None:
        argument = _TIMESTAMPS.get(call)
        if argument is None or request.context.request_origin == kvrpcpb.RequestOriginTiDB:
            return
        if self._known_ts < getattr(request, argument) < MAX_TS:
            self.asked_pd += 1
            try:
                async with asyncio.timeout(PD_PATIENCE_S):
                    while self._pd_is_frozen():  # noqa: ASYNC110 - any thread ends it
                        await asyncio.sleep(_POLL_S)
            except TimeoutError:
                return
            self._known_ts = self._oracle.allocate()
