"""Folders that have tables' ids for names: what a consumer and `changefeed tail` make of them."""

from __future__ import annotations

import json
from pathlib import Path

from changefeed.objectstore.local import LocalStore
from changefeed.reading.known import known_of
from changefeed.reading.layout.files import read_layout
from changefeed.reading.layout.walk import misplaced, walk, without_schema_file
from changefeed.reading.schema.schema_file import read_schema_file
from changefeed.sink.storage.schema_file import SchemaFile, write
from changefeed.tail.changes import TailedChanges


def schema_file(folder: Path, id_: int, name: str, version: int, query: str = "") -> str:
    file = SchemaFile(
        "shop", name, version, ({"ColumnName": "id", "ColumnType": "BIGINT"},), query, 14 if query else 0, id_
    )
    return write(LocalStore(folder), file)


def data(folder: Path, id_: int, name: str, version: int, *rows: tuple[int, int]) -> None:
    directory = folder / str(id_) / str(version) / "2026-03-01"
    (directory / "meta").mkdir(parents=True)
    file = directory / f"CDC{1:020}.csv"
    file.write_text("".join(f'"I","{name}","shop",{ts},{number}\r\n' for ts, number in rows), newline="")
    (directory / "meta" / "CDC.index").write_text(f"{file.name}\n")


def lake(folder: Path) -> LocalStore:
    """Table 7 is renamed at 20; table 9, of the same version, has no rows."""
    schema_file(folder, 7, "orders", 10)
    schema_file(folder, 9, "items", 10)
    data(folder, 7, "orders", 10, (11, 1), (12, 2))
    schema_file(folder, 7, "sales", 20, "RENAME TABLE orders TO sales")
    data(folder, 7, "sales", 20, (21, 3), (31, 4))
    (folder / "metadata").write_text(json.dumps({"checkpoint-ts": 30}))
    return LocalStore(folder)


def test_versions_are_walked_by_id(tmp_path: Path) -> None:
    sink = read_layout(lake(tmp_path), 30)
    found = list(walk(sink, has_dates=True, by_id=True))
    assert [(version.ts, [data.directory_stem for data in version.data]) for version in found] == [
        (10, ["7"]),
        (20, ["7"]),
    ]
    assert [len(version.schema_files) for version in found] == [2, 1]
    assert [without_schema_file(version) for version in found] == [[], []]
    assert misplaced(sink, by_id=True) == []
    assert {folder for folder, _ in sink.schemas} == {"7", "9"}


def test_a_name_for_a_folder_is_misplaced_by_id(tmp_path: Path) -> None:
    store = lake(tmp_path)
    path = write(store, SchemaFile("shop", "", 20, query="CREATE DATABASE shop", type=1))
    (problem,) = misplaced(read_layout(store, 30), by_id=True)
    assert path in problem
    assert "<table id>/meta" in problem
    assert read_schema_file(path, store.get(path).body, by_id=True)[0] is None, "it is of no table"


def test_tail_finds_out_that_folders_have_ids(tmp_path: Path) -> None:
    store = lake(tmp_path)
    changes = TailedChanges(store, known_of(store).format_of, 0, lambda schema, table: True).round()
    shown = [(each.commit_ts, each.table, each.row.values["id"] if each.row else each.query) for each in changes]
    assert shown == [
        (11, "orders", "1"),
        (12, "orders", "2"),
        (20, "sales", "RENAME TABLE orders TO sales"),
        (21, "sales", "3"),
    ]
