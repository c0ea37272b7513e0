"""TiCDC's paths, and schema files with their checksums: the corpus of its own tests and manual."""

from __future__ import annotations

import calendar
import json
import time
from typing import Any

import golden
import pytest
from changefeed.errors import NeedsHuman, OutputConflict
from changefeed.objectstore.local import LocalStore
from changefeed.sink.storage import schema_file as schema_files
from changefeed.sink.storage.layout import (
    Layout,
    data_file,
    date_of,
    directory_stem,
    index_file,
    index_of,
    is_published,
    is_schema_file,
    parse_index_path,
    parse_schema_path,
    schema_file,
    version_directory,
)
from changefeed.sink.storage.schema_file import SchemaFile, column_json, write_schema_file
from hypothesis import given
from hypothesis import strategies as st
from sink_stores import column, make_table


def ms(clock: str) -> int:
    return calendar.timegm(time.strptime(clock, "%Y-%m-%dT%H:%M:%S")) * 1000


def directory_of(args: dict[str, Any]) -> str:
    date = date_of(args["date_separator"], ms(args["clock"])) if args.get("clock") else args.get("date", "")
    path = str(args["table_id"]) if args.get("use_table_id_as_path") else f"{args['schema']}/{args['table']}"
    directory = version_directory(path, args["table_version"], args.get("partition_id"))
    return f"{directory}/{date}" if date else directory


@golden.each("storage_path")
def test_corpus_data_file_paths(vector):
    args = vector["args"]
    dispatcher = args.get("dispatcher_id", "") if args.get("table_across_nodes") else ""
    found = data_file(directory_of(args), args["index"], args["file_index_digit"], args["extension"], dispatcher)
    assert found == vector["expected"]["path"]


@golden.each("storage_index_path")
def test_corpus_index_paths(vector):
    args = vector["args"]
    path = index_file(directory_of(args), args.get("dispatcher_id", "") if args["table_across_nodes"] else "")
    assert path == vector["expected"]["path"]
    assert parse_index_path(path, args["date_separator"]) == directory_of(args)


@golden.each("storage_parse_index_path")
def test_corpus_parsed_index_paths(vector):
    args, expected = vector["args"], vector["expected"]
    found = parse_index_path(args["path"], args["date_separator"])
    if "error" in expected:
        assert found is None
    else:
        partition = expected.get("partition_id") or None
        path = f"{expected['schema']}/{expected['table']}" if expected.get("table") else str(expected["schema"])
        directory = version_directory(path, expected["table_version"], partition)
        assert found == f"{directory}/{expected['date']}" if expected.get("date") else directory


@pytest.mark.parametrize(
    ("path", "separators"),
    [
        ("shop/t/400/meta/CDC.index", "none"),
        ("shop/t/400/meta/CDC_4a1b.index", "none"),
        ("shop/t/400/7/meta/CDC.index", "none"),
        ("shop/t/400/2026/meta/CDC.index", "none year"),  # a partition's id, or a year
        ("shop/t/400/7/2026/meta/CDC.index", "year"),
        ("shop/t/400/2026-11/meta/CDC.index", "month"),
        ("shop/t/400/7/2026-11-23/meta/CDC.index", "day"),
        ("105/400/meta/CDC.index", "none"),
        ("105/400/2026-11-23/meta/CDC.index", "day"),
        ("shop/400/meta/CDC.index", ""),
        ("shop/t/2026-11-23/meta/CDC.index", ""),  # no version
        ("shop/t/v400/meta/CDC.index", ""),
        ("shop/t/400/p7/meta/CDC.index", ""),
        ("shop/t/400/7/8/meta/CDC.index", ""),
        ("shop/t/400/meta/2026-11-23/meta/CDC.index", ""),
        ("t/meta/CDC.index", ""),
        ("shop/t/400/CDC.index", ""),
        ("shop/t/400/meta/CDC.index.old", ""),
    ],
)
def test_index_paths_are_those_of_the_layout(path, separators):
    accepted = [each for each in ("none", "year", "month", "day") if parse_index_path(path, each)]
    assert accepted == separators.split()
    assert parse_index_path(path) == (path.rpartition("/meta/")[0] if separators else None)


@golden.each("storage_index_content")
def test_corpus_index_content(vector):
    args = vector["args"]
    dispatcher = "<dispatcher>" if args["table_across_nodes"] else ""
    path = data_file("d", args["index"], args["file_index_digit"], args["extension"], dispatcher)
    assert path.removeprefix("d/") + "\n" == vector["expected"]["content"]


def goes_on(vector):
    """As TiCDC's new architecture does; the classic one takes an index again whose file is missing or empty."""
    args = vector["args"]
    named = (args["index_file_content"] or "").strip()
    return "tiflow" not in vector["source"] or named in args["existing_files"]


@golden.each("storage_next_index", which=goes_on)
def test_corpus_next_index(vector):
    names = [(vector["args"]["index_file_content"] or "").strip(), *vector["args"]["existing_files"]]
    following = max(index_of(name) or 0 for name in names) + 1
    assert index_of(vector["expected"]["next"].rpartition("/")[2]) == following


@golden.each("storage_is_schema_file")
def test_corpus_schema_file_names(vector):
    assert is_schema_file(vector["args"]["path"]) == vector["expected"]["is_schema_file"]


@golden.each("storage_parse_schema_path")
def test_corpus_schema_paths(vector):
    found, expected = parse_schema_path(vector["args"]["path"]), vector["expected"]
    if "error" in expected:
        assert found is None
    else:
        assert found is not None
        assert all(member == expected[name] for name, member in vars(found).items())


@golden.each("table_checksum")
def test_corpus_checksums(vector):
    args, expected = vector["args"], vector["expected"]
    # The literals are JSON objects in no order; the checksum is over the order of the schema file's members.
    members = ("Name", "Type", "Default", "Precision", "Scale", "Nullable", "IsPk", "Elems")
    columns = [{f"Column{m}": c[f"Column{m}"] for m in members if f"Column{m}" in c} for c in args["columns"]]
    found = SchemaFile(args["schema"], args["table"], args["table_version"], tuple(columns))
    assert found.checksum == expected["checksum"]
    if "path" in expected:
        assert found.path == expected["path"]
        assert is_schema_file(found.path)
    if "path_table_id" in expected:
        assert schema_file(str(args["table_id"]), 100, found.checksum) == expected["path_table_id"]


@golden.each("schema_file_column")
def test_corpus_columns(vector):
    given_type = vector["args"]["type"]
    charset = "binary" if "blob" in vector["source"] else "utf8mb4"  # what the upstream test sets
    field_type = {"Charset": charset} | {name: given_type.get(name) for name in ("Flen", "Decimal", "Elems", "Charset")}
    field_type["Charset"] = given_type.get("Charset", charset)
    definition = column(vector["args"]["name"], given_type["Tp"], given_type["Flag"], **field_type)
    (found,) = make_table("s", "t", definition).columns
    assert column_json(found) == vector["expected"]["json"]


@golden.each("schema_file")
def test_corpus_schema_files(vector):
    args = vector["args"]
    columns = [
        column(c["name"], c["Tp"], c["Flag"], c.get("default"), Flen=c.get("Flen"), Decimal=c.get("Decimal"))
        for c in args["columns"]
    ]
    table = make_table(args["schema"], args["table"], *columns)
    found = SchemaFile.of(table, args["table_version"], args["query"], args["type"])
    assert json.loads(found.body) == vector["expected"]["json"]
    members = ["Table", "Schema", "Version", "TableVersion", "Query", "Type", "TableColumns", "TableColumnsTotal"]
    assert list(json.loads(found.body)) == members


def test_a_schema_file_is_indented_and_escaped_as_go_does():
    found = SchemaFile("s", "t", 5, ({"ColumnName": "a<b>&é\u2028", "ColumnType": "INT"},))
    assert found.body.decode() == (
        '{\n    "Table": "t",\n    "Schema": "s",\n    "Version": 1,\n    "TableVersion": 5,\n    "Query": "",\n'
        '    "Type": 0,\n    "TableColumns": [\n        {\n'
        '            "ColumnName": "a\\u003cb\\u003e\\u0026é\\u2028",\n            "ColumnType": "INT"\n'
        "        }\n    ],\n"
        '    "TableColumnsTotal": 1\n}'
    )


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        (column("c", 246, Flen=12, Decimal=3), {"ColumnType": "DECIMAL", "ColumnPrecision": "12", "ColumnScale": "3"}),
        (column("c", 246), {"ColumnType": "DECIMAL", "ColumnPrecision": "10", "ColumnScale": "0"}),
        (column("c", 253, Flen=9), {"ColumnType": "VAR_STRING", "ColumnPrecision": "9"}),
        (column("c", 15, Flen=9, Charset="binary"), {"ColumnType": "VARBINARY", "ColumnPrecision": "9"}),
        (column("c", 254, Flen=9, Charset="binary"), {"ColumnType": "BINARY", "ColumnPrecision": "9"}),
        (column("c", 247, Elems=["a", "b"]), {"ColumnType": "ENUM", "ColumnElems": ["a", "b"]}),
        (column("c", 8, 32 | 1 | 2, "7"), {
            "ColumnType": "BIGINT UNSIGNED", "ColumnDefault": "7", "ColumnPrecision": "20",
            "ColumnNullable": "false", "ColumnIsPk": "true",
        }),
        (column("c", 245), {"ColumnType": "JSON"}),
    ],
)  # fmt: skip
def test_columns_of_other_types(definition, expected):
    (found,) = make_table("s", "t", definition).columns
    assert column_json(found) == {"ColumnName": "c"} | expected
    assert list(column_json(found)) == ["ColumnName", *expected]


def test_rule_26_a_schema_file_of_exactly_this_version_stands(tmp_path):
    store = LocalStore(tmp_path / "sink")
    table = make_table("shop", "t", column("id", 8, 3))
    path = write_schema_file(store, table, 400)
    assert path == f"shop/t/meta/schema_400_{SchemaFile.of(table, 400).checksum:010}.json"
    assert store.get(path).body == SchemaFile.of(table, 400).body
    assert write_schema_file(store, table, 400) == path
    other = write_schema_file(store, table, 401)  # the same columns, but a version of its own
    assert [found for found, _ in store.list()] == [path, other]


def test_rule_26_a_schema_file_with_another_content_is_a_conflict(tmp_path):
    store = LocalStore(tmp_path / "sink")
    table = make_table("shop", "t", column("id", 8, 3))
    path = write_schema_file(store, table, 400)
    with pytest.raises(OutputConflict, match="schema_400") as caught:
        write_schema_file(store, table, 400, "ALTER TABLE t ...", 5)
    assert path in caught.value.message


def test_a_virtual_column_is_marked_where_ticdcs_readers_do_not_look(tmp_path):
    store = LocalStore(tmp_path / "sink")
    table = make_table("shop", "t", column("id", 8, 3), column("twice", 8) | {"generated_expr_string": "`id` * 2"})
    file = SchemaFile.of(table, 400)
    _, marked = json.loads(file.body)["TableColumns"]
    assert marked == {"ColumnName": "twice", "ColumnType": "BIGINT", "ColumnPrecision": "20", "ColumnVirtual": "true"}
    plain = make_table("shop", "t", column("id", 8, 3), column("twice", 8))
    assert SchemaFile.of(plain, 400).path == file.path
    store.create(file.path, SchemaFile.of(plain, 400).body)  # by 0.1.0
    assert write_schema_file(store, table, 400) == file.path
    with pytest.raises(OutputConflict):
        write_schema_file(store, table, 400, "ALTER TABLE t ...", 5)
    new = LocalStore(tmp_path / "new")
    write_schema_file(new, table, 400)
    with pytest.raises(OutputConflict):  # a mark is not lost either
        write_schema_file(new, plain, 400)


def test_a_database_file_stands_beside_its_tables(tmp_path):
    store = LocalStore(tmp_path / "sink")
    path = schema_files.write(store, SchemaFile("schema1", "", 100, query="CREATE DATABASE `schema1`", type=1))
    assert path == "schema1/meta/schema_100_3233644819.json"
    assert b'"TableColumns": null' in store.get(path).body


def layout(separator: str = "day", **more: Any) -> Layout:
    storage = {"dateSeparator": separator, "fileIndexWidth": 20, "protocol": "csv"} | more
    return Layout.of(storage)


def test_a_layout_names_directories_and_files():
    day = layout()
    series = day.series(make_table("shop", "orders", column("id", 8, 3)), 7, 400)
    first = day.next(series, ms("2026-03-01T23:59:59"), {})
    assert (first["directory"], first["index"], first["date"]) == ("shop/orders/400/2026-03-01", 1, "2026-03-01")
    assert first["path"] == "shop/orders/400/2026-03-01/CDC00000000000000000001.csv"
    none = layout("none", fileIndexWidth=6).next(series, ms("2026-03-01T00:00:00"), {})
    assert (none["path"], none["date"]) == ("shop/orders/400/CDC000001.csv", "")


def test_rule_15_a_file_goes_on_from_the_tables_last_one():
    """Whatever the clock: numbers belong to directories, and one that was left is never entered again."""
    first, second, third = (ms(f"2026-03-0{day}T12:00:00") for day in (1, 2, 3))
    output: dict[str, Any] = {}
    found = []
    for names, series, clock in (
        (layout(), "shop/t/400", second),
        (layout(), "shop/t/400", first),
        (layout(), "shop/t/400", third),
        (layout(), "shop/t/500", second),
        (layout("none"), "shop/t/500", third),
        (layout("none"), "shop/t/600", third),
    ):
        output = names.next(series, clock, output)
        found.append(output["path"].removeprefix("shop/t/").replace("0" * 19, ""))
    assert found == [
        "400/2026-03-02/CDC1.csv",
        "400/2026-03-02/CDC2.csv",
        "400/2026-03-03/CDC1.csv",
        "500/2026-03-03/CDC1.csv",
        "500/2026-03-03/CDC2.csv",
        "600/2026-03-03/CDC1.csv",
    ]
    as_in_a_snapshot_of_0_1_0 = {"directory": "", "index": 0, "date": "2026-03-02"}
    assert layout().next("shop/t/400", first, as_in_a_snapshot_of_0_1_0)["path"].startswith("shop/t/400/2026-03-02/CDC")


def test_canal_json_files_end_as_ticdcs_do():
    day = layout(protocol="canal-json")
    assert day.data_file("shop/orders/400/2026-03-01", 3) == "shop/orders/400/2026-03-01/CDC00000000000000000003.json"


@pytest.mark.parametrize("name", ["a/b", "..", ".", "a\0b"])
def test_a_table_whose_name_is_no_folder_is_refused(name, tmp_path):
    table = make_table("shop", name, column("id", 8, 3))
    with pytest.raises(NeedsHuman, match="folder"):
        directory_stem(table, 7, 400)
    with pytest.raises(NeedsHuman, match="folder"):
        write_schema_file(LocalStore(tmp_path / "sink"), table, 400)


@given(st.sampled_from(["none", "year", "month", "day"]), st.lists(st.integers(0, 1 << 42), min_size=2))
def test_rule_15_dates_are_utc_and_never_go_back(separator, clocks):
    last = ""
    for clock in clocks:
        date = date_of(separator, clock, last)
        assert date >= last
        assert date in (last, date_of(separator, clock))
        last = date
    assert last == max(date_of(separator, clock) for clock in clocks)


def test_rule_15_a_date_is_of_utc_whatever_the_machine_says(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        assert date_of("day", ms("2026-03-01T23:00:00")) == "2026-03-01"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("path", "published"),
    [
        ("metadata", True),
        ("shop/t/meta/schema_1_0123456789.json", True),
        ("shop/t/1/meta/CDC.index", True),
        ("shop/t/1/CDC000001.csv", True),
        ("shop/t/1/CDC_a-b_000001.json", True),
        ("notes/readme.txt", False),
        (".changefeed-owner.json", False),
        ("shop/metadata", False),
    ],
)
def test_what_counts_as_published(path, published):
    assert is_published(path) == published


def test_by_id_each_partition_has_a_folder_with_its_schema_file(tmp_path):
    by_id = layout(useTableIdAsPath=True)
    table = make_table("shop", "a/b", column("id", 8, 3))  # whose name would be no folder
    output = by_id.next(by_id.series(table, 7, 400), ms("2026-03-01T00:00:00"), {})
    directory = output["directory"]
    assert output["path"] == "7/400/2026-03-01/CDC00000000000000000001.csv"
    assert parse_index_path(index_file(directory)) == directory
    path = write_schema_file(LocalStore(tmp_path / "sink"), table, 400, table_id=7)
    assert path == f"7/meta/schema_400_{SchemaFile.of(table, 400).checksum:010}.json"
    assert is_published(path)
