"""TiCDC's CSV: the corpus of its own tests and manual, and what any reader of CSV must get back."""

from __future__ import annotations

import csv
import io
import math
from decimal import Decimal
from typing import Any

import golden
import numpy as np
import pyarrow as pa
import pytest
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.schema.sql_type import SqlType
from changefeed.sink.records import Records
from changefeed.sink.storage.codec.csv import CsvFormat, encode, fingerprint, header
from changefeed.sink.text.go_float import go_float
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_rows import CSV, STORAGE, column, make_table

OPS = {"delete": OP_DELETE, "update": OP_UPDATE, "insert": OP_INSERT}
TEXT = 253


def format_of(config: dict[str, Any]) -> CsvFormat:
    return CsvFormat(**{name.replace("-", "_"): option for name, option in config.items()})


def one_row(values: list[Any], fmt: CsvFormat, op=OP_INSERT, ts=1, names=("test", "t"), tp=TEXT, charset="") -> str:
    columns = [column(n + 1, f"c{n}", tp, charset=charset) for n in range(len(values))]
    table = make_table(columns, names[1]).to_json() | {"schema_name": names[0]}
    arrays = [value if isinstance(value, pa.Array) else pa.array([value]) for value in values]
    records = Records(
        make_table([]).from_json(table),
        np.array([op], np.uint8),
        np.zeros(1, np.bool_),
        pa.array([ts], pa.uint64()),
        arrays,
    )
    return encode(records, fmt).to_pybytes().decode()


@golden.each("csv_row")
def test_corpus_rows(vector):
    args = vector["args"]
    line = one_row(
        args["values"],
        format_of(args["config"]),
        golden.known(OPS, args["op"]),
        int(args["commit_ts"]),
        (args["schema"], args["table"]),
    )
    assert line == vector["expected"]["text"]


def test_a_row_of_no_columns_is_a_line_too():
    assert one_row([], CsvFormat()) == '"I","t","test"\r\n'
    assert one_row([], CsvFormat(include_commit_ts=True)) == '"I","t","test",1\r\n'


@golden.each("csv_header")
def test_corpus_headers(vector):
    args = vector["args"]
    assert header(args["columns"], format_of(args["config"])).decode() == (vector["expected"]["text"] or "")


@golden.each("csv_escape")
def test_corpus_escapes(vector):
    args = vector["args"]
    fmt = CsvFormat(delimiter=args["delimiter"], quote=args["quote"], terminator="")
    assert one_row([args["value"]], fmt).split(args["delimiter"], 3)[3] == vector["expected"]["text"]


@golden.each("csv_quote")
def test_corpus_quotes(vector):
    args = vector["args"]
    fmt = CsvFormat(quote=args["quote"], terminator="")
    assert one_row([args["value"]], fmt).split(",", 3)[3] == vector["expected"]["text"]


@golden.each("csv_value")
def test_corpus_values(vector):
    """Names of ENUM and SET are the row decoder's work, which hands text to a codec."""
    args, expected = vector["args"], vector["expected"]["csv"]
    tp = args["tp"]
    if "elems" in args:
        elems, number = args["elems"], int(args["value"])
        value: Any = elems[number - 1] if tp == 247 else ",".join(e for i, e in enumerate(elems) if number >> i & 1)
    elif expected is None:
        value = pa.array([None], pa.string())
    elif isinstance(expected, float):
        value = pa.array([float(args["value"])], pa.float32() if tp == 4 else pa.float64())
    else:
        value = int(args["value"]) if isinstance(expected, int) else args["value"]
    fmt = CsvFormat(terminator="", binary_encoding_method=args.get("encoding", "base64"))
    cell = one_row([value], fmt, tp=tp, charset=args.get("charset", "utf8mb4")).split(",", 3)[3]
    if expected is None:
        assert cell == "\\N"
    else:
        assert cell == (f'"{expected}"' if isinstance(expected, str) else str(expected))


def test_a_decimal_is_text_though_tidb_calls_its_charset_binary():
    line = one_row(["-62.25"], CsvFormat(terminator=""), tp=SqlType.DECIMAL, charset="binary")
    assert line == '"I","t","test","-62.25"'


def many(rows: list[tuple[int, int | None, str | None]], ops: list[int] | None = None) -> Records:
    table = make_table(
        [column(1, "id", SqlType.BIGINT), column(2, "k", SqlType.BIGINT), column(3, "name", SqlType.VARCHAR)]
    )
    return Records(
        table,
        np.array(ops if ops is not None else [OP_INSERT] * len(rows), np.uint8),
        np.zeros(len(rows), np.bool_),
        pa.array(range(10, 10 + len(rows)), pa.uint64()),
        [
            pa.array([row[0] for row in rows], pa.int64()),
            pa.array([row[1] for row in rows], pa.int64()),
            pa.array([row[2] for row in rows], pa.string()),
        ],
    )


def test_golden_lines():
    records = many([(1, -5, 'say "hi"'), (2, None, None), (3, 0, "")], [OP_DELETE, OP_UPDATE, OP_INSERT])
    assert encode(records, CsvFormat(include_commit_ts=True)).to_pybytes() == (
        b'"D","t","shop",10,1,-5,"say ""hi"""\r\n"U","t","shop",11,2,\\N,\\N\r\n"I","t","shop",12,3,0,""\r\n'
    )


def test_null_is_never_quoted_and_its_text_as_a_value_always_is():
    assert one_row(["\\N", pa.array([None], pa.string())], CsvFormat()).endswith(',"\\N",\\N\r\n')


def test_a_longer_delimiter_is_escaped_character_by_character_where_it_occurs_whole():
    fmt = CsvFormat(delimiter="ab", quote="", terminator="")
    assert one_row(["xaby-a-b"], fmt) == "Iabtabtestabx\\a\\by-a-b"


def test_names_are_quoted_like_values():
    assert one_row([1], CsvFormat(), names=('s"s', "t\nt")).startswith('"I","t\nt","s""s",1')


def test_a_slice_gives_its_own_rows_only():
    whole = many([(n, n, f"n{n}") for n in range(10)])
    piece = Records(
        whole.table,
        whole.op[4:6],
        whole.is_update[4:6],
        whole.commit_ts.slice(4, 2),
        [values.slice(4, 2) for values in whole.columns],
    )
    lines = encode(whole, CsvFormat()).to_pybytes().splitlines(keepends=True)
    assert encode(piece, CsvFormat()).to_pybytes() == b"".join(lines[4:6])


def test_rule_13_no_records_are_no_bytes():
    assert encode(many([]), CsvFormat()).size == 0


def test_unsigned_numbers_are_whole():
    assert one_row([pa.array([(1 << 64) - 1], pa.uint64())], CsvFormat(), ts=(1 << 64) - 1).endswith(
        ",18446744073709551615\r\n"
    )


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), CELLS), max_size=20), st.sampled_from(["\r\n", "\n"]))
def test_what_is_written_reads_back(rows, terminator):
    records = many([(number, number, text) for number, text in rows])
    content = encode(records, CsvFormat(terminator=terminator)).to_pybytes().decode()
    # An unquoted line break inside a value can't be confused with a record's end: text is always quoted.
    parsed = list(csv.reader(io.StringIO(content, newline=""), strict=True))
    assert parsed == [["I", "t", "shop", str(number), str(number), text] for number, text in rows]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.none() | st.integers(-(2**63), 2**63 - 1), st.none() | CELLS), max_size=20),
    st.sampled_from([",", "|", "\t"]),
    st.sampled_from(["\\N", "", "a,b"]),
    st.booleans(),
)
def test_arrows_writer_gives_what_joined_parts_do(rows, delimiter, null, more):
    fmt = CsvFormat(delimiter=delimiter, null=null, include_commit_ts=more, output_old_value=more)
    records = many([(1, number, text) for number, text in rows])
    assert fmt.is_arrows
    found = encode(records, fmt).to_pybytes()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CsvFormat, "is_arrows", False)
        assert encode(records, fmt).to_pybytes() == found


@given(st.lists(CELLS, max_size=20), st.sampled_from([",", "!", "|+|"]))
def test_without_quotes_escapes_read_back(texts, delimiter):
    records = many([(1, 1, text) for text in texts])
    content = encode(records, CsvFormat(delimiter=delimiter, quote="", terminator="\n")).to_pybytes().decode()
    lines = content.split("\n")[:-1]
    assert [unescape(line.split(delimiter, 5)[5]) for line in lines] == texts


def unescape(text: str) -> str:
    out, letters = [], iter(text)
    for letter in letters:
        escaped = next(letters) if letter == "\\" else None
        out.append(letter if escaped is None else {"r": "\r", "n": "\n"}.get(escaped, escaped))
    return "".join(out)


def go_text(value: float) -> str:
    """Go's %v, from its definition: shortest digits, %e for a decimal exponent below -4 or from 6."""
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    text = "".join(map(str, digits))
    power = len(text) + exponent - 1
    minus = "-" if sign else ""
    if power < -4 or power >= 6:
        fraction = f".{text[1:]}" if len(text) > 1 else ""
        return f"{minus}{text[0]}{fraction}e{'-' if power < 0 else '+'}{abs(power):02}"
    if power < 0:
        return f"{minus}0.{'0' * (-power - 1)}{text}"
    whole, fraction = text[: power + 1].ljust(power + 1, "0"), text[power + 1 :]
    return f"{minus}{whole}.{fraction}" if fraction else f"{minus}{whole}"


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.floats(-1e7, 1e7), min_size=1))
def test_doubles_are_printed_as_go_does(values):
    assert go_float(pa.array(values, pa.float64())).to_pylist() == [go_text(value) for value in values]


def test_floats_have_their_own_shortest_digits_and_null_stays():
    found = go_float(pa.array([3.14, 1e6, 999999.0, 0.0001, 1e-5, None, 1e10, -2.5], pa.float32()))
    assert found.to_pylist() == ["3.14", "1e+06", "999999", "0.0001", "1e-05", None, "1e+10", "-2.5"]


def test_the_format_comes_from_the_effective_spec():
    storage = STORAGE | {"terminator": "\n", "csv": CSV | {"quote": "'", "outputOldValue": True}}
    assert CsvFormat.from_config(storage) == CsvFormat(
        quote="'", terminator="\n", include_commit_ts=True, output_old_value=True
    )


def test_rule_10_the_fingerprint_names_what_formats_values():
    import polars as pl

    assert fingerprint() == f"csv-1 pyarrow-{pa.__version__} polars-{pl.__version__}"
