"""Rows for the matcher, short to write, and what it made of them."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl
from changefeed.upstream.tikv.matching.matcher import Matched
from changefeed.upstream.tikv.matching.rows import COMMITTED_ROWS, ROWS

TYPES = {"PREWRITE": 1, "COMMIT": 2, "ROLLBACK": 3, "COMMITTED": 4, "INITIALIZED": 5, "LOCKED": 0}
PUT, DELETE = 1, 2


class Row(NamedTuple):
    type: str
    start: int = 0
    commit: int = 0
    key: str = ""
    op: int = PUT
    value: str = ""
    old: str = ""
    scanned: bool = False


def frame(rows: list[tuple[int, Row]]) -> pl.DataFrame:
    return pl.DataFrame(
        [
            (
                r.start,
                r.commit,
                TYPES[r.type],
                r.op,
                r.key.encode(),
                r.value.encode(),
                r.old.encode(),
                0,
                reg,
                r.scanned,
            )
            for reg, r in rows
        ],
        schema=ROWS,
        orient="row",
    )


def emitted(matched: Matched) -> list[tuple[int, int, int, int, str, str, str | None]]:
    """(reg, commit_ts, start_ts, op, key, value, old_value), sorted."""
    parts = [matched.rows, *matched.more]
    assert all(part.schema == COMMITTED_ROWS for part in parts)
    rows = pl.concat(parts)
    return sorted(
        (reg, commit, start, op, key.decode(), value.decode(), None if old is None else old.decode())
        for reg, commit, start, op, key, value, old, _ in rows.rows()
    )
