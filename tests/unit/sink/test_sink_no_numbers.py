"""NaN and infinity, which PostgreSQL has: words in text, strings in JSON, and refused by MySQL."""

from __future__ import annotations

import json
import math

import numpy as np
import pyarrow as pa
import pytest
from changefeed.errors import NeedsHuman
from changefeed.model.position import OP_INSERT
from changefeed.schema import table_info as ti
from changefeed.schema.sql_type import SqlType
from changefeed.sink.kafka.codec.cells import json_float
from changefeed.sink.mysql.rows.keys import TableKeys
from changefeed.sink.mysql.rows.statements import ChunkStatements
from changefeed.sink.text.go_float import go_float, plain_float
from sink_mysql_changes import Change, changes_of, column, index, table

WORDS = ["NaN", "Infinity", "-Infinity"]
VALUES = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_they_are_words_in_text_and_strings_in_json(kind: pa.DataType) -> None:
    given = pa.array([*VALUES, None, 1.5, 2.0**70], kind)
    assert go_float(given).to_pylist() == [
        *WORDS,
        None,
        "1.5",
        "1.1805916e+21" if kind == "float" else "1.1805916207174113e+21",
    ]
    assert plain_float(given).to_pylist()[:5] == [*WORDS, None, "1.5"]
    shown = json_float(given).to_pylist()
    assert shown[:5] == [*(f'"{word}"' for word in WORDS), None, "1.5"]
    assert [json.loads(text) for text in shown[:3]] == WORDS


def test_mysql_refuses_them_and_names_the_row() -> None:
    key = column("id", SqlType.BIGINT, ti.FLAG_NOT_NULL | ti.FLAG_PRI_KEY)
    items = table([key, column("v", SqlType.DOUBLE)], [index("id", primary=True)], pk_is_handle=True)
    keys = TableKeys.of(items)

    def written(*values: float | None) -> int:
        rows = [Change(number, OP_INSERT, (number, value)) for number, value in enumerate(values, 1)]
        changes = changes_of(items, rows)
        return len(ChunkStatements(keys, changes, keys.moved(changes), False).of(np.arange(len(rows))))

    assert written(1.5, None) == 1
    with pytest.raises(NeedsHuman, match=r"shop\.t: the row with id 3 has -inf in its column v, which no number"):
        written(None, 1.5, -math.inf, math.nan)
