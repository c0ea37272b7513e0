"""A table with a column of each type that conditions can have, and rows of it as TiKV has them."""

from __future__ import annotations

import struct
from typing import Any

import polars as pl
from changefeed.filter.columns import value_of
from changefeed.filter.expression import condition
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import FLAG_NOT_NULL, FLAG_PRI_KEY, FLAG_UNSIGNED, TableInfo, parse_table_info


def column(id_: int, name: str, tp: int, flag: int = 0, **field_type: Any) -> dict[str, Any]:
    given = {"Tp": tp, "Flag": flag, "Flen": 20, "Decimal": 0, "Charset": "utf8mb4", "Collate": "utf8mb4_bin"}
    type_ = given | {name.capitalize(): value for name, value in field_type.items()}
    return {"id": id_, "name": {"O": name, "L": name.lower()}, "offset": id_ - 1, "type": type_, "state": 5}


COLUMNS = (
    column(1, "Id", SqlType.BIGINT, FLAG_NOT_NULL | FLAG_PRI_KEY),
    column(2, "i", SqlType.BIGINT),
    column(3, "u", SqlType.BIGINT, FLAG_UNSIGNED),
    column(4, "d", SqlType.DECIMAL, flen=10, decimal=2),
    column(5, "f", SqlType.DOUBLE),
    column(6, "s", SqlType.VARCHAR),
    column(7, "g", SqlType.VARCHAR, collate="utf8mb4_general_ci"),
    column(8, "a", SqlType.VARCHAR, collate="utf8mb4_0900_ai_ci"),
    column(9, "t", SqlType.DATETIME, decimal=3),
    column(10, "day", SqlType.DATE),
    column(11, "e", SqlType.ENUM, elems=["Small", "large"], collate="utf8mb4_general_ci"),
    column(12, "b", SqlType.VARCHAR, charset="binary", collate="binary"),
    column(13, "span", SqlType.TIME),
    column(14, "c", SqlType.VARCHAR, collate="utf8mb4_unicode_ci"),
    column(15, "odd", SqlType.VARCHAR, collate="latin1_swedish_ci"),
    column(16, "wide", SqlType.DECIMAL, flen=65, decimal=30),
    column(17, "z", SqlType.VARCHAR, collate="gb18030_chinese_ci"),
)
TYPES = {
    "i": pl.Int64,
    "u": pl.UInt64,
    "f": pl.Float64,
    "b": pl.Binary,
}


def table(**more: Any) -> TableInfo:
    info = {"id": 7, "name": {"O": "orders"}, "cols": list(COLUMNS), "pk_is_handle": True, "state": 5} | more
    return parse_table_info(info, "shop")


def holds(sql: str, **values: Any) -> list[bool]:
    """Whether the condition holds, for each value of the columns; all of them have as many."""
    there = table()
    by_name = {column.name.lower(): column for column in there.columns}
    columns = {name: value_of(by_name[name]) for name in values}
    series = []
    for name, cells in values.items():
        numbers = name == "e"
        if numbers:
            elems = [None, *by_name[name].elems]
            series.append(pl.Series(f"n{by_name[name].id}", cells, pl.UInt64))
            cells = [None if cell is None else elems[cell] for cell in cells]
        series.append(pl.Series(f"c{by_name[name].id}", cells, TYPES.get(name, pl.String)))
    rows = max(len(column) for column in series) if series else 1
    found = pl.DataFrame(series).select(condition(sql, columns)).to_series().to_list()
    return found * rows if len(found) < rows else found


def stored(i: int | None = None, s: str | bytes | None = None) -> bytes:
    """A row in row format v2 whose other columns are NULL (docs/design/tidb.md, Row format v2)."""
    cells = {2: None if i is None else struct.pack("<q", i), 6: s.encode() if isinstance(s, str) else s}
    ids = [id_ for id_ in range(2, 18) if cells.get(id_) is not None]
    nulls = [id_ for id_ in range(2, 18) if cells.get(id_) is None]
    data = [cells[id_] or b"" for id_ in ids]
    ends = [sum(map(len, data[: n + 1])) for n in range(len(data))]
    head = bytes([128, 0]) + struct.pack("<HH", len(ids), len(nulls)) + bytes([*ids, *nulls])
    return head + struct.pack(f"<{len(ends)}H", *ends) + b"".join(data)
