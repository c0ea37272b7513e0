"""Which texts are equal under a collation, and in which order: TiDB's and TiKV's own literals."""

from __future__ import annotations

from typing import Any

import golden
import polars as pl
from changefeed.filter import collation


def folded(text: str, name: str) -> str:
    return pl.DataFrame({"c": [text]}).select(collation.folded(pl.col("c"), name)).item()


def is_refused(name: str) -> bool:
    """Its order has changed from one TiDB to another, so no column under it can be in a condition."""
    return name == "latin1_swedish_ci" and not collation.is_known(name)


@golden.each("collation_compare")
def test_texts_are_equal_and_ordered_as_in_tidb(vector: Any) -> None:
    name, expected = vector["args"]["collation"], vector["expected"]["cmp"]
    texts = [bytes.fromhex(vector["args"][side]) for side in ("left_hex", "right_hex")]
    if is_refused(name):
        return
    try:
        left, right = (folded(text.decode("latin-1" if name == "binary" else "utf-8"), name) for text in texts)
    except UnicodeDecodeError:  # a row with such a text does not get as far as a condition
        return
    assert (left == right) == (expected == 0)
    if collation.has_order(name):
        assert (left > right) - (left < right) == expected


@golden.each("collation_sort_key")
def test_texts_are_equal_where_their_sort_keys_are(vector: Any) -> None:
    name, text, key = vector["args"]["collation"], vector["args"]["text"], vector["expected"]["key_hex"]
    if is_refused(name):
        return
    for other in golden.vectors("collation_sort_key"):
        if other["args"]["collation"] == name:
            same = folded(text, name) == folded(other["args"]["text"], name)
            assert same == (key == other["expected"]["key_hex"]), other["args"]
