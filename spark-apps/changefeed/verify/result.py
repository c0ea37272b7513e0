"""What verify says, and the two ways in which it can say no."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from changefeed.errors import ChangefeedError


class NotVerifiable(ChangefeedError):
    """Verify can't answer: neither that the sink is right nor that it is wrong."""

    exit_code = 3


class Break(ChangefeedError):
    """A promise is broken; the message names the place."""

    exit_code = 4


@dataclass
class Result:
    """The verdict (`ok`), what was read, and what was found."""

    ok: bool = True
    checkpoint_ts: str = "0"
    rows: int = 0
    transactions: int = 0
    tables: int = 0
    files: int = 0
    missing: int = 0
    duplicate: int = 0
    unexpected: int = 0
    out_of_order: int = 0
    replayed: int = 0  # rows of the tables at the checkpoint that the files' replay was compared with
    replay_missing: int = 0
    replay_extra: int = 0
    replay_different: int = 0
    consumed: int = 0  # rows of the tables at the checkpoint that a consumer's replay was compared with
    consumed_missing: int = 0
    consumed_extra: int = 0
    consumed_different: int = 0
    conserved: str | None = None
    first_problem: str | None = None
    notes: list[str] = field(default_factory=list)  # what was assumed, and what was not checked

    def problem(self, what: str) -> None:
        """Note a broken promise; the first one is what a person sees."""
        self.ok = False
        if self.first_problem is None:
            self.first_problem = what

    def note(self, what: str) -> None:
        if what not in self.notes:
            self.notes.append(what)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
