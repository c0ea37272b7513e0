"""Every row of the golden data in format v2: bytes made by other people's encoders."""

from __future__ import annotations

import hashlib
import struct
from collections import defaultdict

import pytest
from changefeed.errors import NeedsHuman
from changefeed.schema.rowv2 import check_supported, decode_rows
from changefeed.schema.table_info import parse_table_info
from schema_fixtures import binary, corpus

#: Cells of the golden data that are compared; a smaller number means that the test has gone blind.
CELLS = 59569


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


def rows_by_table() -> dict[int, list[tuple[bytes, bytes, dict[str, object]]]]:
    rows = defaultdict(list)
    for row in corpus("rows.jsonl"):
        for value, expected in (("value_hex", "expected"), ("old_value_hex", "expected_old")):
            if row.get(value):
                rows[row["table_id"]].append((bytes.fromhex(row["key_hex"]), bytes.fromhex(row[value]), row[expected]))
    return rows


def test_every_cell_of_the_corpus():
    rows = rows_by_table()
    compared, wrong = 0, []
    for definition in corpus("tables.jsonl"):
        if definition["row_format"] != "v2":
            continue
        info = parse_table_info(definition["table_info"], "corpus")
        check_supported(info)
        keys, values, expected = zip(*rows[info.id], strict=True)
        arrays = decode_rows(info, binary(keys), binary(values), "UTC")
        for column, array in zip(info.output_columns, arrays, strict=True):
            array.validate(full=True)
            for got, row in zip(array.to_pylist(), expected, strict=True):
                compared += 1
                if not same(got, row[column.name]):
                    wrong.append((info.name, column.name, got, row[column.name]))
    assert not wrong
    assert compared == CELLS


def test_rule_29_v1_rows_of_the_corpus_are_refused():
    rows = rows_by_table()
    refused = 0
    for definition in corpus("tables.jsonl"):
        if definition["row_format"] == "v1":
            info = parse_table_info(definition["table_info"], "corpus")
            keys, values, _ = zip(*rows[info.id], strict=True)
            with pytest.raises(NeedsHuman, match=f"corpus.{info.name}.* row format v1"):
                decode_rows(info, binary(keys), binary(values), "UTC")
            refused += 1
    assert refused > 40
