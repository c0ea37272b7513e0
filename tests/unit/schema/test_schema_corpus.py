"""Every row of the golden data: bytes made by other people's encoders."""

from __future__ import annotations

import hashlib
import struct
from collections import defaultdict
from functools import cache
from typing import Any

import golden
import pytest
from changefeed.schema.table_info import parse_table_info
from changefeed.upstream.tikv.row.rowv2 import check_supported, decode_rows
from schema_fixtures import binary

TABLES = list(golden.lines("tables.jsonl"))


def of(*row_formats: str) -> Any:
    found = [(f"rows {table['row_format']}", table) for table in TABLES if table["row_format"] in row_formats]
    marks = pytest.mark.golden
    return pytest.mark.parametrize("definition", [pytest.param(t, id=t["name"], marks=marks(k)) for k, t in found])


def same(got: object, expected: object) -> bool:
    if isinstance(got, dict):  # ENUM and SET
        got = got["text"]
    if got is None or expected is None:
        return got is expected
    body = got if isinstance(got, bytes) else str(got).encode()
    if not isinstance(expected, dict):
        return body == str(expected).encode()
    if "f64" in expected:
        name, form = ("f32", ">f") if "f32" in expected else ("f64", ">d")
        return struct.pack(form, got).hex() == expected[name]
    if "hex" in expected:
        return body.hex() == expected["hex"]
    return {"sha256": hashlib.sha256(body).hexdigest(), "len": len(body)} == expected


@cache
def rows_by_table() -> dict[int, list[tuple[bytes, bytes, dict[str, object]]]]:
    rows = defaultdict(list)
    for row in golden.lines("rows.jsonl"):
        for value, expected in (("value_hex", "expected"), ("old_value_hex", "expected_old")):
            if row.get(value):
                rows[row["table_id"]].append((bytes.fromhex(row["key_hex"]), bytes.fromhex(row[value]), row[expected]))
    return rows


@of("v1", "v2")
def test_every_cell_of_the_corpus(definition, request):
    info = parse_table_info(definition["table_info"], "corpus")
    check_supported(info)
    rows = rows_by_table()[info.id]
    request.node.user_properties.append(("golden_rows", len(rows)))
    keys, values, expected = zip(*rows, strict=True) if rows else ((), (), ())
    arrays = decode_rows(info, binary(keys), binary(values), "UTC")
    wrong = []
    for column, array in zip(info.output_columns, arrays, strict=True):
        array.validate(full=True)
        for got, row in zip(array.to_pylist(), expected, strict=True):
            if not same(got, row[column.name]):
                wrong.append((column.name, got, row[column.name]))
    assert not wrong
