"""`<state>/alive.json`: on a store without lock files it tells a second driver that a first one runs (INTERFACES.md).

A courtesy to the person who starts it: what keeps drivers apart is the log. Its age is told by PD's time (rule 27).
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from typing import Any

from changefeed.errors import Conflict, Fenced, NotFound
from changefeed.objectstore import ObjectStore
from changefeed.objectstore.patience import PASSING

ALIVE = "alive.json"
REFRESH_S = 5.0
_FRESH_MS = 15_000
_ATTEMPTS = 3


class Alive:
    """One driver's word. Every call blocks on the store; one caller at a time."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._etag: str | None = None
        self._epoch = 0
        self._pd_ms = 0

    def check(self, pd_ms: int) -> None:
        """Raises Conflict when another driver has refreshed it less than 15 s before `pd_ms`, and has not ended."""
        said = self._read()
        age_ms = pd_ms - said["pdMs"] if said and not said["ended"] else _FRESH_MS
        if age_ms < _FRESH_MS:
            raise Conflict(
                f"The changefeed of {self._store.uri} runs already: process {said['pid']} on {said['host']}, epoch "
                f"{said['epoch']}, was alive {max(age_ms, 0) / 1000:.0f} s ago.",
                f"Stop that one first. If it was killed, start again in {(_FRESH_MS - age_ms) / 1000:.0f} s, or now "
                "with --take-over.",
            )

    def refresh(self, epoch: int, pd_ms: int) -> None:
        """Say that the driver of `epoch` is alive. Raises Fenced when a newer one has said so."""
        self._epoch, self._pd_ms = epoch, pd_ms
        self._write(ended=False)

    def end(self) -> None:
        """Say that it has ended, so that the next one need not wait."""
        if self._epoch:
            with suppress(Fenced):
                self._write(ended=True)

    def _write(self, ended: bool) -> None:
        said = {
            "v": 1,
            "epoch": self._epoch,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "pdMs": str(self._pd_ms),
            "ended": ended,
        }
        body = json.dumps(said, separators=(",", ":")).encode()
        for _ in range(_ATTEMPTS):
            try:
                self._etag = self._store.swap(ALIVE, body, self._etag)
            except Conflict:
                found = self._read()
                if found and found["epoch"] > self._epoch:
                    mine, self._epoch = self._epoch, 0  # the word is the newer one's: `end` must not touch it
                    raise Fenced(
                        f"Epoch {found['epoch']} of the changefeed runs, on {found['host']}; this driver is {mine}.",
                        "Leave the changefeed to the newer driver.",
                    ) from None
            except PASSING:
                return  # the next refresh finds out
            else:
                return

    def _read(self) -> dict[str, Any]:
        """What it says, {} when it is not there or is not ours; notes its etag."""
        try:
            found = self._store.get(ALIVE)
        except NotFound:
            self._etag = None
            return {}
        except PASSING:
            return {}
        self._etag = found.etag
        try:
            match json.loads(found.body):
                case {
                    "v": 1,
                    "epoch": int(epoch),
                    "host": str(host),
                    "pid": int(pid),
                    "pdMs": str(pd_ms),
                    "ended": bool(ended),
                }:
                    return {"epoch": epoch, "host": host, "pid": pid, "pdMs": int(pd_ms), "ended": ended}
        except ValueError:
            return {}
        return {}
