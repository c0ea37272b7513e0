"""Every row of the golden data whose columns the decoder supports: bytes made by other people's encoders."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import replace

import pytest
from changefeed.errors import NeedsHuman
from changefeed.schema.rowv2 import decode_rows
from changefeed.schema.table_info import INTEGERS, NEW_DECIMAL, STRINGS, parse_table_info
from schema_fixtures import binary, corpus

#: Cells of the golden data that are compared; a smaller number means that the test has gone blind.
CELLS = 27274


def same(got: object, expected: object) -> bool:
    if isinstance(expected, dict):
        body = str(got).encode()
        return {"sha256": hashlib.sha256(body).hexdigest(), "len": len(body)} == expected
    return (None if got is None else str(got)) == (None if expected is None else str(expected))


def rows_by_table() -> dict[int, list[tuple[bytes, bytes, dict[str, object]]]]:
    rows = defaultdict(list)
    for row in corpus("rows.jsonl"):
        for value, expected in (("value_hex", "expected"), ("old_value_hex", "expected_old")):
            if row.get(value):
                rows[row["table_id"]].append((bytes.fromhex(row["key_hex"]), bytes.fromhex(row[value]), row[expected]))
    return rows


def is_decodable(column) -> bool:
    return column.tp in INTEGERS or column.tp == NEW_DECIMAL or (column.tp in STRINGS and column.charset != "binary")


def test_every_supported_cell_of_the_corpus():
    rows = rows_by_table()
    compared, wrong = 0, []
    for definition in corpus("tables.jsonl"):
        info = parse_table_info(definition["table_info"], "corpus")
        if definition["row_format"] != "v2" or info.is_common_handle:
            continue
        info = replace(info, columns=tuple(filter(is_decodable, info.columns)))
        keys, values, expected = zip(*rows[info.id], strict=True)
        arrays = decode_rows(info, binary(keys), binary(values))
        for column, array in zip(info.output_columns, arrays, strict=True):
            for got, row in zip(array.to_pylist(), expected, strict=True):
                compared += 1
                if not same(got, row[column.name]):
                    wrong.append((info.name, column.name, got, row[column.name]))
    assert not wrong
    assert compared == CELLS


def test_rule_29_v1_and_common_handle_tables_of_the_corpus_are_refused():
    rows = rows_by_table()
    refused = 0
    for definition in corpus("tables.jsonl"):
        info = parse_table_info(definition["table_info"], "corpus")
        if definition["row_format"] == "v1" or info.is_common_handle:
            keys, values, _ = zip(*rows[info.id], strict=True)
            with pytest.raises(NeedsHuman, match=f"corpus.{info.name}"):
                decode_rows(info, binary(keys), binary(values))
            refused += 1
    assert refused > 50
