"""What others do to a table between two commits: the driver goes on, or says which table and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from changefeed.errors import NeedsHuman
from changefeed.reading.failures import NotVerifiable
from changefeed.schema.ddl.actions import Action
from changefeed.schema.sql_type import SqlType
from changefeed.sink.iceberg.snapshot import Added, add_snapshots, data_file
from changefeed.verify.iceberg.reading import parts
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import FileFormat
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, StringType
from sink_iceberg_lake import DELETE, ID, INSERT, UPDATE, Lake, V, column, ddl, publish, table_of

T = table_of()
WIDER = table_of(columns=[ID, V, column(3, "w", SqlType.INT)])
TWO = [(INSERT, 1, 10), (INSERT, 2, 20)]


def partitioned(table: Table) -> None:
    with table.update_spec() as spec:
        spec.add_field("id", BucketTransform(4), "bucket")
        spec.add_field("v", IdentityTransform())


def sorted_anew(table: Table) -> None:
    with table.update_sort_order() as order:
        order.desc("v", IdentityTransform())


def widened(table: Table) -> None:
    with table.update_schema() as schema:
        schema.add_column("note", StringType())


def tagged(table: Table) -> None:
    (snapshot,) = table.snapshots()
    table.manage_snapshots().create_tag(snapshot.snapshot_id, "then").create_branch(snapshot.snapshot_id, "b").commit()


def of_version_3(lake: Lake) -> None:
    """As Spark makes it; pyiceberg can't."""
    newest = Path(lake.located().removeprefix("file://"))
    made = newest.with_name("00009-of-version-3.metadata.json")
    made.write_text(json.dumps(json.loads(newest.read_text()) | {"format-version": 3, "next-row-id": 0}))
    lake.located(made.as_uri())


@pytest.mark.parametrize("upsert", [False, True])
@pytest.mark.parametrize("act", [partitioned, sorted_anew, widened, tagged])
def test_a_running_driver_and_the_next_go_on(tmp_path: Path, act: Callable[[Table], None], upsert: bool) -> None:
    lake = Lake(tmp_path, upsert)
    driver = lake.driver(T)
    publish(driver, 7, lake.written(3, T, TWO))
    act(lake.table())
    publish(driver, 8, lake.written(4, T, [(UPDATE, 1, 11)]))
    publish(lake.driver(T, epoch=2), 9, lake.written(5, T, [(DELETE, 2, 20)]), epoch=2)
    rows = [(1, 11)] if upsert else [("D", 50, 2, 20), ("I", 30, 1, 10), ("I", 31, 2, 20), ("U", 40, 1, 11)]
    assert [row[: len(rows[0])] for row in lake.rows()] == rows
    table = lake.table()
    assert {file["spec_id"] for file in table.inspect.files().to_pylist()} == {0}
    assert table.properties["changefeed.checkpoint-ts"] == "90"


def test_a_table_of_a_later_format_is_refused_by_name_with_a_way_out(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    driver = lake.driver(T)
    publish(driver, 7, lake.written(3, T, TWO))
    before = lake.located()
    of_version_3(lake)
    way_out = r"Table shop\.t has format version 3, .* register its last metadata file of version 2 under its name"
    with pytest.raises(NeedsHuman, match=way_out):
        publish(driver, 8, third := lake.written(4, T, [(UPDATE, 1, 11)]))
    with pytest.raises(NeedsHuman, match=way_out):
        driver.execute(ddl(90, Action.ADD_COLUMN, [T], [WIDER]))
    lake.located(before)
    publish(driver, 8, third)
    assert len(lake.rows()) == 3


class Before:
    """A catalog to which something is done right before the next commit."""

    def __init__(self, catalog: Catalog, acts: list[Callable[[], None]]) -> None:
        self._catalog, self._acts = catalog, acts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(self, *given: Any) -> Any:
        if self._acts:
            self._acts.pop()()
        return self._catalog.commit_table(*given)


def test_a_table_that_becomes_of_a_later_format_right_before_a_commit_is_refused_the_same(tmp_path: Path) -> None:
    lake, acts = Lake(tmp_path), list[Callable[[], None]]()
    driver = lake.driver(T, wrap=lambda catalog: Before(catalog, acts))
    publish(driver, 7, lake.written(3, T, TWO))
    acts.append(lambda: of_version_3(lake))
    with pytest.raises(NeedsHuman, match=r"shop\.t has format version 3, .* register its last metadata file"):
        publish(driver, 8, lake.written(4, T, [(UPDATE, 1, 11)]))


@pytest.mark.parametrize("written_since", [False, True])
def test_a_table_that_was_rolled_back_is_refused_until_our_last_snapshot_is_shown(
    tmp_path: Path, written_since: bool
) -> None:
    """Its marks say that it has entries whose rows nobody sees."""
    lake = Lake(tmp_path)
    driver = lake.driver(T)
    publish(driver, 7, lake.written(3, T, TWO))
    publish(driver, 8, lake.written(4, T, [(UPDATE, 1, 11)]))
    first, last = lake.table().snapshots()
    lake.table().manage_snapshots().set_current_snapshot(first.snapshot_id).commit()
    if written_since:
        lake.table().append(lake.table().scan().to_arrow().slice(0, 0))
    third = lake.written(5, T, [(DELETE, 2, 20)])
    way_out = rf"Table shop\.t .* was rolled back: .*set_current_snapshot\('shop\.t', {last.snapshot_id}\)"
    with pytest.raises(NeedsHuman, match=way_out):
        publish(driver, 9, third)
    with pytest.raises(NeedsHuman, match=way_out):
        publish(lake.driver(T, epoch=2), 9, third, epoch=2)
    lake.table().manage_snapshots().set_current_snapshot(last.snapshot_id).commit()
    publish(lake.driver(T, epoch=3), 9, third, epoch=3)
    assert len(lake.rows()) == 4


def test_columns_of_others_stay_when_the_table_follows_a_ddl(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    driver = lake.driver(T)
    publish(driver, 7, lake.written(3, T, TWO))
    with lake.table().update_schema() as schema:
        schema.add_column("a", LongType())
        schema.add_column("b", LongType())
    changed = table_of(columns=[ID, column(7, "w", SqlType.INT, place=1)])
    driver.execute(ddl(90, Action.MULTI_SCHEMA_CHANGE, [T], [changed]))
    fields = [(field.field_id, field.name) for field in lake.table().schema().fields]
    assert fields == [(1, "_op"), (2, "_commit_ts"), (3, "id"), (9, "w"), (5, "a"), (6, "b")]
    publish(driver, 12, lake.written(10, changed, [(INSERT, 3, 30)]))
    assert lake.rows()[-1] == ("I", 100, 3, 30, None, None)


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("name", ["note", "w"])
def test_a_new_column_that_others_have_taken_the_name_or_the_id_of_is_refused(
    tmp_path: Path, name: str, drop: bool
) -> None:
    """Files with the old one's values would show them as the new one's."""
    lake = Lake(tmp_path)
    publish(lake.driver(T), 7, lake.written(3, T, TWO))
    with lake.table().update_schema() as schema:
        schema.add_column(name, LongType())
    if drop:
        with lake.table().update_schema() as schema:
            schema.delete_column(name)
    with pytest.raises(NeedsHuman, match=rf"shop\.t can't have the new column w: somebody has added the column {name}"):
        lake.driver(T, epoch=2).execute(ddl(90, Action.ADD_COLUMN, [T], [WIDER]))


def test_what_the_library_can_not_do_is_said_with_the_tables_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path)
    driver = lake.driver(T)
    publish(driver, 7, lake.written(3, T, TWO))
    monkeypatch.setattr("changefeed.sink.iceberg.snapshot.write_manifest_list", lambda *_: [][1])
    with pytest.raises(NeedsHuman, match=r"shop\.t in .* can't be written: IndexError: list index out of range"):
        publish(driver, 8, lake.written(4, T, TWO))
    metadata = Path(lake.located().removeprefix("file://"))
    metadata.write_text('{"format-version": 9, "location": "secret"}')
    with pytest.raises(NeedsHuman, match=r"shop\.t in .* can't be written: ValidationError\.") as caught:
        publish(lake.driver(T, epoch=2), 9, lake.written(5, T, TWO), epoch=2)
    assert "secret" not in str(caught.value)


def test_verify_names_a_file_that_is_not_parquet(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    publish(lake.driver(T), 7, lake.written(3, T, TWO))
    table = lake.table()
    path = table.inspect.files()["file_path"][0].as_py()
    file = data_file(table, path)
    assert file is not None
    file[2] = FileFormat.ORC
    assert file.file_format == FileFormat.ORC
    lake.endpoint.open().commit_table(table, (), tuple(add_snapshots(table, [Added((file,))], {})))
    with pytest.raises(NotVerifiable, match=rf"shop\.t has a file that is not Parquet: {path}"):
        list(parts(lake.table(), [3, 4], [3]))
