"""`<state>/alive.json`: on a store without lock files, warns a second driver that another is running.

See docs/design/layouts.md, State folder.

It is only a courtesy to whoever starts the second driver: the log is what keeps drivers apart. It also keeps two
resources with the same spec.state.id from stealing the changefeed from each other. Its age is measured by PD's clock
(rule 27).
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from typing import Any

from changefeed.errors import Conflict, Fenced, NotFound, StateInUse
from changefeed.objectstore import ObjectStore
from changefeed.objectstore.patience import PASSING

ALIVE = "alive.json"
REFRESH_S = 5.0
FRESH_MS = 15_000
OTHERS_FRESH_MS = 60_000  # of another resource's driver: its own operator is given the time to start it again
_ATTEMPTS = 3


class Alive:
    """One driver's word. Every call blocks on the store; one caller at a time."""

    def __init__(self, store: ObjectStore, uid: str = "", name: str = "") -> None:
        """`uid`, `name`: of the resource that this driver runs."""
        self._store = store
        self._uid = uid
        self._name = name
        self._etag: str | None = None
        self._epoch = 0
        self._pd_ms = 0

    def check(self, pd_ms: int, take_over: bool = False) -> None:
        """Whether a driver that has not ended has refreshed it just before `pd_ms`, the cluster's time.

        Raises Conflict when it has less than 15 s ago, unless the caller wants to `take_over`, StateInUse when it runs
        another resource and has less than a minute ago.
        """
        said = self._read()
        if not said or said["ended"]:
            return
        age_ms = pd_ms - said["pdMs"]
        if self._uid and said["uid"] not in ("", self._uid):
            if age_ms < OTHERS_FRESH_MS:
                raise StateInUse(
                    f"StateInUse: Changefeed {said['name']}, uid {said['uid']}, runs with the state at "
                    f"{self._store.uri}: its driver, on {said['host']}, was alive {max(age_ms, 0) / 1000:.0f} s ago.",
                    "Delete that one so that this one can take its place, or use another spec.state.id and sink.",
                )
        elif age_ms < FRESH_MS and not take_over:
            raise Conflict(
                f"The changefeed of {self._store.uri} runs already: process {said['pid']} on {said['host']}, epoch "
                f"{said['epoch']}, was alive {max(age_ms, 0) / 1000:.0f} s ago.",
                f"Stop that one first. If it was killed, start again in {(FRESH_MS - age_ms) / 1000:.0f} s, or now "
                "with --take-over.",
            )

    def last_refresh_ms(self) -> int | None:
        """When a driver that has not ended last said that it is alive, by PD's clock; None: no such driver."""
        said = self._read()
        return said["pdMs"] if said and not said["ended"] else None

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
            "uid": self._uid,
            "name": self._name,
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
                    **more,
                }:
                    whose = {name: str(more.get(name, "")) for name in ("uid", "name")}
                    return {"epoch": epoch, "host": host, "pid": pid, "pdMs": int(pd_ms), "ended": ended, **whose}
        except ValueError:
            return {}
        return {}
