"""The messages that we put into the WAL, each in a transaction of its own: anchors of the ts of commits (chain). Pure.

An anchor has the ts that its transaction is to have: the server's clock and a little more, as others may commit before
it does. One with `held` says beside that: nothing at or below that ts need be read again by the reader of `slot`. One
with `crossed` says that the reader of `slot` has read nothing that this timeline lacks (timelines).

Everybody may write messages, of any prefix and content. What is not exactly one of ours says nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from changefeed.model.tso import LOGICAL_BITS

PREFIX = "changefeed"
#: How far an anchor is ahead of the clock, in ms.
LEAD_MS = 10
_MAX_BYTES = 1024
_MAX_DIGITS = 18  # of a ts: enough for some hundred years, and not too many for a bigint

#: To the microsecond: of two anchors the later one is above what was committed between them.
_CLOCK = (
    f"SELECT (us / 1000 << {LOGICAL_BITS}) + (us % 1000 << {LOGICAL_BITS}) / 1000 AS ts "
    f"FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + {LEAD_MS * 1000} AS us) measured"
)
_MESSAGE = "WITH clock AS MATERIALIZED ({}) SELECT ts, pg_logical_emit_message(true, '{}', {}::text) FROM clock"
#: Puts an anchor there, and gives its ts in the first column.
EMIT = _MESSAGE.format(_CLOCK, PREFIX, "json_build_object('ts', ts::text)")
#: The same with what `:held` and `:slot` are.
EMIT_HELD = _MESSAGE.format(
    _CLOCK,
    PREFIX,
    "json_build_object('ts', ts::text, 'held', CAST(:held AS text), 'slot', CAST(:slot AS text))",
)
#: The same with what `:crossed` and `:slot` are.
EMIT_CROSSED = _MESSAGE.format(
    _CLOCK,
    PREFIX,
    "json_build_object('ts', ts::text, 'crossed', CAST(:crossed AS text), 'slot', CAST(:slot AS text))",
)


@dataclass(frozen=True)
class Said:
    """What a message says. `held` and `crossed` are for the reader of `slot`, if there is one."""

    ts: int
    held: int = 0
    slot: str = ""
    crossed: int = 0


def said(prefix: str, content: bytes) -> Said | None:
    """Read a message; None: it is not one of ours."""
    if prefix != PREFIX or len(content) > _MAX_BYTES:
        return None
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or (ts := _number(found.get("ts"))) is None:
        return None
    held, crossed = (_number(found.get(name, "0")) for name in ("held", "crossed"))
    slot = found.get("slot")
    if held is None or crossed is None or not isinstance(slot, str) or held > ts:
        return Said(ts)
    return Said(ts, held, slot, crossed)


def _number(text: Any) -> int | None:
    if isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS:
        return int(text)
    return None
