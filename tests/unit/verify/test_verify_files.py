"""What a consumer would read, and in which order."""

from __future__ import annotations

from pathlib import Path

from changefeed.objectstore import Object
from changefeed.objectstore.local import LocalStore
from changefeed.verify.files import Format, read_layout, read_rows
from changefeed.verify.report import _directories_of
from changefeed.verify.result import Result

CSV = Format(",", '"', "\\N", "\r\n", header=False)


def put(root: Path, path: str, body: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(body, newline="")


def line(ts: int, value: str) -> str:
    return f'"I","t","s",{ts},{value}\r\n'


def test_files_are_read_by_number_and_up_to_the_index(tmp_path: Path) -> None:
    for index in range(1, 12):
        put(tmp_path, f"s/t/5/CDC{index:06}.csv", line(index, f'"v{index}"'))
    put(tmp_path, "s/t/5/meta/CDC.index", "CDC000010.csv\n")
    result = Result()
    sink = read_layout(LocalStore(tmp_path), result)
    directory = sink.directories["s/t/5"]
    assert (directory.published, directory.first_hole) == (10, None)
    rows = read_rows(LocalStore(tmp_path), [directory], ["v"], CSV, result)
    assert rows["c0"].to_list() == [f"v{n}" for n in range(1, 11)]
    assert rows["place"].to_list() == list(range(10))
    assert rows["file"][9] == "s/t/5/CDC000010.csv"
    assert result.ok


def test_values_and_their_places(tmp_path: Path) -> None:
    values = ['"a ""b"", c"', '"two\r\nlines"', "\\N", '"\\N"', '""', "-5", '" x "']
    put(tmp_path, "s/t/5/CDC000001.csv", "".join(line(n, value) for n, value in enumerate(values)))
    put(tmp_path, "s/t/5/CDC000002.csv", "")
    put(tmp_path, "s/t/5/meta/CDC.index", "CDC000002.csv\n")
    result = Result()
    store = LocalStore(tmp_path)
    rows = read_rows(store, list(read_layout(store, result).directories.values()), ["v"], CSV, result)
    assert rows["c0"].to_list() == ['a "b", c', "two\r\nlines", None, "\\N", "", "-5", " x "]
    assert rows["line"].to_list() == list(range(1, 8))
    assert result.ok


def test_a_file_and_its_index_that_appear_while_the_sink_is_listed(tmp_path: Path) -> None:
    class Growing(LocalStore):
        def get(self, path: str) -> Object:
            put(tmp_path, "s/t/5/CDC000002.csv", line(2, "2"))
            put(tmp_path, "s/t/5/meta/CDC.index", "CDC000002.csv\n")
            return super().get(path)

    put(tmp_path, "s/t/5/CDC000001.csv", line(1, "1"))
    put(tmp_path, "s/t/5/meta/CDC.index", "CDC000001.csv\n")
    directory = read_layout(Growing(tmp_path), Result()).directories["s/t/5"]
    assert (directory.published, directory.first_hole) == (2, None)


class Named:
    """As much of a TableInfo as placing directories needs."""

    def __init__(self, schema_name: str, name: str) -> None:
        self.schema_name = schema_name
        self.name = name
        self.full_name = f"{schema_name}.{name}"


def test_directories_belong_to_the_table_of_just_that_name(tmp_path: Path) -> None:
    """A table may be named as a prefix of another, or "meta"; versions sort as numbers, before dates."""
    for directory in (
        "shop/item/9/2026-01-02",
        "shop/item/9/2026-01-01",
        "shop/item/10/2026-01-01",
        "shop/items/9",
        "shop/meta/9",
        "sho/item/9",
    ):
        put(tmp_path, f"{directory}/CDC000001.csv", "")
        put(tmp_path, f"{directory}/meta/CDC.index", "CDC000001.csv\n")
    put(tmp_path, "shop/meta/schema_9_0000000007.json", "{}")
    put(tmp_path, "shop/item/meta/schema_9_0000000007.json", "{}")
    result = Result()
    sink = read_layout(LocalStore(tmp_path), result)
    assert sink.schemas == {("shop/item", 9): ["shop/item/meta/schema_9_0000000007.json"]}

    def taken(schema: str, name: str) -> list[str]:
        return [d.path for d in _directories_of(Named(schema, name), sink, result)]  # type: ignore[arg-type]

    assert taken("shop", "ite") == []
    assert taken("shop", "item") == ["shop/item/9/2026-01-01", "shop/item/9/2026-01-02", "shop/item/10/2026-01-01"]
    assert taken("shop", "items") == ["shop/items/9"]
    assert taken("shop", "meta") == ["shop/meta/9"]
    assert sorted(sink.directories) == ["sho/item/9"]
    assert result.ok
