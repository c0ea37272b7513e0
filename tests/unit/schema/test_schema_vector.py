"""VECTOR: the golden data's literals, any vectors, and broken bytes."""

from __future__ import annotations

import struct
from decimal import Decimal

import golden
import numpy as np
import pyarrow as pa
import pytest
from changefeed.upstream.binary_view import BadCell
from changefeed.upstream.tikv.row.vectors import vector_texts
from hypothesis import given
from hypothesis import strategies as st


def encode(elements: list[float]) -> bytes:
    return struct.pack(f"<I{len(elements)}f", len(elements), *elements)


def texts(*vectors: bytes) -> list[str]:
    found: list[str] = vector_texts(pa.array(vectors, pa.binary())).to_pylist()
    return found


@golden.each("vector_float32")
def test_vectors_of_the_corpus(vector):
    if "input_hex" in vector:
        encoded = bytes.fromhex(vector["input_hex"])
    else:
        encoded = encode([float(element) for element in vector["args"]["elements"]])
    if "error" in vector["expected"]:
        with pytest.raises(BadCell):
            texts(encoded)
    else:
        assert texts(encoded) == [vector["expected"]["text"]]


def test_no_element_has_an_exponent():
    assert texts(encode([1e20, 1e-7, 0.1, -0.0]), encode([]), encode([123456789.0])) == [
        "[100000000000000000000,0.0000001,0.1,-0]",
        "[]",
        "[123456790]",
    ]


@given(st.lists(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=5), max_size=5))
def test_vectors_come_back(vectors):
    for found, vector in zip(texts(*map(encode, vectors)), vectors, strict=True):
        assert "e" not in found
        elements = [np.float32(Decimal(text)) for text in found[1:-1].split(",") if text]
        assert elements == [np.float32(element) for element in vector]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "has no count"),
        (b"\x01\x00\x00", "has no count"),
        (encode([1.0])[:-1], "its count is not that"),
        (encode([1.0]) + b"\x00", "its count is not that"),
        (b"\xff\xff\xff\xff", "its count is not that"),
        (struct.pack("<If", 1, float("nan")), "not finite"),
    ],
)
def test_what_is_no_vector_is_refused_by_row(value, why):
    with pytest.raises(BadCell, match=why) as caught:
        texts(encode([]), encode([1.0, 2.0]), value)
    assert caught.value.row == 2
