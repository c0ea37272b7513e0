"""Deletes a sink's expired files in the background of a run.

The log has already given them up (`expire`), so verify and restore know what may be missing, no matter who deletes it
and when: what a dying run leaves, the next one deletes. A superseded driver can do no harm, as it deletes only what its
own log had given up.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from changefeed.errors import ChangefeedError
from changefeed.objectstore.patience import PASSING
from changefeed.owner.patience import in_thread
from changefeed.owner.reporting.meter import Meter
from changefeed.sink.claim import SinkClaim

_LOOK_S = 5.0
_WHO = "expiry"


class Expiry:
    """Deletes what has expired, during one run. `ending`: the run is about to end, and waits for nothing."""

    def __init__(self, sink: SinkClaim, meter: Meter, ending: threading.Event) -> None:
        self._sink, self._meter, self._ending = sink, meter, ending
        self._deleted_before = ""

    async def keep(self, expired_before: Callable[[], str]) -> None:
        """`expired_before`: the day from which on the log keeps files; "": it has given up none. Raises NeedsHuman."""
        while True:
            before = expired_before()
            if before > self._deleted_before:
                count, error = await in_thread(self._delete, before)
                self._meter.count("changefeed_sink_expired_files_total", count)
                if error is None:
                    self._deleted_before = before
                    self._meter.store_works(_WHO)
                else:
                    self._meter.store_failed(_WHO, error)
            await asyncio.sleep(_LOOK_S)

    def _delete(self, before: str) -> tuple[int, ChangefeedError | None]:
        count = 0
        try:
            for delete in self._sink.expired(before):
                if self._ending.is_set():
                    break
                delete()
                count += 1
        except PASSING as error:
            return count, error
        return count, None
