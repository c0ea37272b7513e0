"""What a consumer would read, and in which order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from changefeed.objectstore import Object
from changefeed.objectstore.local import LocalStore
from changefeed.reading.failures import Break, NotVerifiable
from changefeed.reading.layout.files import DirectoryFiles, read_layout
from changefeed.reading.rows import lines
from changefeed.reading.rows.formats import Format, Formats
from changefeed.reading.rows.lines import LineShape, read_lines, show_values
from changefeed.verify.result import Result
from changefeed.verify.storage.report import directories_of
from changefeed.verify.storage.table_files import TableFiles, lowest_commit_ts


def fmt(**options: Any) -> Format:
    given = {
        "protocol": "csv",
        "delimiter": ",",
        "quote": '"',
        "null": "\\N",
        "terminator": "\r\n",
        "header": False,
        "binary": "base64",
        "split_updates": True,
        "time_zone": "UTC",
    }
    return Format(**given | options)


#: It ends while a file is read no further than its first rows.
ABANDONED = r"""
import pyarrow as pa
from changefeed.reading.rows.formats import Format
from changefeed.reading.rows.lines import LineShape, read_lines
csv = Format("csv", ",", '"', "\\N", "\n", False, "base64", True, "UTC")
next(read_lines(b'"I","t","s",1,"v"\n' * 10, "f", LineShape(["v"], [pa.string()]), csv))
"""
CSV = fmt()
JSON = fmt(protocol="canal-json", binary="latin-1")
TEXT = LineShape(["v"], [pa.string()])


def put(root: Path, path: str, body: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(body, newline="")


def line(ts: int, value: str) -> str:
    return f'"I","t","s",{ts},{value}\r\n'


def values(body: str | bytes, shape: LineShape = TEXT, fmt: Format = CSV) -> list[Any]:
    raw = body.encode() if isinstance(body, str) else body
    return [value for piece in read_lines(raw, "f", shape, fmt) for value in piece["c0"].to_pylist()]


def test_files_are_read_by_number_and_up_to_the_index(tmp_path: Path) -> None:
    for index in range(1, 12):
        put(tmp_path, f"s/t/5/CDC{index:06}.csv", line(index, f'"v{index}"'))
    put(tmp_path, "s/t/5/meta/CDC.index", "CDC000010.csv\n")
    store, result = LocalStore(tmp_path), Result()
    sink = read_layout(store, 7)
    directory = sink.directories["s/t/5"]
    assert (directory.published, directory.first_hole, sink.problems) == (10, None, [])
    assert len(sink.listing().files) == 10
    files = TableFiles(store, ("s", "t"), TEXT, Formats({}, [CSV]))
    found = [row for path in directory.readable for row in files.read(path, store.get(path), result)]
    assert [value for piece in found for value in piece["c0"].to_pylist()] == [f"v{n}" for n in range(1, 11)]
    assert files.rows == 10
    assert files.where(9) == "s/t/5/CDC000010.csv, row 1"
    assert files.row(9) == ("I", 10, ["v10"])
    assert result.ok


def test_values_and_their_types() -> None:
    texts = ['"a ""b"", c"', '"two\r\nlines"', "\\N", '"\\N"', '""', '" x "']
    body = "".join(line(n, value) for n, value in enumerate(texts))
    assert values(body) == ['a "b", c', "two\r\nlines", None, "\\N", "", " x "]
    for kind, text, value in (
        (pa.int64(), "-5", -5),
        (pa.uint64(), "18446744073709551615", (1 << 64) - 1),
        (pa.float64(), "1e+06", 1e6),
        (pa.float32(), "0.1", pytest.approx(0.1)),
        (pa.binary(), '"AP9B"', b"\x00\xffA"),
        (pa.binary(), '""', b""),
        (pa.binary(), "\\N", None),
    ):
        assert values(line(1, text), LineShape(["v"], [kind])) == [value], text
    assert values(line(1, '"00ff41"'), LineShape(["v"], [pa.binary()]), fmt(binary="hex")) == [b"\x00\xffA"]
    assert values("") == []


def test_text_that_is_not_utf8_is_the_bytes_that_it_is() -> None:
    body = b"".join(line(1, text).encode("latin-1") for text in ('"a\xff"""', "\\N", '"\\N"', '"\xe4\r\n"'))
    assert values(body) == [b'a\xff"', None, b"\\N", b"\xe4\r\n"]
    shown = show_values(LineShape(["v", "b"], [pa.string(), pa.binary()]), [b"a\xff", b"a\xff"])
    assert shown == r"v='a\\xff', b='61ff'"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (line(1, '"x"'), pa.int64()),
        (line(1, "1.5"), pa.int64()),
        (line(1, "-1"), pa.uint64()),
        (line(1, '"x"'), pa.float64()),
        (line(1, '"_"'), pa.binary()),
        (line(1, "1,2"), pa.string()),
        ('"I","t","s",1\r\n', pa.string()),
        ('"I","t","s",x,"v"\r\n', pa.string()),
        (line(1, '"v"')[:-1], pa.string()),
    ],
)
def test_o6_a_line_that_is_none_of_the_table_is_a_break(body: str, kind: pa.DataType) -> None:
    with pytest.raises(Break, match=r"^f "):
        values(body, LineShape(["v"], [kind]))


def canal(value: str, **members: str) -> str:
    given = {"isDdl": "false", "type": '"UPDATE"', "data": f'[{{"v":{value},"w":"1"}}]'} | members
    tail = "".join(f',"{name}":{text}' for name, text in given.items())
    tidb = members.get("_tidb", '{"commitTs":7}')
    return f'{{"id":0,"database":"s","table":"t","pkNames":["v"],"mysqlType":{{"v":"int"}}{tail},"_tidb":{tidb}}}\r\n'


def test_canal_json_rows() -> None:
    shape = LineShape(["v", "w"], [pa.string(), pa.int64()])
    body = canal('"a\\u003c\\"\\r\\n"', type='"INSERT"') + canal("null", type='"DELETE"')
    (piece,) = read_lines(body.encode(), "f", shape, JSON)
    assert piece.to_pydict() == {
        "op": ["I", "D"],
        "table": ["t", "t"],
        "schema": ["s", "s"],
        "commit_ts": [7, 7],
        "c0": ['a<"\r\n', None],
        "c1": [1, 1],
    }
    binary = LineShape(["v", "w"], [pa.binary(), pa.int64()])
    body = "".join(canal(text) for text in ('"\\u0000A\u00ff\u0080"', "null", '""', '"\u00bf\u00c0z"'))
    assert values(body, binary, JSON) == [b"\x00A\xff\x80", None, b"", b"\xbf\xc0z"]


@pytest.mark.parametrize(
    "members",
    [{"data": "[]"}, {"data": "null"}, {"isDdl": "true"}, {"type": '"QUERY"'}, {"data": '[{"v":"1"},{"v":"2"}]'}],
    ids=str,
)
def test_canal_json_messages_that_are_no_row(members: dict[str, str]) -> None:
    with pytest.raises(Break, match=r"^f can't be decoded"):
        values(canal('"1"', **members), fmt=JSON)
    with pytest.raises(Break, match="no _tidb"):
        values(canal('"1"').replace('"commitTs"', '"onlyHandleKey"'), fmt=JSON)
    with pytest.raises(Break, match="above U"):
        values(canal('"\u0100"'), LineShape(["v"], [pa.binary()]), JSON)


def test_rows_longer_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK", 200)
    texts = ["a" * 50, "b" * 30, "c\n" * 500, "d" * 10, "e" * 400] * 3
    body = "".join(line(n, f'"{text}"') for n, text in enumerate(texts))
    assert values(body) == texts


def test_a_file_and_its_index_that_appear_while_the_sink_is_listed(tmp_path: Path) -> None:
    class Growing(LocalStore):
        def get(self, path: str) -> Object:
            put(tmp_path, "s/t/5/CDC000002.csv", line(2, "2"))
            put(tmp_path, "s/t/5/meta/CDC.index", "CDC000002.csv\n")
            return super().get(path)

    put(tmp_path, "s/t/5/CDC000001.csv", line(1, "1"))
    put(tmp_path, "s/t/5/meta/CDC.index", "CDC000001.csv\n")
    directory = read_layout(Growing(tmp_path), 1).directories["s/t/5"]
    assert (directory.published, directory.first_hole) == (2, None)


class At:
    """As much of a life as placing directories needs."""

    def __init__(self, stem: str) -> None:
        self.directory_stem = stem


def test_directories_belong_to_the_version_of_just_that_name(tmp_path: Path) -> None:
    """A table, or a version, may be named as a prefix of another, or "meta"."""
    for directory in (
        "shop/item/9/2026-01-02",
        "shop/item/9/2026-01-01",
        "shop/item/10/2026-01-01",
        "shop/item/91",
        "shop/items/9",
        "shop/meta/9",
        "sho/item/9",
    ):
        put(tmp_path, f"{directory}/CDC000001.csv", "")
        put(tmp_path, f"{directory}/meta/CDC.index", "CDC000001.csv\n")
    put(tmp_path, "shop/meta/schema_9_0000000007.json", "{}")
    put(tmp_path, "shop/item/meta/schema_9_0000000007.json", "{}")
    sink = read_layout(LocalStore(tmp_path), 1)
    assert sink.schemas == {
        ("shop", 9): ["shop/meta/schema_9_0000000007.json"],
        ("shop/item", 9): ["shop/item/meta/schema_9_0000000007.json"],
    }
    remaining: dict[str, DirectoryFiles] = dict(sink.directories)

    def taken(place: str) -> list[str]:
        return [directory.path for directory in directories_of(At(place), remaining)]  # type: ignore[arg-type]

    assert taken("shop/ite/9") == []
    assert taken("shop/item/9") == ["shop/item/9/2026-01-01", "shop/item/9/2026-01-02"]
    assert taken("shop/items/9") == ["shop/items/9"]
    assert taken("shop/meta/9") == ["shop/meta/9"]
    assert sorted(remaining) == ["sho/item/9", "shop/item/10/2026-01-01", "shop/item/91"]


def test_a_file_of_unknown_epoch_is_read_by_the_newest_format_that_fits(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", line(1, '"a"').replace(",", ";"))
    put(tmp_path, "b.csv", line(2, '"b"'))
    put(tmp_path, "c.csv", line(3, '"c"').replace(",", ";"))
    store, result = LocalStore(tmp_path), Result()
    files = TableFiles(store, ("s", "t"), TEXT, Formats({"c.csv": fmt(delimiter=";")}, [CSV, fmt(delimiter=";")]))
    for number, path in enumerate(("a.csv", "b.csv", "c.csv")):
        (piece,) = files.read(path, store.get(path), result)
        assert piece["c0"].to_pylist() == [path[0]]
        assert len(result.notes) == 1, number
    assert result.ok
    assert "does not tell any more" in result.notes[0]


@pytest.mark.parametrize("option", [{"split_updates": False}, {"time_zone": "Asia/Shanghai"}])
def test_options_that_decide_what_a_file_holds_must_not_have_changed(option: dict[str, Any]) -> None:
    with pytest.raises(NotVerifiable, match="was changed while the changefeed ran"):
        Formats({}, [CSV, fmt(**option)])


def test_the_lowest_commit_ts_of_a_file(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", line(9, '"two\r\nlines, of,it,3,"') + line(5, "x") + line(7, "y"))
    put(tmp_path, "a.json", canal('"1"'))
    put(tmp_path, "empty.csv", "")
    store = LocalStore(tmp_path)
    assert lowest_commit_ts(store, "a.csv", Formats({}, [CSV])) == 5
    assert lowest_commit_ts(store, "a.json", Formats({}, [JSON])) == 7
    assert lowest_commit_ts(store, "empty.csv", Formats({}, [CSV])) is None
    assert lowest_commit_ts(store, "gone.csv", Formats({}, [CSV])) is None


def test_a_reader_of_which_nobody_takes_the_rest_does_not_abort_the_process() -> None:
    """One of seven did, by a thread that let go of Python's memory while the interpreter ended."""
    for _ in range(8):
        subprocess.run([sys.executable, "-c", ABANDONED], check=True)
