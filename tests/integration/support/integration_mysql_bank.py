"""A bank's history as the sink is given it, and a process that writes it until it dies.

`python integration_mysql_bank.py PORT WRITER COMMITS MOMENT`: writes all entries that are not done, and kills itself at
its COMMIT number COMMITS: "before" it, or "after" it is answered or lost.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from changefeed.errors import ChangefeedError
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.objectstore.patience import Patience
from changefeed.schema import table_info as ti
from changefeed.schema.sql_type import SqlType
from changefeed.sink.contract import Claim, EntryId
from changefeed.sink.mysql.rows.changes import Changes
from changefeed.sink.mysql.server import MysqlServer, Session
from changefeed.sink.mysql.sink import MysqlSink, Options

CREATE = (
    "CREATE DATABASE bank",
    "CREATE TABLE bank.accounts (id BIGINT PRIMARY KEY, owner VARCHAR(20) UNIQUE, balance BIGINT NOT NULL)",
)
ENTRIES, _TRANSACTIONS, _ACCOUNTS = 16, 40, 24
TOTAL = 100 * _ACCOUNTS

Row = tuple[int, str | None, int]
State = dict[int, Row]


def table(name: str = "accounts") -> ti.TableInfo:
    def column(number: int, name: str, tp: int, flag: int = 0) -> dict[str, object]:
        kind = {"Tp": tp, "Flag": flag, "Flen": 20, "Decimal": 0, "Charset": "utf8mb4", "Collate": "utf8mb4_bin"}
        return {"id": number, "name": name, "offset": number, "type": kind, "state": ti.STATE_PUBLIC}

    owner = {"id": 1, "idx_name": "owner", "idx_cols": [{"name": "owner", "length": -1}], "is_unique": True}
    columns = [
        column(1, "id", SqlType.BIGINT, ti.FLAG_NOT_NULL | ti.FLAG_PRI_KEY),
        column(2, "owner", SqlType.VARCHAR),
        column(3, "balance", SqlType.BIGINT, ti.FLAG_NOT_NULL),
    ]
    info = {"id": 7, "name": name, "cols": columns, "index_info": [owner | {"state": ti.STATE_PUBLIC}]}
    return ti.parse_table_info(info | {"pk_is_handle": True, "state": ti.STATE_PUBLIC}, "bank")


def history() -> tuple[list[list[Changes]], State]:
    """Each entry's chunks, and the state after all; the first transaction opens all accounts."""
    chosen = random.Random(25)
    state: State = {}
    entries, ts = [], 0
    for _ in range(ENTRIES):
        chunks = []
        for _ in range(2):
            rows: list[tuple[int, int, Row, Row | None]] = []
            for _ in range(_TRANSACTIONS // 2):
                ts += 10
                after = _next(state, chosen)
                rows += _transaction(ts, state, after)
                state = after
            chunks.append(_changes(rows))
        entries.append(chunks)
    return entries, state


def _next(state: State, chosen: random.Random) -> State:
    """A transfer; at times two accounts change owners, or one is closed and another opened."""
    if not state:
        return {number: (number, f"owner {number}", 100) for number in range(_ACCOUNTS)}
    after = dict(state)
    one, other = chosen.sample(sorted(state), 2)
    amount, what = chosen.randrange(20), chosen.random()
    (_, name, balance), (_, other_name, other_balance) = state[one], state[other]
    if what < 0.15:
        name, other_name = other_name, name
    if what > 0.9:
        del after[one]
        one = max(state) + 1
    after[one], after[other] = (one, name, balance - amount), (other, other_name, other_balance + amount)
    return after


def _transaction(ts: int, before: State, after: State) -> list[tuple[int, int, Row, Row | None]]:
    """As the sorter gives it: by op, then key."""
    found = [(ts, OP_DELETE, row, None) for key, row in before.items() if key not in after]
    for key, row in after.items():
        if key not in before:
            found.append((ts, OP_INSERT, row, None))
        elif row != before[key]:
            found.append((ts, OP_UPDATE, row, before[key]))
    return sorted(found, key=lambda change: (change[1], change[2][0]))


def _changes(rows: list[tuple[int, int, Row, Row | None]]) -> Changes:
    info, nothing = table(), (None, None, None)
    types = (pa.int64(), pa.string(), pa.int64())
    ts = np.array([row[0] for row in rows], np.uint64)
    shown, before = ([row[2] for row in rows], [row[3] or nothing for row in rows])
    arrays = ([pa.array([row[n] for row in side], kind) for n, kind in enumerate(types)] for side in (shown, before))
    op = np.array([row[1] for row in rows], np.uint8)
    return Changes(info, info.output_columns, op, ts, ts - np.uint64(1), *arrays)


def claim(writer: int, epoch: int = 1, nonce: str = "n") -> Claim:
    return Claim("bank", 1, epoch, nonce, writer)


def open_sink(server: MysqlServer, workers: int = 4) -> MysqlSink:
    """Small transactions, so that there are many."""
    return MysqlSink(server, Options(workers=workers, max_txn_row=4, by_transaction=True), Patience(60))


def write_all(sink: MysqlSink, mine: Claim, entries: list[list[Changes]]) -> Iterator[int]:
    """Rows that each entry took."""
    sink.claim(mine)
    for number, chunks in enumerate(entries):
        yield sink.write(mine, EntryId(1, number), 100 * (number + 1), chunks)


def _die_at(commits: int, moment: str) -> None:
    """Let this process die at a commit of any of its sessions."""
    commit, seen = Session.commit, iter(range(1, sys.maxsize))

    def counted(self: Session, *following: Any) -> Any:
        is_last = next(seen) == commits
        if is_last and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return commit(self, *following)
        finally:
            if is_last:
                os.kill(os.getpid(), signal.SIGKILL)

    Session.commit = counted  # type: ignore[method-assign]


def main(port: str, writer: str, commits: str, moment: str) -> None:
    _die_at(int(commits), moment)
    sink = open_sink(MysqlServer("127.0.0.1", int(port), "root", ""))
    try:
        for _ in write_all(sink, claim(int(writer)), history()[0]):
            pass
    except ChangefeedError as error:
        sys.exit(str(error))
    finally:
        sink.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
