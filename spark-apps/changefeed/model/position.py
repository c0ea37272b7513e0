"""`Position`: the one sort order of segments, entries and files (docs/design/layouts.md, Position)."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import PlainSerializer, PlainValidator

OP_DELETE = 0
OP_UPDATE = 1
OP_INSERT = 2
_AFTER_EVERY_OP = 3
_MAX_TS = (1 << 64) - 1


class Position(NamedTuple):
    """A position among rows ordered by (commit_ts, start_ts, op, key), after update splitting.

    An entry is `(from, to]` in positions, so `Position.end_of(ts)` as a bound means "every row with commit_ts <= ts".
    """

    commit_ts: int
    start_ts: int
    op: int
    key: bytes

    @classmethod
    def end_of(cls, ts: int) -> Position:
        """Return the position after every row of commit_ts `ts` and before every row of a later one."""
        return cls(ts, _MAX_TS, _AFTER_EVERY_OP, b"")

    @property
    def is_end_of_ts(self) -> bool:
        return self == Position.end_of(self.commit_ts)

    def to_json(self) -> list[str | int]:
        return [str(self.commit_ts), str(self.start_ts), self.op, self.key.hex()]

    @classmethod
    def from_json(cls, value: object) -> Position:
        if isinstance(value, Position):
            return value
        match value:
            case [str(commit_ts), str(start_ts), int(op), str(key)]:
                return cls(int(commit_ts), int(start_ts), op, bytes.fromhex(key))
        raise ValueError(f"not a position: {value!r}; expected [commit_ts, start_ts, op, key in hex]")


JsonPosition = Annotated[
    Position,
    PlainValidator(Position.from_json),
    PlainSerializer(Position.to_json, return_type=list[str | int]),
]
