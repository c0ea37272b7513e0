"""What restore and flashback did, and which tables they can't handle."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Restored:
    table: str
    rows: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Left:
    """A table that can't be had, and why."""

    table: str
    why: str


@dataclass
class RestoreReport:
    to_ts: str
    checkpoint_ts: str
    tables: list[Any] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {"ok": not self.left, **asdict(self)}
