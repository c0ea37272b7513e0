"""The file that a long run of kills writes after every event, so that it can be stopped, looked at and gone on with.

Its parts may run at the same time, each in a process of its own.
"""

from __future__ import annotations

import fcntl
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from integration_killer import EXIT_CODES

_SCHEMA = 3
_CHECKED = ("rows", "missing", "duplicate", "out_of_order")
Seconds = dict[str, list[float]]  # of each event


class KillRecord:
    """What stands in `file` of one part, gone on with; None: nothing is kept."""

    def __init__(self, file: Path | None, part: int) -> None:
        self._file = file
        self._part = str(part)
        self._unverified = 0  # events of this run; those of one that was stopped have no verdict

    def count(self, event: str) -> int:
        if self._file is None:
            return 0
        with _locked(self._file):
            parts, _ = _read(self._file)
        return len(parts.get(self._part, {}).get(event, []))

    def recovered(self, event: str, seconds: float) -> None:
        self._unverified += 1

        def add(parts: dict[str, Seconds], _: Counter[str]) -> None:
            parts.setdefault(self._part, {}).setdefault(event, []).append(round(seconds, 2))

        self._change(add)

    def verified(self, verdict: dict[str, Any]) -> None:
        """Everything so far of this run, by `changefeed verify`."""
        events, self._unverified = self._unverified, 0

        def add(_: dict[str, Seconds], verified: Counter[str]) -> None:
            verified.update({"events": events, **{name: int(verdict[name]) for name in _CHECKED}})

        self._change(add)

    def _change(self, change: Callable[[dict[str, Seconds], Counter[str]], None]) -> None:
        if self._file is None:
            return
        with _locked(self._file):
            parts, verified = _read(self._file)
            change(parts, verified)
            said = {"schema": _SCHEMA, "recovery": _recovery(parts), "verified": dict(verified), "parts": parts}
            self._file.write_text(json.dumps(said, indent=2, sort_keys=True) + "\n")


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with file.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _read(file: Path) -> tuple[dict[str, Seconds], Counter[str]]:
    text = file.read_text()
    said = json.loads(text) if text else {}
    said = said if said.get("schema") == _SCHEMA else {}
    return said.get("parts", {}), Counter(said.get("verified", {}))


def _recovery(parts: dict[str, Seconds]) -> dict[str, Any]:
    kinds: Seconds = defaultdict(list)
    for events in parts.values():
        for event, seconds in events.items():
            kinds[event] += seconds
    ways = {
        way: [each for event in kinds if event.endswith(way) for each in kinds[event]] for way in ("killed", "frozen")
    }
    return {
        **{event: {**_summary(kinds[event]), "exit_code": EXIT_CODES[event]} for event in sorted(kinds)},
        **{f"all {way}": _summary(seconds) for way, seconds in ways.items() if seconds},
    }


def _summary(seconds: list[float]) -> dict[str, float | int]:
    ordered = sorted(seconds)
    p50, p99 = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.99))
    return {"events": len(ordered), "p50_s": p50, "p99_s": p99, "max_s": ordered[-1]}
