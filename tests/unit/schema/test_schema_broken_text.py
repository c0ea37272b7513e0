"""Text columns that hold bytes which are not UTF-8: no byte is lost, and no array says that it is text and is not."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pyarrow as pa
import pytest
from changefeed.schema.table_info import ColumnInfo, parse_table_info
from changefeed.schema.values import first_broken, is_broken
from changefeed.upstream.tikv.row.checksums import wrong_rows
from changefeed.upstream.tikv.row.rowv2 import check_supported, decode_rows
from changefeed_devcluster import keys
from changefeed_devcluster.tidb import rows
from changefeed_devcluster.tidb.schema import NewColumn, make_table, with_column
from changefeed_devcluster.tidb.schema import TidbTable as Upstream
from hypothesis import given, settings
from hypothesis import strategies as st
from schema_fixtures import binary

#: Whole characters, pieces of characters, and bytes that are in none.
CELLS = st.lists(st.sampled_from([b"ok", b"\xc3\xa4", b"\xe4\xbd", b"\xa0", b"\xff", b"\0", b" "])).map(b"".join)
NOTES = make_table(5, "t", [NewColumn("id", "bigint"), NewColumn("v", "varchar(20)", nullable=True)], "id")


def decoded(upstream: Upstream, given: list[tuple[bytes, bytes]], charset: str = "utf8mb4") -> list[pa.Array]:
    definition = upstream.to_json()
    for one in definition["cols"]:
        if one["type"]["Charset"] != "binary":
            one["type"]["Charset"] = charset
    info = parse_table_info(definition, "test")
    check_supported(info)
    arrays = decode_rows(info, binary([key for key, _ in given]), binary([value for _, value in given]), "UTC")
    for array in arrays:
        array.validate(full=True)
    return arrays


def text(array: pa.Array) -> list[bytes | None]:
    """Its bytes; it is a string exactly if all of them are UTF-8."""
    found: list[Any] = array.to_pylist()
    if pa.types.is_string(array.type):
        return [None if value is None else value.encode() for value in found]
    assert array.type == pa.binary()
    with pytest.raises(UnicodeDecodeError):
        [value.decode() for value in found if value is not None]
    return found


def as_str(cell: bytes | None) -> str | None:
    return None if cell is None else cell.decode(errors="surrogateescape")


@settings(deadline=None)
@given(st.lists(CELLS | st.none()), st.sampled_from(["utf8mb4", "utf8", "ascii", "latin1", "gbk", "gb18030"]))
def test_any_bytes_of_any_charset_are_decoded_to_those_bytes(cells: list[bytes | None], charset: str) -> None:
    given = [
        (keys.record_key(5, n), rows.encode_row(NOTES, {"id": n, "v": as_str(cell)})) for n, cell in enumerate(cells)
    ]
    assert text(decoded(NOTES, given, charset)[1]) == cells


@settings(deadline=None)
@given(st.lists(CELLS, min_size=1))
def test_rows_without_the_column_have_its_default_beside_any_bytes(cells: list[bytes]) -> None:
    added = with_column(NOTES, NewColumn("w", "char(9)", default="ä"))
    given = []
    for n, cell in enumerate(cells):
        given.append((keys.record_key(5, 2 * n), rows.encode_row(NOTES, {"id": n, "v": "x"})))
        given.append((keys.record_key(5, 2 * n + 1), rows.encode_row(added, {"id": n, "v": "x", "w": as_str(cell)})))
    found = text(decoded(added, given)[2])
    assert found == [value for cell in cells for value in ("ä".encode(), cell.rstrip(b" "))]


@settings(deadline=None)
@given(st.lists(st.tuples(CELLS, st.booleans()), min_size=1))
def test_a_clustered_key_holds_any_bytes(cells: list[tuple[bytes, bool]]) -> None:
    """Some rows have the column in their value, too, as a collation's sort key is no text."""
    table = make_table(5, "t", [NewColumn("k", "char(40)"), NewColumn("n", "int")], ("k",))
    (column, number) = table.columns
    given = []
    for n, (cell, in_value) in enumerate(cells):
        handle = rows.handle_of(table, {"k": as_str(cell), "n": n})
        stored = {number.id: b"\1"} | ({column.id: cell.rstrip(b" ") + b"!"} if in_value else {})
        given.append((keys.record_key(5, handle), rows.assemble(stored)))
    found = text(decoded(table, given)[0])
    assert found == [cell.rstrip(b" ") + b"!" * in_value for cell, in_value in cells]


@settings(deadline=None)
@given(CELLS)
def test_a_checksum_over_columns_is_over_the_bytes_as_they_are(cell: bytes) -> None:
    key, value = keys.record_key(5, 1), rows.assemble({2: cell})
    content = struct.pack("<q", 1) + struct.pack("<I", len(cell)) + cell
    body = value[:1] + b"\x02" + value[2:] + b"\0"
    for spoilt in (0, 1):
        row = body + struct.pack("<I", zlib.crc32(content) ^ spoilt)
        info = parse_table_info(NOTES.to_json(), "test")
        assert wrong_rows(info, binary([key]), binary([row])).tolist() == [0] * spoilt


def test_the_first_broken_one_is_found() -> None:
    for place in range(9):
        cells = [b"ok"] * place + [b"\xff"] + [None, b"\xc3", b"ok"]
        assert first_broken(pa.array(cells, pa.binary())) == place


def test_bytes_of_a_column_of_bytes_are_not_broken() -> None:
    upstream = make_table(5, "t", [NewColumn("b", "varbinary(9)"), NewColumn("v", "varchar(9)")], None)
    columns: tuple[ColumnInfo, ...] = parse_table_info(upstream.to_json(), "test").output_columns
    bad = pa.array([b"\xff"], pa.binary())
    assert [is_broken(column, bad) for column in columns] == [False, True]
    assert not is_broken(columns[1], pa.array(["text"]))
