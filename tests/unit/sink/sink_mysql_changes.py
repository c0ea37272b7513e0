"""What the tests of the MySQL sink share: a table with two keys, and histories as the sorter gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.schema import table_info as ti
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import TableInfo, parse_table_info
from changefeed.schema.values import arrow_type
from changefeed.sink.mysql.rows.changes import Changes
from hypothesis import strategies as st


def column(name: str, tp: int, flag: int = 0, **more: Any) -> dict[str, Any]:
    """Return a column of `table`. `more`: members of its type."""
    field_type = {"Tp": tp, "Flag": flag, "Flen": 20, "Decimal": 0, "Charset": "utf8mb4", "Collate": "utf8mb4_bin"}
    return {"name": {"O": name}, "type": field_type | more, "state": 5}


def index(*columns: str | tuple[str, int], primary: bool = False) -> dict[str, Any]:
    """A unique one. Of a column: its name, or with the length of the prefix that is indexed."""
    members = [(each, -1) if isinstance(each, str) else each for each in columns]
    names = [{"name": {"O": name}, "length": length} for name, length in members]
    return {"id": 1, "idx_name": {"O": "i"}, "idx_cols": names, "is_unique": True, "is_primary": primary, "state": 5}


def table(columns: Sequence[dict[str, Any]], indexes: Sequence[dict[str, Any]], **more: Any) -> TableInfo:
    cols = [each | {"id": number + 1, "offset": number} for number, each in enumerate(columns)]
    info = {"id": 77, "name": {"O": "t"}, "cols": cols, "index_info": list(indexes), "state": 5}
    return parse_table_info(info | more, "shop")


#: id bigint primary key, u varchar unique, v bigint.
ITEMS = table(
    [
        column("id", SqlType.BIGINT, ti.FLAG_NOT_NULL | ti.FLAG_PRI_KEY),
        column("u", SqlType.VARCHAR),
        column("v", SqlType.BIGINT),
    ],
    [index("u")],
    pk_is_handle=True,
)

Row = tuple[Any, ...]
State = dict[Any, Row]  # by the first column's value


@dataclass(frozen=True)
class Change:
    commit_ts: int
    op: int
    shown: Row
    before: Row | None = None


def changes_of(table: TableInfo, changes: Sequence[Change]) -> Changes:
    """Each has a start_ts of one less than its commit_ts."""
    columns = table.output_columns
    nothing = (None,) * len(columns)
    ts = np.array([change.commit_ts for change in changes], np.uint64)

    def arrays(rows: Sequence[Row]) -> list[pa.Array]:
        return [pa.array([row[place] for row in rows], arrow_type(each)) for place, each in enumerate(columns)]

    return Changes(
        table,
        columns,
        np.array([change.op for change in changes], np.uint8),
        ts,
        ts - np.uint64(1),
        arrays([change.shown for change in changes]),
        arrays([change.before or nothing for change in changes]),
    )


def transaction(commit_ts: int, before: State, after: State) -> list[Change]:
    """From one state to another, in the sorter's order; only a unique key that allows NULL changes in an update."""
    found = [Change(commit_ts, OP_DELETE, row) for key, row in before.items() if key not in after]
    found += [Change(commit_ts, OP_INSERT, row) for key, row in after.items() if key not in before]
    for key in before.keys() & after.keys():
        if before[key] != after[key]:
            found.append(Change(commit_ts, OP_UPDATE, after[key], before[key]))
    return sorted(found, key=lambda change: (change.op, change.shown[0]))


_IDS = st.integers(0, 5)
_WORDS = st.sampled_from([None, "a", "b", "c", "it's"])
_EDIT = st.tuples(_IDS, st.one_of(st.none(), st.tuples(_WORDS, st.integers(0, 3))))


@st.composite
def histories(draw: st.DrawFn) -> tuple[State, list[Change], State]:
    """A state of ITEMS, transactions, and the state after them. What an edit would make twice in `u` is NULL there."""
    first = state = _edited({}, draw(st.lists(_EDIT, max_size=5)))
    changes: list[Change] = []
    for number, edits in enumerate(draw(st.lists(st.lists(_EDIT, min_size=1, max_size=5), min_size=1, max_size=8))):
        after = _edited(state, edits)
        changes += transaction(10 * (number + 1), state, after)
        state = after
    return first, changes, state


def _edited(state: State, edits: list[tuple[int, tuple[str | None, int] | None]]) -> State:
    """The last words of edits win against those of rows that none names."""
    wanted = dict(edits)
    after: State = {key: row for key, row in state.items() if key not in wanted}
    taken: set[str | None] = set()
    for key, value in wanted.items():
        if value is not None:
            word = None if value[0] in taken else value[0]
            taken |= {word} - {None}
            after[key] = (key, word, value[1])
    return {key: (key, None, row[2]) if row[1] in taken and key not in wanted else row for key, row in after.items()}
