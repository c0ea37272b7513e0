"""Which texts are equal under a collation, and in which order: TiDB's and TiKV's own literals, and the definitions."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import golden
import polars as pl
import pytest
from changefeed.filter import collation
from hypothesis import given, settings
from hypothesis import strategies as st

UCA, UCA_9, GENERAL = "utf8mb4_unicode_ci", "utf8mb4_0900_ai_ci", "utf8mb4_general_ci"
GBK, GB18030 = "gbk_chinese_ci", "gb18030_chinese_ci"
WEIGHTED = (UCA, UCA_9, GENERAL, GBK, GB18030, "gbk_bin")
BINARY = ("utf8mb4_bin", "utf8_bin", "ascii_bin", "latin1_bin", "utf8mb4_0900_bin", "binary")


def folded(texts: list[str | None], name: str) -> list[Any]:
    column = pl.Series("c", texts, dtype=pl.String)
    return column.to_frame().select(collation.folded(pl.col("c"), name)).to_series().to_list()


def key(text: str, name: str) -> bytes:
    (form,) = folded([text], name)
    return form.encode() if isinstance(form, str) else form


def order(left: str, right: str, name: str) -> int:
    one, other = key(left, name), key(right, name)
    return (one > other) - (one < other)


def tidbs(form: bytes, name: str) -> bytes:
    """TiDB writes a weight of GBK that fits into one byte as one."""
    if not name.startswith("gbk_"):
        return form
    units = [form[place : place + 2] for place in range(0, len(form), 2)]
    return b"".join(unit.removeprefix(b"\0") for unit in units)


def is_refused(name: str) -> bool:
    """latin1_swedish_ci and what only the newest TiDB has: no column under it can be in a condition."""
    return not collation.is_known(name)


@golden.each("collation_compare")
def test_texts_are_equal_and_ordered_as_in_tidb(vector: Any) -> None:
    name, expected = vector["args"]["collation"], vector["expected"]["cmp"]
    texts = [bytes.fromhex(vector["args"][side]) for side in ("left_hex", "right_hex")]
    if is_refused(name):
        return
    try:
        left, right = (text.decode("latin-1" if name == "binary" else "utf-8") for text in texts)
    except UnicodeDecodeError:  # a row with such a text does not get as far as a condition
        return
    found = order(left, right, name)
    assert found == expected if collation.has_order(name) else (found == 0) == (expected == 0)


@golden.each("collation_sort_key")
def test_sort_keys_are_tidbs(vector: Any) -> None:
    name, text, expected = vector["args"]["collation"], vector["args"]["text"], vector["expected"]["key_hex"]
    if is_refused(name):
        return
    if collation.has_order(name):
        assert tidbs(key(text, name), name).hex() == expected
        return
    for other in golden.vectors("collation_sort_key"):
        if other["args"]["collation"] == name:
            same = key(text, name) == key(other["args"]["text"], name)
            assert same == (expected == other["expected"]["key_hex"]), other["args"]


@pytest.mark.parametrize(
    ("one", "other", "equal_under"),
    [
        ("a", "A", (UCA, UCA_9, GENERAL, GBK, GB18030)),
        ("ß", "ss", (UCA, UCA_9)),
        ("ß", "s", (GENERAL,)),
        ("ß", "ẞ", (UCA_9, GBK, "gbk_bin")),  # the capital is newer than UCA 4.0.0; GBK has neither
        ("ß", "SS", (UCA, UCA_9)),
        ("æ", "ae", (UCA_9,)),
        ("æ", "Æ", (UCA, UCA_9, GENERAL, GBK, GB18030, "gbk_bin")),
        ("Œuvre", "oeuvre", (UCA, UCA_9)),
        ("ĳ", "ij", (UCA, UCA_9)),
        ("ﬁn", "fin", (UCA, UCA_9)),
        ("ŉ", "ʼn", (UCA, UCA_9)),
        ("ø", "o", (UCA_9,)),
        ("đ", "d", (UCA_9,)),
        ("ł", "l", (UCA_9,)),
        ("é", "e", (UCA, UCA_9, GENERAL)),
        ("\u00e9", "e\u0301", (UCA, UCA_9)),
        ("\u00e9", "\u00c9", (UCA, UCA_9, GENERAL, GB18030)),
        ("\u212b", "\u00c5", (UCA, UCA_9, GBK, "gbk_bin")),  # Angstrom
        ("й", "и", ()),
        ("ё", "е", (UCA, UCA_9, GENERAL)),
        ("ё", "Ё", (UCA, UCA_9, GENERAL, GB18030)),  # GBK has no capitals beyond ASCII
        ("ς", "σ", (UCA, UCA_9, GENERAL)),
        ("ς", "Σ", (UCA, UCA_9, GENERAL)),
        ("ſ", "S", (UCA, UCA_9, GENERAL, GB18030)),
        ("ı", "I", (GENERAL, GB18030)),
        ("µ", "Μ", (UCA, UCA_9, GENERAL)),
        ("ǅ", "ǆ", (UCA, UCA_9, GENERAL, GBK, "gbk_bin")),
        ("か", "カ", (UCA, UCA_9)),
        ("が", "か", (UCA, UCA_9)),
        ("각", "\u1100\u1161\u11a8", (UCA_9,)),
        ("㈠", "(一)", (UCA, UCA_9)),
        ("中", "㆗", (UCA, UCA_9)),
        ("ａ", "a", (UCA, UCA_9)),
        ("ａ", "Ａ", (UCA, UCA_9, GENERAL, GB18030)),
        ("co\u00adop", "coop", (UCA_9,)),
        ("a\0", "a", (UCA, UCA_9)),
        ("😜", "😃", (UCA, GENERAL, GBK, "gbk_bin")),
        ("𐐨", "𐐀", (UCA, UCA_9, GENERAL, GBK, GB18030, "gbk_bin")),
        ("ß", "æ", (GBK, "gbk_bin")),
        ("가", "㉡", (GBK, "gbk_bin")),
        ("ⅷ", "Ⅷ", (UCA, UCA_9, GENERAL, GB18030)),
        ("a ", "a", (UCA, GENERAL, GBK, GB18030, "gbk_bin")),
        ("a\t", "a", ()),
    ],
)  # fmt: skip
def test_letters_are_equal_by_the_definition(one: str, other: str, equal_under: tuple[str, ...]) -> None:
    assert {name for name in WEIGHTED if order(one, other, name) == 0} == set(equal_under)


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        (UCA, ["", " b", "!", "1", "a", "Äb", "æ", "b", "ss", "ßa", "я", "の", "一", "가"]),
        (UCA_9, ["", " ", "!", "1", "a", "æ", "af", "Äg", "b", "đa", "E", "я", "가", "の", "𗀀", "一"]),
        (GENERAL, ["1", "a", "B", "Æ", "я", "の", "一", "가", "￼", "𐐀"]),
        (GBK, ["1", "?", "A", "啊", "把", "文", "中"]),
        ("gbk_bin", ["1", "?", "A", "a", "啊", "把", "文", "中"]),
        *((name, ["A", "a", "é", "一", "가", "𐐀"]) for name in BINARY),
    ],
)
def test_texts_are_in_the_order_of_the_collation(name: str, texts: list[str]) -> None:
    assert collation.has_order(name)
    assert all(order(one, other, name) < 0 for one, other in pairwise(texts))


@settings(deadline=None)  # the first one reads the weights
@given(st.lists(st.one_of(st.none(), st.text(max_size=6))), st.sampled_from(WEIGHTED))
def test_a_text_has_the_weights_of_its_characters(texts: list[str | None], name: str) -> None:
    kept = [text if text is None or name == UCA_9 else text.rstrip(" ") for text in texts]
    characters = sorted({character for text in kept if text for character in text} - {" "})
    weights = dict(zip(characters, folded([*characters], name), strict=True))
    weights[" "] = key(" a", name).removesuffix(key("a", name))
    assert folded(texts, name) == [text if text is None else b"".join(map(weights.get, text)) for text in kept]


def test_columns_in_pieces_and_slices_are_folded() -> None:
    pieces = pl.concat([pl.Series("c", ["x", "Äß", None]), pl.Series("c", ["ae", "é "])], rechunk=False)
    (found,) = pieces.slice(1, 3).to_frame().select(collation.folded(pl.col("c"), UCA_9)).get_columns()
    assert found.to_list() == [key("ass", UCA_9), None, key("æ", UCA_9)]
