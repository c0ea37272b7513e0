"""Compressed text files: one gzip member or zstd frame of the very text, the same bytes each time."""

from __future__ import annotations

import gzip
import random
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from changefeed.model.position import Position
from changefeed.sink.storage.codec import encoder
from changefeed.sink.storage.codec.choice import file_codec
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_rows import STORAGE, Row, encode_file, insert, shuffled

ROWS = [insert(5 + n // 7, n, n, "x" * (n % 50)) for n in range(500)]
COMPRESSIONS = ("gzip", "zstd")


def plain(content: bytes, compression: str) -> bytes:
    if compression == "gzip":
        return gzip.decompress(content)
    with pa.CompressedInputStream(pa.BufferReader(content), "zstd") as stream:
        return bytes(stream.read())


def written(folder: Path, *segments: list[Row], **options: Any) -> bytes:
    return encode_file(folder, *segments, **options)[1]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("protocol", ["csv", "canal-json"])
def test_a_compressed_file_is_the_text(tmp_path: Path, protocol: str, compression: str) -> None:
    text = written(tmp_path, ROWS, protocol=protocol, outputFieldHeader=True)
    content = written(tmp_path, ROWS, protocol=protocol, outputFieldHeader=True, compression=compression)
    assert plain(content, compression) == text
    assert len(content) < len(text) / 2


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_rule_10_other_segments_and_repeats_give_the_same_bytes(
    tmp_path: Path, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "BLOCK", 1000)
    whole = written(tmp_path, ROWS, compression=compression)
    assert written(tmp_path, *shuffled(ROWS, 3, 4), compression=compression) == whole
    assert plain(whole, compression) == written(tmp_path, ROWS)


@settings(deadline=None)
@given(st.sampled_from(COMPRESSIONS), st.integers(0, 1 << 32), st.lists(st.integers(0, 3000), max_size=6))
def test_rule_10_how_a_text_comes_in_pieces_reaches_no_byte(compression: str, seed: int, cuts: list[int]) -> None:
    text = random.Random(seed).randbytes(1500) * 2

    def compressed(*pieces: bytes) -> bytes:
        given_pieces: Any = [pa.py_buffer(piece) for piece in pieces]
        file = encoder.Compressed(encoder.Lines(b"head", iter), compression)
        return b"".join(piece.to_pybytes() for piece in [*file.add(given_pieces), *file.end()])

    bounds = [0, *sorted(cuts), len(text)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(encoder, "BLOCK", 700)
        pieces = [text[start:end] for start, end in pairwise(bounds)]
        assert compressed(*pieces) == compressed(text)
        assert plain(compressed(text), compression) == b"head" + text


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_bytes_come_while_the_text_does(compression: str) -> None:
    """Nothing large waits for the end, however small the pieces are."""
    piece: Any = [pa.py_buffer(random.Random(0).randbytes(64 << 10))]
    file = encoder.Compressed(encoder.Lines(b"", iter), compression)
    sizes = [sum(each.size for each in file.add(piece)) for _ in range(64)]  # 4 MiB
    assert sum(sizes) > 0
    assert max(sizes) < 2 << 20
    assert sum(each.size for each in file.end()) < 2 << 20


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_rule_13_an_entry_without_rows_is_a_file(tmp_path: Path, compression: str) -> None:
    assert plain(written(tmp_path, ROWS, to=Position.end_of(4), compression=compression), compression) == b""


def test_gzip_holds_no_time(tmp_path: Path) -> None:
    assert written(tmp_path, ROWS, compression="gzip")[4:8] == bytes(4)


def test_the_fingerprint_names_what_compresses() -> None:
    text = file_codec(STORAGE).fingerprint
    assert file_codec(STORAGE | {"compression": "gzip"}).fingerprint == f"{text} gzip zlib-{zlib.ZLIB_RUNTIME_VERSION}"
    assert file_codec(STORAGE | {"compression": "zstd"}).fingerprint == f"{text} zstd pyarrow-{pa.__version__}"
    assert file_codec({each: STORAGE[each] for each in STORAGE if each != "compression"}).fingerprint == text
