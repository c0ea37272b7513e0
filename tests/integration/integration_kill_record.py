"""The file that a long run of kills writes after every event, so that it can be stopped, looked at and gone on with."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from integration_killer import EXIT_CODES

_CHECKED = ("rows", "missing", "duplicate", "out_of_order")


class KillRecord:
    """Goes on with what stands in `file`; None: nothing is kept."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        said = json.loads(file.read_text()) if file is not None and file.exists() else {}
        said = said if said.get("schema") == 2 else {}
        self._seconds: dict[str, list[float]] = defaultdict(list, said.get("seconds", {}))
        self._verified: Counter[str] = Counter(said.get("verified", {}))
        self._unverified = 0  # events of this run; those of one that was stopped have no verdict

    def count(self, event: str) -> int:
        return len(self._seconds[event])

    def recovered(self, event: str, seconds: float) -> None:
        self._seconds[event].append(round(seconds, 2))
        self._unverified += 1
        self._write()

    def verified(self, verdict: dict[str, Any]) -> None:
        """Everything so far of this run, by `changefeed verify`."""
        self._verified["events"] += self._unverified
        self._unverified = 0
        self._verified.update({name: int(verdict[name]) for name in _CHECKED})
        self._write()

    def _write(self) -> None:
        if self._file is None:
            return
        kinds = {event: seconds for event, seconds in sorted(self._seconds.items()) if seconds}
        ways = {
            way: [each for event in kinds if event.endswith(way) for each in kinds[event]]
            for way in ("killed", "frozen")
        }
        said = {
            "schema": 2,
            "recovery": {
                **{event: {**_summary(seconds), "exit_code": EXIT_CODES[event]} for event, seconds in kinds.items()},
                **{f"all {way}": _summary(seconds) for way, seconds in ways.items() if seconds},
            },
            "verified": dict(self._verified),
            "seconds": kinds,
        }
        self._file.write_text(json.dumps(said, indent=2) + "\n")


def _summary(seconds: list[float]) -> dict[str, float | int]:
    ordered = sorted(seconds)
    p50, p99 = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.99))
    return {"events": len(ordered), "p50_s": p50, "p99_s": p99, "max_s": ordered[-1]}
