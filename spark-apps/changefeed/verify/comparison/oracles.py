"""The oracles: queries on the ledger that compare the files with the upstream.

See docs/guarantees.md, How it is proved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from changefeed.verify.comparison.ledger import TableLedger

_POSITION = "commit_ts, start_ts, rank, key"

#: Which of a row's changes is the latest one, in SQL: in files the last; in topics, where indexes of several partitions
#: say nothing and changes may come again, the one with the highest position.
LAST_ROW = "max(row_index)"
HIGHEST_POSITION = "arg_max(row_index, commit_ts::HUGEINT * 4 + CASE op WHEN 'D' THEN 0 WHEN 'U' THEN 1 ELSE 2 END)"


@dataclass(frozen=True)
class UpstreamChange:
    """One change of the upstream, to be read again."""

    commit_ts: int
    key: bytes
    op: str


@dataclass(frozen=True)
class ChangeDifferences:
    """O3: how the files' changes up to the checkpoint differ from the upstream's. Positions are of the first ones."""

    missing: int = 0
    duplicate: int = 0
    unexpected: int = 0
    first_missing: UpstreamChange | None = None
    missing_after: int | None = None  # the index behind which the first missing one belongs
    first_duplicate: int | None = None
    first_unexpected: int | None = None
    instead: UpstreamChange | None = None  # what is missing where the first unexpected one stands


@dataclass(frozen=True)
class Replay:
    """O4: how the files, replayed on the table at startTs, differ from the table at the checkpoint.

    The first difference: `row_index` of the change that left the row so (None: it stood so at startTs, or there is
    none), and the raw keys of the row there was before and of the one there is.
    """

    rows: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    row_index: int | None = None
    start_key: bytes | None = None
    end_key: bytes | None = None


def is_same_sequence(ledger: TableLedger, checkpoint_ts: int) -> bool:
    """O1 and O3 at once: up to the checkpoint the files hold the upstream's changes, each once, in their order.

    What lies above the checkpoint is held to its commit ts alone.
    """
    have = ledger.digest(f"SELECT h FROM files WHERE commit_ts <= {checkpoint_ts}")
    want = ledger.digest(f"SELECT h FROM upstream ORDER BY {_POSITION}")
    return have == want and ledger.is_ascending


def differences(ledger: TableLedger, checkpoint_ts: int) -> ChangeDifferences:
    """O3: counted by image, and where each kind begins."""
    ledger.run(
        f"""CREATE OR REPLACE TEMP TABLE unequal AS
        SELECT h, coalesce(have, 0) AS have, coalesce(want, 0) AS want, row_index
        FROM (SELECT h, count(*) AS have, max(row_index) AS row_index FROM files
            WHERE commit_ts <= {checkpoint_ts} GROUP BY h)
        FULL JOIN (SELECT h, count(*) AS want FROM upstream GROUP BY h) USING (h)
        WHERE have IS DISTINCT FROM want"""
    )
    ((missing, duplicate, unexpected, first_duplicate, first_unexpected),) = ledger.run(
        """SELECT sum(greatest(want - have, 0)), sum(have - want) FILTER (have > want AND want > 0),
        sum(have) FILTER (want = 0), min(row_index) FILTER (have > want AND want > 0), min(row_index) FILTER (want = 0)
        FROM unequal"""
    )
    first = _first_missing(ledger)
    after = None
    if first is not None:
        ((after,),) = ledger.run("SELECT max(row_index) FROM files WHERE commit_ts < ?", [first.commit_ts])
    return ChangeDifferences(
        missing=int(missing or 0),
        duplicate=int(duplicate or 0),
        unexpected=int(unexpected or 0),
        first_missing=first,
        missing_after=after,
        first_duplicate=first_duplicate,
        first_unexpected=first_unexpected,
        instead=None if first_unexpected is None else _instead(ledger, first_unexpected),
    )


def _first_missing(
    ledger: TableLedger, where: str = "true", parameters: tuple[object, ...] = ()
) -> UpstreamChange | None:
    found = ledger.run(
        f"""SELECT commit_ts, key, op FROM upstream SEMI JOIN (SELECT h FROM unequal WHERE have < want) USING (h)
        WHERE {where} ORDER BY {_POSITION} LIMIT 1""",
        parameters,
    )
    return UpstreamChange(*found[0]) if found else None


def _instead(ledger: TableLedger, row_index: int) -> UpstreamChange | None:
    """What is missing of this commit ts for this key; else of this key at another commit ts."""
    keys = ledger.table.key_names
    ((commit_ts, *key),) = ledger.run(
        f"SELECT {', '.join(['commit_ts', *keys])} FROM files WHERE row_index = ?", [row_index]
    )
    same = " AND ".join(f"{name} IS NOT DISTINCT FROM ?" for name in keys) or "true"
    return _first_missing(ledger, f"commit_ts = ? AND {same}", (commit_ts, *key)) or (
        _first_missing(ledger, same, tuple(key)) if keys else None
    )


def disorder(ledger: TableLedger) -> tuple[int, int | None]:
    """O1: how many rows stand behind a later one, and the index of the first.

    The order is that of positions: commit ts, start ts, deletes before updates before inserts, key. Rows that the
    upstream does not have, and those above the checkpoint, are held to their commit ts alone.
    """
    same = ["op", "commit_ts", *ledger.table.key_names] if ledger.table.key else ["h"]
    on = " AND ".join(f"f.{name} IS NOT DISTINCT FROM u.{name}" for name in same)
    ((count, first),) = ledger.run(
        f"""WITH placed AS (SELECT *, row_number() OVER (ORDER BY {_POSITION}) AS position FROM upstream),
        paired AS (SELECT f.row_index, f.commit_ts, max(u.position) AS position FROM files f LEFT JOIN placed u ON {on}
            GROUP BY ALL),
        seen AS (SELECT *, max(commit_ts) OVER w AS last_ts, max(position) OVER w AS last FROM paired
            WINDOW w AS (ORDER BY row_index ROWS UNBOUNDED PRECEDING))
        SELECT count(*), min(row_index) FROM seen WHERE commit_ts < last_ts OR position < last"""
    )
    return count, first


def replay(ledger: TableLedger, checkpoint_ts: int, latest: str = LAST_ROW) -> Replay:
    """O4: the changes up to the checkpoint, applied to the rows at startTs. `latest`: of a row's changes."""
    keys = ", ".join(ledger.table.key_names)
    same = " AND ".join(f"r.{name} IS NOT DISTINCT FROM e.{name}" for name in ledger.table.key_names)
    ledger.run(
        f"""CREATE OR REPLACE TEMP TABLE wrong AS
        WITH last AS (SELECT {latest} AS row_index FROM files WHERE commit_ts <= {checkpoint_ts} GROUP BY {keys}),
        touched AS (SELECT DISTINCT {keys} FROM files WHERE commit_ts <= {checkpoint_ts}),
        replayed AS (
            SELECT {keys}, v, row_index, NULL::BLOB AS key FROM files SEMI JOIN last USING (row_index) WHERE op <> 'D'
            UNION ALL SELECT {keys}, v, NULL::UBIGINT, key FROM at_start ANTI JOIN touched USING ({keys})
        )
        SELECT r.row_index, r.key AS start_key, e.key AS end_key, r.v AS have, e.v AS want
        FROM replayed r FULL JOIN at_end e ON {same} WHERE r.v IS DISTINCT FROM e.v"""
    )
    ((rows,),) = ledger.run("SELECT count(*) FROM at_end")
    ((missing, extra, different),) = ledger.run(
        "SELECT count(*) FILTER (have IS NULL), count(*) FILTER (want IS NULL), "
        "count(*) FILTER (have IS NOT NULL AND want IS NOT NULL) FROM wrong"
    )
    first: tuple[Any, ...] = (None, None, None)
    if missing or extra or different:
        first = ledger.run(
            "SELECT row_index, start_key, end_key FROM wrong ORDER BY end_key, start_key, row_index LIMIT 1"
        )[0]
    return Replay(rows, missing, extra, different, *first)


def first_above(ledger: TableLedger, ts: int) -> int | None:
    """The index of the first row of the files above ts."""
    ((row_index,),) = ledger.run("SELECT min(row_index) FROM files WHERE commit_ts > ?", [ts])
    return None if row_index is None else int(row_index)


def add_moves(ledger: TableLedger, checkpoint_ts: int, *, with_start: bool, start_ts: int = 0) -> None:
    """By how much each change moves the amount: what the row holds after it less what it held before. NULL is 0.

    Where the files of a table do not say which row a change is of, the upstream's equal change does; equal changes of
    one transaction may be given each other's row, for their sum is the same. A change that the upstream does not have
    is left out then: O3 has counted it. `with_start`: what the rows hold at the start counts too, which is also what
    changes up to `start_ts` have made of them.
    """
    keys = ", ".join(ledger.table.key_names) or "key"
    files = "files" if ledger.table.key else _FILES_BY_RAW_KEY
    ledger.run(
        f"""INSERT INTO moves
        WITH changes AS (
            SELECT 0::UBIGINT AS commit_ts, -1::BIGINT AS row_index, {keys}, coalesce(amount, 0) AS held FROM at_start
            UNION ALL SELECT if(commit_ts <= {start_ts}, 0::UBIGINT, commit_ts), row_index::BIGINT, {keys},
                CASE op WHEN 'D' THEN 0 ELSE coalesce(amount, 0) END
            FROM {files} WHERE commit_ts <= {checkpoint_ts}
        )
        SELECT commit_ts, sum(move) FROM (
            SELECT commit_ts, held - lag(held, 1, 0) OVER (PARTITION BY {keys} ORDER BY row_index) AS move FROM changes)
        WHERE {with_start} OR commit_ts > 0 GROUP BY commit_ts"""
    )


_FILES_BY_RAW_KEY = """(
    SELECT f.commit_ts, f.row_index, f.op, f.amount, u.key
    FROM (SELECT *, row_number() OVER (PARTITION BY h ORDER BY row_index) AS nth FROM files) f
    JOIN (SELECT h, key, row_number() OVER (PARTITION BY h ORDER BY key) AS nth FROM upstream) u USING (h, nth))"""


def conserved(ledger: TableLedger) -> tuple[str, int, int, str]:
    """O7: (the sum at startTs, how many transactions change it, the first one's commit ts, by how much)."""
    ((start,),) = ledger.run("SELECT coalesce(sum(amount), 0) FROM moves WHERE commit_ts = 0")
    broken = """(SELECT commit_ts, sum(amount) AS move FROM moves WHERE commit_ts > 0 GROUP BY commit_ts
        HAVING sum(amount) <> 0)"""
    ((count, first, move),) = ledger.run(f"SELECT count(*), min(commit_ts), arg_min(move, commit_ts) FROM {broken}")
    return _plain(start), count, first or 0, _plain(move or 0)


def _plain(amount: Any) -> str:
    text = f"{amount:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
