"""TiCDC's canal-json: the corpus of its tests and manual, and lines built one by one as its encoder does."""

from __future__ import annotations

import json
import math
import re
import time
from decimal import Decimal
from typing import Any

import golden
import numpy as np
import pyarrow as pa
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.pipeline import run
from changefeed.schema import table_info as ti
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import FLAG_NOT_NULL, FLAG_PRI_KEY, FLAG_UNSIGNED, TableInfo
from changefeed.sink.records import Records
from changefeed.sink.storage.codec.choice import file_codec
from changefeed.sink.text.canal_json import CanalJsonFormat, encode, fingerprint
from changefeed.sink.text.canal_types import handle_key, mysql_type
from changefeed.sink.text.go_float import plain_float
from changefeed.sink.text.json_text import escaped
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_rows import STORAGE, delete, encode_file, index, insert, make_table, shuffled, update, with_index

OPS = {"delete": OP_DELETE, "update": OP_UPDATE, "insert": OP_INSERT}
FLAG_ZEROFILL = 64

# As TiDB fills in what a definition leaves out: code, length, decimals.
DEFINED = {
    "tinyint": (SqlType.TINYINT, 4, 0),
    "boolean": (SqlType.TINYINT, 1, 0),
    "smallint": (SqlType.SMALLINT, 6, 0),
    "mediumint": (SqlType.MEDIUMINT, 9, 0),
    "int": (SqlType.INT, 11, 0),
    "bigint": (SqlType.BIGINT, 20, 0),
    "float": (SqlType.FLOAT, 12, -1),
    "double": (SqlType.DOUBLE, 22, -1),
    "decimal": (SqlType.DECIMAL, 10, 0),
    "numeric": (SqlType.DECIMAL, 10, 0),
    "bit": (SqlType.BIT, 1, 0),
    "year": (SqlType.YEAR, 4, 0),
    "date": (SqlType.DATE, 10, 0),
    "time": (SqlType.TIME, 10, 0),
    "datetime": (SqlType.DATETIME, 19, 0),
    "timestamp": (SqlType.TIMESTAMP, 19, 0),
    "char": (SqlType.CHAR, 1, 0),
    "binary": (SqlType.CHAR, 1, 0),
    "varchar": (SqlType.VARCHAR, 5, 0),
    "varbinary": (SqlType.VARCHAR, 5, 0),
    "tinytext": (SqlType.TINYTEXT, 255, 0),
    "tinyblob": (SqlType.TINYTEXT, 255, 0),
    "text": (SqlType.TEXT, 65535, 0),
    "blob": (SqlType.TEXT, 65535, 0),
    "mediumtext": (SqlType.MEDIUMTEXT, 16777215, 0),
    "mediumblob": (SqlType.MEDIUMTEXT, 16777215, 0),
    "longtext": (SqlType.LONGTEXT, 4294967295, 0),
    "longblob": (SqlType.LONGTEXT, 4294967295, 0),
    "enum": (SqlType.ENUM, -1, 0),
    "set": (SqlType.SET, -1, 0),
    "json": (SqlType.JSON, 4294967295, 0),
}


def defined(number: int, name: str, definition: str, flag: int = 0) -> dict[str, Any]:
    """A column of TiDB's own JSON, from how SQL defines it."""
    found = re.fullmatch(r"(\w+) ?(?:\(([^)]*)\))?(.*)", definition)
    if found is None:
        raise golden.UnknownShape(definition)
    word, inside, rest = found.groups()
    tp, flen, decimal = golden.known(DEFINED, word)
    elems = re.findall(r"'([^']*)'", inside) if inside and tp in (SqlType.ENUM, SqlType.SET) else []
    flag |= FLAG_ZEROFILL | FLAG_UNSIGNED if "zerofill" in rest or tp == SqlType.YEAR else 0
    flag |= FLAG_UNSIGNED if "unsigned" in rest or tp == SqlType.BIT else 0
    if inside and not elems:
        first, _, second = inside.replace(" ", "").partition(",")
        if tp in (SqlType.DATETIME, SqlType.TIMESTAMP, SqlType.TIME):
            decimal = int(first)
        elif tp not in (SqlType.FLOAT, SqlType.DOUBLE) or second:
            flen, decimal = int(first), int(second or 0)
    elif flag & FLAG_UNSIGNED and tp in ti.INTEGERS - {SqlType.BIGINT}:
        flen -= 1
    is_text = tp in ti.STRINGS | ti.BLOBS | {SqlType.ENUM, SqlType.SET} and "bin" not in word and "blob" not in word
    field_type = {
        "Tp": tp,
        "Flag": flag,
        "Flen": flen,
        "Decimal": decimal,
        "Charset": "utf8mb4" if is_text else "binary",
        "Elems": elems,
    }
    return {"id": number, "name": {"O": name}, "offset": number - 1, "type": field_type, "state": 5}


def table_of(definitions: dict[str, str], primary: tuple[str, ...] = (), schema: str = "shop", name: str = "t", **more):
    columns = [
        defined(n + 1, column, definition, FLAG_PRI_KEY | FLAG_NOT_NULL if column in primary else 0)
        for n, (column, definition) in enumerate(definitions.items())
    ]
    return TableInfo.from_json(make_table(columns, name, **more).to_json() | {"schema_name": schema})


def arrow_type(column: ti.ColumnInfo) -> pa.DataType:
    """As the mounter hands values on."""
    if column.type in ti.INTEGERS | {SqlType.BIT, SqlType.YEAR}:
        return pa.uint64() if column.is_unsigned and column.type != SqlType.YEAR else pa.int64()
    if column.type in (SqlType.ENUM, SqlType.SET):
        return pa.struct([("number", pa.uint64()), ("text", pa.string())])
    floats = {SqlType.FLOAT: pa.float32(), SqlType.DOUBLE: pa.float64()}
    return floats.get(column.type, pa.binary() if column.is_binary else pa.string())


def lines_of(
    table: TableInfo,
    rows: list[tuple[int, int, list[Any], list[Any] | None]],
    fmt: CanalJsonFormat = CanalJsonFormat(terminator="\n"),  # noqa: B008
    pd_ms: int = 5,
) -> bytes:
    """Lines of (op, commit ts, values, values before an update)."""
    types = [arrow_type(column) for column in table.output_columns]
    nothing = [None] * len(types)
    columns = [pa.array([row[2][i] for row in rows], tp) for i, tp in enumerate(types)]
    old = [pa.array([(row[3] or nothing)[i] for row in rows], tp) for i, tp in enumerate(types)]
    ts = pa.array([row[1] for row in rows], pa.uint64())
    op = np.array([row[0] for row in rows], np.uint8)
    records = Records(table, op, np.zeros(len(rows), np.bool_), ts, columns, old)
    return b"".join(piece.to_pybytes() for piece in encode(records, pd_ms, fmt))


# -- the corpus


@golden.each("canal_mysql_type")
def test_corpus_mysql_types(vector):
    args = vector["args"]
    column = table_of({"c": args["column_definition"]}).columns[0]
    assert mysql_type(column, full=args["content_compatible"]) == vector["expected"]["mysqlType"]


@golden.each("canal_java_type")
def test_corpus_java_types(vector):
    args = vector["args"]
    table = table_of({"c": args["column_definition"]})
    for text in args["value_range"] or ["nil"] if "value_range" in args else [args["value"]]:
        message = json.loads(lines_of(table, [(OP_INSERT, 1, [value_of(table.columns[0], text)], None)]))
        assert message["sqlType"] == {"c": vector["expected"]["sqlType"]}


def value_of(column: ti.ColumnInfo, text: str) -> Any:
    """A Go literal of the corpus, as the mounter hands the value on."""
    if text == "nil":
        return None
    inside = re.sub(r'^(?:u?int64|\[\]uint8)\((.*)\)$|^"(.*)"$', lambda found: found[1] or found[2], text).strip('"')
    tp = arrow_type(column)
    if pa.types.is_struct(tp):
        return {"number": int(inside), "text": ""}
    if pa.types.is_integer(tp):
        return int(inside)
    if pa.types.is_floating(tp):
        return float(inside)
    return inside.encode() if pa.types.is_binary(tp) else inside


@golden.each("canal_json_value")
def test_corpus_values(vector):
    args = vector["args"]
    table = table_of({"c": args["column_type"]})
    line = lines_of(table, [(OP_INSERT, 1, [bytes.fromhex(args["bytes_hex"])], None)]).decode()
    assert line.endswith(f',"data":[{{"c":{vector["expected"]["json_string"]}}}]}}\n')


@golden.each("canal_json_message")
def test_corpus_messages(vector):
    args = vector["args"]
    expected = vector["expected"].get("json") or vector["expected"]
    names = list(args["row"])
    types = expected.get("mysqlType") or dict.fromkeys(names, "bigint")
    table = table_of(
        {name: types[name] for name in names}, ("id",), expected.get("database", ""), expected.get("table")
    )

    def values(row: dict[str, Any]) -> list[Any]:
        return [int(row[c.name]) if c.type in ti.INTEGERS else row[c.name] for c in table.columns]

    commit_ts = int(expected.get("_tidb", {}).get("commitTs", expected.get("es", 0) << 18))
    fmt = CanalJsonFormat(
        enable_tidb_extension=args.get("enable_tidb_extension", False),
        content_compatible=args.get("content_compatible", False),
        only_output_updated_columns=args.get("content_compatible", False),
    )
    old = values(args["old_row"]) if args.get("old_row") else None
    row = (golden.known(OPS, args["event"]), commit_ts, values(args["row"]), old)
    message = json.loads(lines_of(table, [row], fmt, pd_ms=expected.get("ts", 0)))
    contradictory = {"es"} if "_tidb" in expected else set()
    compared = expected.keys() - contradictory
    if not compared <= message.keys():
        raise golden.UnknownShape(f"members {sorted(compared - message.keys())}")
    assert {name: message[name] for name in compared} == {name: expected[name] for name in compared}
    if "json" in vector["expected"]:
        assert message.keys() == expected.keys()


# -- whole lines, to the letter

ORDERS = table_of({"id": "bigint", "amount": "decimal(10,2)", "note": "varchar(20)"}, ("id",))


def test_golden_insert():
    line = lines_of(ORDERS, [(OP_INSERT, 7 << 18 | 3, [1, "2.50", None], None)], CanalJsonFormat(), pd_ms=99)
    assert line == (
        b'{"id":0,"database":"shop","table":"t","pkNames":["id"],"isDdl":false,"type":"INSERT","es":7,"ts":99,"sql":"",'
        b'"sqlType":{"id":-5,"amount":3,"note":12},"mysqlType":{"id":"bigint","amount":"decimal","note":"varchar"},'
        b'"old":null,"data":[{"id":"1","amount":"2.50","note":null}]}\r\n'
    )


def test_golden_update_with_all_columns_of_the_row_before():
    row = (OP_UPDATE, 7 << 18, [1, "2.50", 'say "hi"'], [1, None, "<b>"])
    assert lines_of(ORDERS, [row]).partition(b',"old":')[2] == (
        b'[{"id":"1","amount":null,"note":"\\u003cb\\u003e"}],'
        b'"data":[{"id":"1","amount":"2.50","note":"say \\"hi\\""}]}\n'
    )


def test_golden_delete_of_the_handle_key_only_with_the_extension():
    fmt = CanalJsonFormat(delete_only_output_handle_key_columns=True, enable_tidb_extension=True)
    assert lines_of(ORDERS, [(OP_DELETE, (7 << 18) + 1, [1, "2.50", "x"], None)], fmt) == (
        b'{"id":0,"database":"shop","table":"t","pkNames":["id"],"isDdl":false,"type":"DELETE","es":7,"ts":5,"sql":"",'
        b'"sqlType":{"id":-5},"mysqlType":{"id":"bigint"},"old":null,"data":[{"id":"1"}],"_tidb":{"commitTs":1835009}}\r\n'
    )


def test_only_columns_that_changed_are_in_old():
    fmt = CanalJsonFormat(terminator="\n", only_output_updated_columns=True)
    changes = [
        ([1, "1.00", "a"], [1, "1.00", "a"], [{}]),
        ([1, "1.00", "a"], [1, "1.01", None], [{"amount": "1.01", "note": None}]),
        ([1, "1.00", None], [2, "1.00", "b"], [{"id": "2", "note": "b"}]),
        ([1, None, None], [1, None, None], [{}]),
    ]
    lines = lines_of(ORDERS, [(OP_UPDATE, 1, new, old) for new, old, _ in changes], fmt).splitlines()
    assert [json.loads(line)["old"] for line in lines] == [expected for _, _, expected in changes]


def test_a_table_without_any_key_has_nothing_to_show_of_a_delete():
    fmt = CanalJsonFormat(terminator="\n", delete_only_output_handle_key_columns=True)
    line = lines_of(table_of({"a": "int"}), [(OP_DELETE, 1, [1], None)], fmt)
    assert b'"pkNames":[]' in line
    assert line.endswith(b'"sqlType":null,"mysqlType":{},"old":null,"data":[{}]}\n')


def test_the_handle_key_is_the_primary_key_or_the_shortest_unique_one_without_null():
    table = table_of({"a": "int", "b": "int", "c": "int", "d": "int"})
    columns = table.to_json()["cols"]
    for column in columns[:3]:
        column["type"]["Flag"] = FLAG_NOT_NULL
    sure = TableInfo.from_json(table.to_json() | {"cols": columns})
    indexes = [index("a", "b") | {"id": 1}, index("d") | {"id": 2}, index("c") | {"id": 4}, index("b") | {"id": 3}]
    assert handle_key(with_index(sure, *indexes)) == {"b"}
    assert handle_key(with_index(ORDERS, index("note"))) == {"id"}
    assert handle_key(with_index(sure, index("a", unique=False))) == set()


def test_unsigned_values_beyond_javas_types_have_the_next_type_row_by_row():
    table = table_of({"a": "tinyint unsigned", "b": "bigint unsigned"})
    rows = [[127, 2**63 - 1], [128, 2**63], [None, None]]
    lines = lines_of(table, [(OP_INSERT, 1, row, None) for row in rows]).splitlines()
    assert [json.loads(line)["sqlType"] for line in lines] == [{"a": -6, "b": -5}, {"a": 5, "b": 3}, {"a": -6, "b": -5}]


def test_enum_set_and_bit_are_numbers():
    table = table_of({"e": "enum('x','y')", "s": "set('p','q')", "b": "bit(8)"})
    values = [{"number": 2, "text": "y"}, {"number": 3, "text": "p,q"}, 65]
    old = [{"number": 1, "text": "x"}, None, 65]
    fmt = CanalJsonFormat(terminator="\n", only_output_updated_columns=True)
    inserted, updated = map(
        json.loads, lines_of(table, [(OP_INSERT, 1, values, None), (OP_UPDATE, 1, values, old)], fmt).splitlines()
    )
    assert inserted["data"] == updated["data"] == [{"e": "2", "s": "3", "b": "65"}]
    assert updated["old"] == [{"e": "1", "s": None}]
    assert inserted["sqlType"] == {"e": 4, "s": -7, "b": -7}


def test_full_types_quote_what_a_literal_must():
    column = table_of({"e": "enum('x')"}).to_json()["cols"][0]
    column["type"]["Elems"] = ["it's", "a\nb"]
    table = TableInfo.from_json(ORDERS.to_json() | {"cols": [column]})
    assert mysql_type(table.columns[0], full=True) == r"enum('it''s','a\nb')"


# -- any rows

NASTY = st.text(st.sampled_from('a"\\<>&\t\r\n\0\x1f\x7f\x80é\u2027\u2028\u2029\ufffd\U0001f600/')) | st.text(
    max_size=8
)
BYTES = st.binary(max_size=8) | st.lists(st.sampled_from([b"\xe4\xbd", b"\xa0", b"\xff", b"ok", b"<"])).map(b"".join)
NUMBERS = st.integers(0, 2**64 - 1) | st.none()
FLOATS = st.floats(allow_nan=False, allow_infinity=False) | st.none()
ALL = table_of(
    {'i"d': "bigint unsigned", "t": "text", "b": "blob", "d": "double"}, ('i"d',), "s<1", "ta&ble", pk_is_handle=True
)
ROW = st.tuples(NUMBERS, NASTY | st.none(), BYTES | st.none(), FLOATS).map(list)
ROWS = st.lists(st.tuples(st.sampled_from([OP_DELETE, OP_UPDATE, OP_INSERT]), st.integers(1, 2**64 - 1), ROW, ROW))
FORMATS = st.builds(
    CanalJsonFormat, st.sampled_from(["\r\n", "\n"]), st.booleans(), st.booleans(), st.booleans(), st.booleans()
)


def go_string(value: bytes) -> str:
    """easyjson's Writer.String: a rune at a time."""
    out, i = '"', 0
    while i < len(value):
        width = next((w for w in (1, 2, 3, 4) if is_rune(value[i : i + w])), 0)
        rune = value[i : i + width].decode() if width else ""
        if not width:
            out += "\\ufffd"
        elif rune in '\t\r\n\\"':
            out += {"\t": "\\t", "\r": "\\r", "\n": "\\n", "\\": "\\\\", '"': '\\"'}[rune]
        elif rune < " " or rune in "<>&\u2028\u2029":
            out += f"\\u{ord(rune):04x}"
        else:
            out += rune
        i += width or 1
    return out + '"'


def is_rune(piece: bytes) -> bool:
    try:
        return len(piece.decode()) == 1
    except UnicodeDecodeError:
        return False


def go_plain(value: float) -> str:
    """FormatFloat with 'f' and -1."""
    return f"{'-' if math.copysign(1, value) < 0 else ''}{abs(Decimal(repr(value))):f}".removesuffix(".0")


def as_text(row: list[Any]) -> dict[str, str | None]:
    """By column, what a reader of the JSON must get."""
    number, text, data, double = row
    return {
        'i"d': None if number is None else str(number),
        "t": text,
        "b": None if data is None else data.decode("latin-1"),
        "d": None if double is None else go_plain(double),
    }


def reference(op: int, ts: int, row: list[Any], old: list[Any], fmt: CanalJsonFormat) -> str:
    """A line made as TiCDC's encoder does, member by member."""
    shown = ['i"d'] if op == OP_DELETE and fmt.delete_only_output_handle_key_columns else ['i"d', "t", "b", "d"]
    string = lambda text: go_string(text.encode())  # noqa: E731
    java = {'i"d': 3 if (row[0] or 0) > 2**63 - 1 else -5, "t": 2005, "b": 2004, "d": 8}
    full = "bigint(20) unsigned" if fmt.content_compatible else "bigint unsigned"
    mysql = {'i"d': full, "t": "text", "b": "blob", "d": "double"}
    new_text, old_text = as_text(row), as_text(old)

    def values(texts: dict[str, str | None], names: list[str]) -> str:
        members = (f"{string(n)}:{'null' if (t := texts[n]) is None else string(t)}" for n in names)
        return "[{" + ",".join(members) + "}]"

    changed = [name for name in shown if not fmt.only_output_updated_columns or new_text[name] != old_text[name]]
    line = (
        f'{{"id":0,"database":{string("s<1")},"table":{string("ta&ble")},"pkNames":[{string(shown[0])}],'
        f'"isDdl":false,"type":"{["DELETE", "UPDATE", "INSERT"][op]}","es":{ts >> 18},"ts":5,"sql":"",'
        f'"sqlType":{{{",".join(f"{string(n)}:{java[n]}" for n in shown)}}},'
        f'"mysqlType":{{{",".join(f"{string(n)}:{string(mysql[n])}" for n in shown)}}},'
        f'"old":{values(old_text, changed) if op == OP_UPDATE else "null"},"data":{values(new_text, shown)}'
    )
    return line + (f',"_tidb":{{"commitTs":{ts}}}' if fmt.enable_tidb_extension else "") + "}" + fmt.terminator


@settings(max_examples=50, deadline=None)
@given(ROWS, FORMATS)
def test_rule_10_lines_are_those_of_an_encoder_that_goes_row_by_row(rows, fmt):
    content = lines_of(ALL, rows, fmt).decode()
    assert content == "".join(reference(*row, fmt) for row in rows)


@settings(max_examples=50, deadline=None)
@given(ROWS, FORMATS)
def test_what_is_written_reads_back(rows, fmt):
    content = lines_of(ALL, rows, fmt).decode()
    messages = [json.loads(line) for line in content.split(fmt.terminator)[:-1]]
    assert len(messages) == len(rows)
    for message, (op, ts, row, old) in zip(messages, rows, strict=True):
        whole = as_text(row)
        assert message["data"] == [{name: whole[name] for name in message["data"][0]}]
        assert message["es"] == ts >> 18
        if op == OP_UPDATE and not fmt.only_output_updated_columns:
            assert message["old"] == [as_text(old)]


@settings(max_examples=50, deadline=None)
@given(st.lists(BYTES | st.none()))
def test_text_that_is_no_utf8_is_replaced_byte_by_byte(cells):
    broken = pa.array(cells, pa.binary())
    assert escaped(broken, is_text=True).to_pylist() == [
        None if cell is None else go_string(cell)[1:-1] for cell in cells
    ]


@settings(max_examples=50, deadline=None)
@given(st.lists(BYTES | st.none(), min_size=3))
def test_a_slice_of_bytes_is_escaped_alone(cells):
    values = pa.array(cells, pa.binary())
    for is_text in (False, True):
        whole = escaped(values, is_text=is_text).to_pylist()
        assert escaped(values.slice(1, len(cells) - 2), is_text=is_text).to_pylist() == whole[1:-1]


@settings(max_examples=50, deadline=None)
@given(st.lists(FLOATS, min_size=1))
def test_doubles_never_have_an_exponent(values):
    expected = [None if value is None else go_plain(value) for value in values]
    assert plain_float(pa.array(values, pa.float64())).to_pylist() == expected


def test_floats_have_their_own_shortest_digits():
    values = pa.array([3.14, 1e20, 1.5e-10, 1.2345678e10, None, -0.0, 3.4028235e38], pa.float32())
    assert plain_float(values).to_pylist() == [
        "3.14", "100000000000000000000", "0.00000000015", "12345678000", None, "-0",
        "340282350000000000000000000000000000000",
    ]  # fmt: skip


# -- rules and the way into the pipeline


def test_rule_10_a_wide_table_is_written_in_pieces_with_the_same_bytes(monkeypatch):
    rows = [(op, ts, [ts, "1.00", f"n{ts}"], [0, "0.00", "o"]) for ts, op in enumerate([2, 1, 0, 1, 2, 2, 1])]
    whole = lines_of(ORDERS, rows)
    assert [json.loads(line)["data"][0]["id"] for line in whole.splitlines()] == list("0123456")
    monkeypatch.setattr("changefeed.sink.text.canal_json.CONSTANT_BYTES", 2500)
    assert lines_of(ORDERS, rows) == whole


CHANGES = [insert(1, 1), insert(1, 2, 5, "<"), update(2, 1, (0, "n"), (7, 'q"')), delete(3, 2, 5, "<"), insert(9, 3)]
CANAL = {"protocol": "canal-json", "canalJson": STORAGE["canalJson"] | {"enableTidbExtension": True}}


def test_rule_10_chunks_segments_and_the_clock_reach_no_byte(tmp_path, monkeypatch):
    _, content = encode_file(tmp_path, CHANGES, **CANAL)
    assert [json.loads(line)["type"] for line in content.splitlines()] == [
        "INSERT",
        "INSERT",
        "UPDATE",
        "DELETE",
        "INSERT",
    ]
    assert json.loads(content.splitlines()[2])["old"] == [{"id": "1", "k": "0", "name": "n"}]
    monkeypatch.setattr(time, "time", lambda: 4e9)
    monkeypatch.setattr(time, "time_ns", lambda: 4 * 10**18)
    for seed, size in enumerate([1, 100, 200]):
        monkeypatch.setattr(run, "CHUNK_BYTES", size)
        assert encode_file(tmp_path, *shuffled(CHANGES, seed, segments=3), **CANAL)[1] == content


def test_rule_13_an_entry_without_rows_is_an_empty_file(tmp_path):
    file, content = encode_file(tmp_path, [], **CANAL)
    assert (content, file.rows, file.bytes) == (b"", 0, 0)


def test_rule_10_the_fingerprint_names_what_formats_values():
    import polars as pl

    expected = f"canal-json-1 pyarrow-{pa.__version__} polars-{pl.__version__}"
    assert fingerprint() == file_codec(STORAGE | CANAL).fingerprint == expected
    assert file_codec(STORAGE).fingerprint.startswith("csv-1 ")


def test_the_format_comes_from_the_effective_spec():
    options = STORAGE["canalJson"]
    chosen = CanalJsonFormat.from_config(STORAGE | {"canalJson": options | {"deleteOnlyOutputHandleKeyColumns": True}})
    assert chosen == CanalJsonFormat(terminator="\n", delete_only_output_handle_key_columns=True)
    implied = CanalJsonFormat.from_config(STORAGE | {"canalJson": options | {"contentCompatible": True}})
    assert implied.only_output_updated_columns
