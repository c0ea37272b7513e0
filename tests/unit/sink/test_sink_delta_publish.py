"""What is written becomes a table's once, whatever becomes of a commit, a driver, or the table's versions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from changefeed.errors import Fenced, NeedsHuman
from changefeed.sink.contract import EntryId
from changefeed.sink.delta import driver as driver_module
from changefeed.sink.delta.marks import EPOCH, RECORD, done_name, number_of
from changefeed.sink.table_format.relied import Relied
from deltalake.exceptions import DeltaError
from sink_delta_lake import DeltaLake, publish
from sink_iceberg_lake import DELETE, INSERT, LOG, UPDATE, table_of

T = table_of()
TWO = [(INSERT, 1, 10), (INSERT, 2, 20)]
A, B = ("I", 30, 1, 10), ("I", 31, 2, 20)
MODES = pytest.mark.parametrize("upsert", [False, True], ids=["append", "upsert"])


def met(monkeypatch: pytest.MonkeyPatch, **at: Callable[[], None]) -> None:
    """The next commit of rows meets what `before` and `after` do, each once."""

    def wrapped(made: Callable[..., None]) -> Callable[..., None]:
        def commit(*given: Any) -> None:
            if act := at.pop("before", None):
                act()
            made(*given)
            if act := at.pop("after", None):
                act()

        return commit

    for name in ("added", "merged"):
        monkeypatch.setattr(driver_module, name, wrapped(getattr(driver_module, name)))


def lost() -> None:
    raise DeltaError("no answer")


def test_the_rows_of_a_record_are_one_version_that_says_whose(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    driver = lake.driver(T)
    publish(driver, 7, lake.written(3, T, TWO), lake.written(4, T, [(DELETE, 2, 20)]), lake.written(5, T, []))
    assert lake.rows() == [("D", 40, 2, 20), A, B]
    table, marks = lake.table(), lake.marks()
    assert table.version() == 1
    said = table.history(1)[0]
    assert (said["changefeed.log"], said["changefeed.record"], said["changefeed.checkpoint-ts"]) == (LOG, "7", "70")
    assert (marks.of(RECORD), marks.of(EPOCH), marks.done(T.id)) == (7, 1, number_of(EntryId(4, 0)))
    assert table.transaction_version(LOG) == 7, "what other tools see"


def test_readers_can_leave_out_files(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    publish(lake.driver(T), 7, lake.written(3, T, TWO))
    log = (tmp_path / "lake" / "shop" / "t" / "_delta_log" / f"{1:020}.json").read_text().splitlines()
    (stats,) = (json.loads(json.loads(line)["add"]["stats"]) for line in log if line.startswith('{"add"'))
    assert stats["numRecords"] == 2
    assert (stats["minValues"], stats["maxValues"]) == (
        {"_op": "I", "_commit_ts": 30, "id": 1, "v": 10},
        {"_op": "I", "_commit_ts": 31, "id": 2, "v": 20},
    )


def test_upserted_rows_are_those_that_entries_leave(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path, upsert=True)
    driver = lake.driver(T)
    publish(
        driver,
        7,
        lake.written(3, T, [*TWO, (INSERT, 3, 30), (DELETE, 3, 30)]),
        lake.written(4, T, [(UPDATE, 5, 50, 1), (UPDATE, 2, 21), (INSERT, 1, 11), (INSERT, 4, 40)]),
        lake.written(5, T, [(DELETE, 2, 21), (UPDATE, 6, 60, 4)]),
    )
    assert lake.rows() == [(1, 11), (5, 50), (6, 60)]
    assert not list((tmp_path / "lake" / "shop" / "t" / "_changefeed").rglob("*.parquet")), "files that are merged go"


@MODES
def test_another_driver_publishes_only_what_is_not_there(tmp_path: Path, upsert: bool) -> None:
    """The first one died behind its commit and before its record; the second has other plans open as well."""
    lake = DeltaLake(tmp_path, upsert)
    first, second = lake.written(3, T, TWO), lake.written(3, T, [(DELETE, 1, 10)], entry=1)
    publish(lake.driver(T), 7, first)
    publish(lake.driver(T, epoch=2), 9, first, second, epoch=2)
    rows = [(2, 20)] if upsert else [("D", 30, 1, 10), A, B]
    assert lake.rows() == rows
    publish(lake.driver(T, epoch=3), 11, first, second, epoch=3)
    assert lake.rows() == rows


@MODES
@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_unknown_outcome_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, upsert: bool
) -> None:
    lake = DeltaLake(tmp_path, upsert)
    met(monkeypatch, **{moment: lost})
    publish(lake.driver(T), 7, lake.written(3, T, TWO))
    assert lake.rows() == ([(1, 10), (2, 20)] if upsert else [A, B])


@MODES
def test_a_driver_that_was_given_up_adds_nothing_behind_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, upsert: bool
) -> None:
    """It stops between reading the table and its commit; its successor publishes the same entries meanwhile."""
    lake = DeltaLake(tmp_path, upsert)
    first, second = lake.written(3, T, TWO), lake.written(4, T, [(INSERT, 3, 30)])
    old = lake.driver(T)
    publish(old, 7, first)
    met(monkeypatch, before=lambda: publish(lake.driver(T, epoch=2), 9, second, epoch=2))
    with pytest.raises(Fenced):
        publish(old, 8, second)
    assert len(lake.rows()) == 3


@MODES
def test_a_late_commit_of_a_driver_that_was_given_up_is_found_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, upsert: bool
) -> None:
    lake = DeltaLake(tmp_path, upsert)
    first, second, third = (lake.written(n, T, [(INSERT, n, n)]) for n in (3, 4, 5))
    old = lake.driver(T)
    publish(old, 7, first)

    def late() -> None:
        lake.newest_epoch = 1
        publish(old, 8, second)
        lake.newest_epoch = 2

    new = lake.driver(T, epoch=2)
    met(monkeypatch, before=late)
    publish(new, 9, second, third, epoch=2)
    assert len(lake.rows()) == 3


@MODES
def test_what_others_do_is_not_undone_and_does_not_hide_what_is_there(tmp_path: Path, upsert: bool) -> None:
    lake = DeltaLake(tmp_path, upsert)
    written = [lake.written(n, T, [(INSERT, n, n)]) for n in range(3, 6)]
    driver = lake.driver(T)
    for number, each in enumerate(written):
        publish(driver, 7 + number, each)
    table = lake.table()
    table.optimize.compact(target_size=1 << 30)
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    table.create_checkpoint()
    table.cleanup_metadata()
    written += [lake.written(n, T, [(INSERT, n, n)]) for n in (6, 7)]
    publish(driver, 10, written[3])
    publish(lake.driver(T, epoch=2), 12, *written, epoch=2)
    assert [row[-1] for row in lake.rows()] == [3, 4, 5, 6, 7]


@MODES
def test_a_table_that_was_restored_to_an_earlier_version_is_not_written_to(tmp_path: Path, upsert: bool) -> None:
    lake = DeltaLake(tmp_path, upsert)
    driver = lake.driver(T)
    publish(driver, 7, lake.written(3, T, TWO))
    publish(driver, 8, lake.written(4, T, [(INSERT, 3, 3)]))
    lake.table().restore(1)
    next_one = lake.written(5, T, [(INSERT, 4, 4)])
    for each in (driver, lake.driver(T)):
        with pytest.raises(NeedsHuman, match="was restored to a version before this changefeed's last one, 2"):
            publish(each, 9, next_one)
    lake.table().restore(2)
    publish(lake.driver(T, epoch=2), 9, next_one, epoch=2)
    assert len(lake.rows()) == 4


def test_a_file_that_somebody_has_removed_is_said(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    driver = lake.driver(T)
    driver.create()
    written = lake.written(3, T, TWO)
    lake.table().vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    with pytest.raises(NeedsHuman, match="a file that was written and not yet committed is gone"):
        publish(driver, 7, written)


def test_a_table_of_a_stranger_is_left_alone(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    lake.driver(T, log="other/feed").create()
    with pytest.raises(NeedsHuman, match=r"SinkOwned: table shop/t .* its changefeed\.log is other/feed"):
        publish(lake.driver(T), 7, lake.written(3, T, TWO))


def test_what_the_log_relies_on_has_to_be_there(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    lake.driver(T).create()
    relied = {T.id: {T.id: Relied(5, EntryId(2, 0))}}
    with pytest.raises(NeedsHuman, match=r"has lost changes that it had: entry 2/0 of dispatcher 101 was in it"):
        publish(lake.driver(T, relied=relied), 7, lake.written(3, T, TWO))


def test_a_table_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    with pytest.raises(NeedsHuman, match=r"is not in .* and this changefeed has written to it"):
        publish(lake.driver(T, relied={T.id: {}}), 7, lake.written(3, T, TWO))


def test_a_state_restored_from_a_copy_is_told_by_the_epoch(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    publish(lake.driver(T, epoch=4), 7, lake.written(3, T, TWO), epoch=4)
    lake.newest_epoch = 2
    with pytest.raises(NeedsHuman, match="was written by epoch 4 of this changefeed, which its log does not know"):
        publish(lake.driver(T, epoch=2), 8, lake.written(4, T, [(INSERT, 3, 30)]))


def test_marks_of_dispatchers_are_apart(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    parted = table_of(partition={"enable": True, "definitions": [{"id": 7}, {"id": 8}]})
    driver = lake.driver(parted)
    publish(driver, 7, lake.written(3, parted, TWO, dispatcher=7))
    publish(driver, 8, lake.written(3, parted, [(INSERT, 3, 30)], entry=1, dispatcher=8))
    assert [lake.table().transaction_version(f"{LOG}{done_name(each)}") for each in (7, 8)] == [
        number_of(EntryId(3, 0)),
        number_of(EntryId(3, 1)),
    ]
    assert len(lake.rows()) == 3
