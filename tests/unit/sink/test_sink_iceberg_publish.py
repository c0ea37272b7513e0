"""What is written becomes a table's once, whatever becomes of a commit, a driver, or the table's snapshots."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from changefeed.errors import Fenced, NeedsHuman, Unavailable
from changefeed.sink.iceberg.marks import LOG as LOG_PROPERTY
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.table.update import SetPropertiesUpdate
from sink_iceberg_lake import DELETE, INSERT, LOG, UPDATE, Lake, publish, table_of

T = table_of()
TWO = [(INSERT, 1, 10), (INSERT, 2, 20)]
A, B = ("I", 30, 1, 10), ("I", 31, 2, 20)


class Answers:
    """A catalog whose commits of a snapshot meet what `before` and `after` do, each once."""

    def __init__(self, catalog: Catalog, **at: Callable[[], None]) -> None:
        self._catalog, self._at = catalog, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
        self._meet("before")
        answer = self._catalog.commit_table(table, requirements, updates)
        self._meet("after")
        return answer

    def _meet(self, moment: str) -> None:
        if act := self._at.pop(moment, None):
            act()


def lost() -> None:
    raise CommitStateUnknownException("no answer")


def test_the_rows_of_a_record_are_one_snapshot_that_says_whose(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    driver = lake.driver(T)
    publish(driver, 7, lake.written(3, T, TWO), lake.written(4, T, [(DELETE, 2, 20)]), lake.written(5, T, []))
    assert lake.rows() == [("D", 40, 2, 20), A, B]
    (snapshot,) = lake.table().snapshots()
    said = snapshot.summary or {}
    assert (said["changefeed.log"], said["changefeed.record"], said["changefeed.checkpoint-ts"]) == (LOG, "7", "70")
    assert (said["total-records"], said["added-data-files"]) == ("3", "2")


def test_another_driver_publishes_only_what_is_not_there(tmp_path: Path) -> None:
    """The first one died behind its commit and before its record; the second has other plans open as well."""
    lake = Lake(tmp_path)
    first, second = lake.written(3, T, TWO), lake.written(3, T, [(INSERT, 3, 30)], entry=1)
    publish(lake.driver(T), 7, first)
    publish(lake.driver(T, epoch=2), 9, first, second, epoch=2)
    assert lake.rows() == [A, ("I", 30, 3, 30), B]
    publish(lake.driver(T, epoch=3), 11, first, second, epoch=3)
    assert len(lake.rows()) == 3


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_unknown_outcome_is_looked_up(tmp_path: Path, moment: str) -> None:
    lake = Lake(tmp_path)
    lake.driver(T).create()
    driver = lake.driver(T, wrap=lambda catalog: Answers(catalog, **{moment: lost}))
    publish(driver, 7, lake.written(3, T, TWO))
    assert lake.rows() == [A, B]


def test_what_is_there_counts_after_its_snapshot_has_expired(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    first, second = lake.written(3, T, TWO), lake.written(4, T, [(INSERT, 3, 30)])
    driver = lake.driver(T)
    publish(driver, 7, first)
    publish(driver, 8, second)
    table = lake.table()
    table.maintenance.expire_snapshots().by_id(table.snapshots()[0].snapshot_id).commit()
    publish(lake.driver(T, epoch=2), 12, first, second, epoch=2)
    assert len(lake.rows()) == 3


def test_a_running_driver_goes_on_when_the_snapshot_that_it_knows_is_gone(tmp_path: Path) -> None:
    """Somebody has committed, and the snapshot before that has expired with its files, as after a compaction."""
    lake = Lake(tmp_path)
    driver = lake.driver(T)
    publish(driver, 7, lake.written(3, T, TWO))
    table = lake.table()
    table.append(table.scan().to_arrow().slice(0, 0))
    for old in [each for each in table.snapshots() if each != table.current_snapshot()]:
        table.maintenance.expire_snapshots().by_id(old.snapshot_id).commit()
        Path(old.manifest_list.removeprefix("file://")).unlink()
    publish(driver, 8, lake.written(4, T, [(INSERT, 3, 30)]))
    assert lake.rows() == [A, B, ("I", 40, 3, 30)]


def test_somebody_who_commits_at_the_same_time_is_not_undone(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    driver = lake.driver(T, wrap=lambda catalog: Answers(catalog, before=lambda: None))
    publish(driver, 7, lake.written(3, T, TWO))
    stranger = lake.table()
    stranger.append(stranger.scan().to_arrow())  # while the driver has the table as it was
    publish(driver, 8, lake.written(4, T, [(INSERT, 3, 30)]))
    assert lake.rows() == [A, A, B, B, ("I", 40, 3, 30)]


def test_a_driver_that_was_given_up_adds_nothing_behind_the_next_one(tmp_path: Path) -> None:
    """It stops between asking the log and its commit; its successor publishes the same entries meanwhile."""
    lake = Lake(tmp_path)
    first, second = lake.written(3, T, TWO), lake.written(4, T, [(INSERT, 3, 30)])
    publish(lake.driver(T), 7, first)

    def successor() -> None:
        publish(lake.driver(T, epoch=2), 9, second, epoch=2)

    old = lake.driver(T, wrap=lambda catalog: Answers(catalog, before=successor))
    with pytest.raises(Fenced):
        publish(old, 8, second)
    assert len(lake.rows()) == 3


def test_a_late_commit_of_a_driver_that_was_given_up_is_found_by_the_next_one(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    first, second = lake.written(3, T, TWO), lake.written(4, T, [(INSERT, 3, 30)])
    old, new = lake.driver(T), None
    publish(old, 7, first)

    def late() -> None:
        lake.newest_epoch = 1
        publish(old, 8, second)
        lake.newest_epoch = 2

    new = lake.driver(T, epoch=2, wrap=lambda catalog: Answers(catalog, before=late))
    publish(new, 9, second, epoch=2)
    assert len(lake.rows()) == 3


def test_a_table_of_a_stranger_is_left_alone(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.driver(T, log="other/feed").create()
    with pytest.raises(NeedsHuman, match=r"SinkOwned: table shop\.t .* its changefeed\.log is other/feed"):
        publish(lake.driver(T), 7, lake.written(3, T, TWO))


def test_a_table_from_a_later_epoch_than_the_log_has_is_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    publish(lake.driver(T, epoch=4), 7, lake.written(3, T, TWO), epoch=4)
    lake.newest_epoch = 1
    with pytest.raises(NeedsHuman, match="epoch 4 of this changefeed, which its log does not know"):
        publish(lake.driver(T), 8, lake.written(4, T, TWO))


def test_a_catalog_that_stays_away_ends_the_run(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.driver(T).create()

    class Away(Answers):
        def commit_table(self, *_: Any) -> Any:
            lost()

    slept: list[float] = []
    with pytest.raises(Unavailable, match="CommitStateUnknownException"):
        publish(lake.driver(T, wrap=Away, slept=slept.append), 7, lake.written(3, T, TWO))
    assert sum(slept) >= 60


def test_upserted_rows_are_the_state_after_each_record(tmp_path: Path) -> None:
    lake = Lake(tmp_path, upsert=True)
    driver = lake.driver(T)
    publish(driver, 7, lake.written(3, T, [*TWO, (INSERT, 3, 30), (DELETE, 3, 30)]))
    assert lake.rows() == [(1, 10), (2, 20)]
    publish(driver, 8, lake.written(4, T, [(UPDATE, 1, 11), (DELETE, 2, 20), (UPDATE, 1, 12)]))
    assert lake.rows() == [(1, 12)]
    publish(driver, 9, lake.written(5, T, [(UPDATE, 5, 12, 1), (INSERT, 1, 7)]), lake.written(6, T, [(DELETE, 5, 12)]))
    assert lake.rows() == [(1, 7)], "entries of a dispatcher take effect one by one"
    assert [(each.summary or {})["operation"].value for each in lake.table().snapshots()] == [
        "overwrite",
        "overwrite",
        "overwrite",
        "delete",
    ]


def test_upserted_entries_count_once(tmp_path: Path) -> None:
    lake = Lake(tmp_path, upsert=True)
    first, second = lake.written(3, T, TWO), lake.written(4, T, [(UPDATE, 1, 11)])
    publish(lake.driver(T), 7, first)
    publish(lake.driver(T, epoch=2), 9, first, second, epoch=2)
    publish(lake.driver(T, epoch=3), 11, second, epoch=3)
    assert lake.rows() == [(1, 11), (2, 20)]
    assert len(lake.table().snapshots()) == 2


def test_marks_are_set_with_the_snapshot_or_not_at_all(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    seen: list[list[str]] = []

    class Watched(Answers):
        def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
            seen.append([type(each).__name__ for each in updates])
            assert any(isinstance(each, SetPropertiesUpdate) for each in updates)
            return super().commit_table(table, requirements, updates)

    publish(lake.driver(T, wrap=Watched), 7, lake.written(3, T, TWO))
    assert [names for names in seen if "AddSnapshotUpdate" in names] == [
        ["AddSnapshotUpdate", "SetSnapshotRefUpdate", "SetPropertiesUpdate"]
    ]
    assert lake.table().properties[LOG_PROPERTY] == LOG
