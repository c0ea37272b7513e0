"""Text that is not UTF-8, from rows to bytes of files: csv has it as it is, canal-json U+FFFD for each such byte."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pyarrow as pa
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE, Position
from changefeed.model.rows import RAW_SCHEMA
from changefeed.pipeline.mounter import mount
from changefeed.pipeline.sorter import sort_rows
from changefeed.schema.table_info import TableInfo, parse_table_info
from changefeed.sink.records import Records
from changefeed.sink.storage.codec import csv as csv_codec
from changefeed.sink.storage.codec.csv import CsvFormat
from changefeed.sink.text import canal_json
from changefeed.sink.text.canal_json import CanalJsonFormat
from changefeed_devcluster import keys
from changefeed_devcluster.tidb import rows
from changefeed_devcluster.tidb.schema import NewColumn, make_table
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_rows import index, segment

CELL = st.lists(st.sampled_from([b"ok", b"\xc3\xa4", b"\xe4", b"\xbd\xa0", b"\xff", b'"', b"\r\n", b",", b"\\"])).map(
    b"".join
)
CELLS = st.lists(CELL | st.none(), max_size=9)
UPSTREAM = make_table(
    5,
    "t",
    [
        NewColumn("id", "bigint"),
        NewColumn("v", "text", nullable=True),
        NewColumn("whole", "varchar(9)"),
        NewColumn("b", "blob"),
        NewColumn("e", "enum('ä')"),
    ],
    "id",
)
TABLE = parse_table_info(UPSTREAM.to_json(), "s")
BYTES = b"\xff\xfe"

Change = tuple[int, bytes | None, bytes | None]  # op, v, v before it


def row(number: int, cell: bytes | None) -> bytes:
    value = None if cell is None else cell.decode(errors="surrogateescape")
    return rows.encode_row(UPSTREAM, {"id": number, "v": value, "whole": "wörd", "b": BYTES, "e": "ä"})


def raw(changes: list[Change]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {
                "span_id": 1, "commit_ts": 9, "start_ts": 1, "op": op, "key": keys.record_key(5, n),
                "value": b"" if op == OP_DELETE else row(n, new),
                "old_value": None if op == OP_INSERT else row(n, old), "txn_source": 0,
            }
            for n, (op, new, old) in enumerate(changes)
        ],
        RAW_SCHEMA,
    )  # fmt: skip


def mounted(cells: list[bytes | None]) -> Records:
    return mount(raw([(OP_INSERT, cell, None) for cell in cells]), TABLE, "UTC", with_old=True)


def messages(records: Records, fmt: CanalJsonFormat | None = None) -> list[Any]:
    pieces = canal_json.encode(records, 0, fmt or CanalJsonFormat())
    return [json.loads(line) for line in b"".join(piece.to_pybytes() for piece in pieces).split(b"\r\n")[:-1]]


def replaced(cell: bytes | None) -> str | None:
    """As Go does: U+FFFD for each byte that is in no character."""
    if cell is None:
        return None
    return "".join("\ufffd" if "\udc80" <= c <= "\udcff" else c for c in cell.decode(errors="surrogateescape"))


@settings(deadline=None)
@given(CELLS)
def test_csv_has_any_bytes_as_they_are(cells: list[bytes | None]) -> None:
    content = csv_codec.encode(mounted(cells), CsvFormat(null="<NULL>")).to_pybytes()
    # In ISO 8859-1 each byte is a character, and the marks of csv are what they are in ASCII.
    parsed = list(csv.reader(io.StringIO(content.decode("latin-1"), newline=""), strict=True))
    texts = [b"<NULL>" if cell is None else cell for cell in cells]
    assert [line[4].encode("latin-1") for line in parsed] == texts
    word = "wörd".encode().decode("latin-1")
    assert [line[5:] for line in parsed] == [[word, "//4=", "ä".encode().decode("latin-1")]] * len(cells)


@settings(deadline=None)
@given(CELLS)
def test_csv_without_quotes_has_any_bytes_behind_its_escapes(cells: list[bytes | None]) -> None:
    content = csv_codec.encode(mounted(cells), CsvFormat(quote="", terminator="\n")).to_pybytes()
    escapes = [(b"\\", b"\\\\"), (b",", b"\\,"), (b"\r", b"\\r"), (b"\n", b"\\n")]
    lines = []
    for number, cell in enumerate(cells):
        for mark, escape in escapes:
            cell = cell and cell.replace(mark, escape)
        text = b"\\N" if cell is None else cell
        lines.append(b"I,t,s,%d,%s,%s,//4=,%s\n" % (number, text, "wörd".encode(), "ä".encode()))
    assert content == b"".join(lines)


@settings(deadline=None)
@given(CELLS)
def test_canal_json_has_a_replacement_for_each_such_byte(cells: list[bytes | None]) -> None:
    for found, cell in zip(messages(mounted(cells)), cells, strict=True):
        assert found["data"] == [
            {"id": found["data"][0]["id"], "v": replaced(cell), "whole": "wörd", "b": "ÿþ", "e": "1"}
        ]


@settings(deadline=None)
@given(CELL, CELL, st.booleans())
def test_canal_json_shows_what_an_update_changed_by_its_bytes(old: bytes, new: bytes, whole: bool) -> None:
    """The rows before and after are decoded apart: either may be broken alone."""
    fmt = CanalJsonFormat(only_output_updated_columns=not whole)
    (found,) = messages(mount(raw([(OP_UPDATE, new, old)]), TABLE, "UTC", with_old=True), fmt)
    assert found["data"][0]["v"] == replaced(new)
    shown = found["old"][0]
    assert ("v" in shown) == (whole or old != new)
    assert shown.get("v", replaced(old)) == replaced(old)


@settings(deadline=None)
@given(CELL, CELL)
def test_rule_12_an_update_of_a_unique_text_is_split_if_its_bytes_changed(old: bytes, new: bytes) -> None:
    definition = UPSTREAM.to_json() | {"index_info": [index("v")]}
    definition["cols"][1]["type"]["Flag"] |= 1  # NOT NULL
    table: TableInfo = parse_table_info(definition, "s")
    found = sort_rows(
        [(segment(1), pa.Table.from_batches([raw([(OP_UPDATE, new, old)])]))],
        table,
        Position.end_of(0),
        Position.end_of(10),
        split=True,
    )
    ops = found.rows.column("op").to_pylist()
    assert ops == ([OP_UPDATE] if old == new else [OP_DELETE, OP_INSERT])


def test_one_such_value_changes_no_other_line() -> None:
    good: list[bytes | None] = [b"a", None, "é".encode()]
    alone = csv_codec.encode(mounted(good), CsvFormat()).to_pybytes()
    beside = csv_codec.encode(mounted([*good, b"\xff"]), CsvFormat()).to_pybytes()
    assert beside.startswith(alone)
    assert messages(mounted([*good, b"\xff"]))[:3] == messages(mounted(good))
