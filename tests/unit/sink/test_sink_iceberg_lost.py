"""Catalogs that lose what they had: the driver stops, whatever it was told, and writes nothing on top."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from changefeed.errors import NeedsHuman
from changefeed.log.state import DispatcherState, Epoch, NewestEntry, State
from changefeed.objectstore.patience import Patience
from changefeed.schema.ddl.actions import Action
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import TableInfo
from changefeed.sink.claim import Taken
from changefeed.sink.contract import EntryId
from changefeed.sink.iceberg.claim import IcebergClaim
from changefeed.sink.iceberg.driver import IcebergDriver
from changefeed.sink.table_format.relied import Relied
from changefeed.spec.parse import parse
from sink_iceberg_lake import ID, INSERT, Lake, V, column, ddl, publish, table_of

T = table_of()
WIDER = table_of(columns=[ID, V, column(3, "w", SqlType.INT)])
TWO = [(INSERT, 1, 10), (INSERT, 2, 20)]
A, B = ("I", 30, 1, 10), ("I", 31, 2, 20)
HAS_3 = {101: {101: Relied(5, EntryId(3, 0))}}
HAS_4 = {101: {101: Relied(5, EntryId(4, 0))}}


class Answers:
    """A catalog whose `act` is done instead of, or besides, each commit of a snapshot."""

    def __init__(self, catalog: Any, act: Callable[..., Any]) -> None:
        self._catalog, self._act = catalog, act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(self, *given: Any) -> Any:
        return self._act(self._catalog, *given)


def test_a_commit_that_is_confirmed_and_not_done_stops_the_driver(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.driver(T).create()
    driver = lake.driver(T, wrap=lambda catalog: Answers(catalog, lambda *_: None))
    with pytest.raises(NeedsHuman, match=r"has confirmed a change of table shop\.t and does not have it when it is"):
        publish(driver, 7, lake.written(3, T, TWO))


def test_a_catalog_that_goes_back_stops_the_driver_that_has_written(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    driver = lake.driver(T)
    publish(driver, 7, lake.written(3, T, TWO))
    before = lake.located()
    publish(driver, 8, lake.written(4, T, [(INSERT, 3, 30)]))
    lake.located(before)
    with pytest.raises(NeedsHuman, match=r"shop\.t in .* has lost changes that it had: entry 4/0 of dispatcher 101"):
        publish(driver, 9, lake.written(5, T, [(INSERT, 4, 40)]))
    assert lake.rows() == [A, B], "nothing is written on top"


def test_a_catalog_that_goes_back_stops_the_next_driver_which_has_it_from_the_log(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    driver = lake.driver(T)
    publish(driver, 7, lake.written(3, T, TWO))
    before, third = lake.located(), lake.written(5, T, [(INSERT, 4, 40)])
    publish(driver, 8, lake.written(4, T, [(INSERT, 3, 30)]))
    lake.located(before)
    with pytest.raises(NeedsHuman, match="has lost changes that it had: entry 4/0 of dispatcher 101"):
        publish(lake.driver(T, epoch=2, relied=HAS_4), 12, third, epoch=2)
    publish(lake.driver(T, epoch=3, relied=HAS_3), 14, third, epoch=3)
    assert lake.rows() == [A, B, ("I", 50, 4, 40)]


def test_what_only_an_answer_said_is_not_relied_on(tmp_path: Path) -> None:
    """The commit is lost behind its answer, but seen to be: whoever comes next writes it again."""
    lake = Lake(tmp_path)
    lake.driver(T).create()
    before, first = lake.located(), lake.written(3, T, TWO)

    def undone(catalog: Any, *given: Any) -> None:
        catalog.commit_table(*given)
        lake.located(before)

    with pytest.raises(NeedsHuman, match="has confirmed a change"):
        publish(lake.driver(T, wrap=lambda catalog: Answers(catalog, undone)), 7, first)
    publish(lake.driver(T, epoch=2), 9, first, epoch=2)
    assert lake.rows() == [A, B]


@pytest.mark.parametrize("known", ["by itself", "by the log"])
def test_a_table_that_is_gone_is_not_made_again(tmp_path: Path, known: str) -> None:
    lake = Lake(tmp_path)
    driver = lake.driver(T, relied=HAS_3)
    if known == "by itself":
        publish(driver := lake.driver(T), 7, lake.written(3, T, TWO))
        with sqlite3.connect(lake.folder / "catalog.db") as catalog:
            catalog.execute("DELETE FROM iceberg_tables")
    gone = pytest.raises(NeedsHuman, match=r"shop\.t is not in .*, and this changefeed has written to it")
    with gone:
        publish(driver, 8, lake.written(4, T, TWO))
    with gone:
        driver.execute(ddl(90, Action.ADD_COLUMN, [T], [WIDER]))
    with gone:
        driver.execute(ddl(90, Action.TRUNCATE_TABLE, [T], [table_of(102)]))


def test_a_catalog_that_goes_back_behind_a_truncate_stops_the_driver(tmp_path: Path) -> None:
    lake, after = Lake(tmp_path, upsert=True), table_of(102)
    driver = lake.driver(T)
    publish(driver, 7, lake.written(3, T, TWO))
    before = lake.located()
    driver.execute(ddl(90, Action.TRUNCATE_TABLE, [T], [after]))
    lake.located(before)
    with pytest.raises(NeedsHuman, match="is that of the upstream's table 101, not of 102: a DDL that it had followed"):
        publish(lake.driver(after, epoch=2), 12, lake.written(10, after, TWO), epoch=2)


def test_a_table_without_a_column_of_its_rows_stops_the_driver(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    publish(lake.driver(T), 7, lake.written(3, T, TWO))
    with lake.table().update_schema(allow_incompatible_changes=True) as change:
        change.delete_column("v")
    with pytest.raises(NeedsHuman, match=r"shop\.t lacks columns that its rows have: v \(4\).* register the last"):
        publish(lake.driver(T, epoch=2), 9, lake.written(4, T, TWO), epoch=2)


def test_an_entry_that_a_later_ddl_has_ended_is_not_missed(tmp_path: Path) -> None:
    """A driver has followed the DDL and died before its record: the next one has what the log said before it."""
    lake, before, after = Lake(tmp_path), partitioned(5, 6), partitioned(6)
    driver = lake.driver(before)
    publish(driver, 7, *(lake.written(3, before, TWO, number, dispatcher) for number, dispatcher in enumerate((5, 6))))
    driver.execute(what := ddl(90, Action.DROP_TABLE_PARTITION, [before], [after]))
    relied = {101: {5: Relied(5, EntryId(3, 0)), 6: Relied(5, EntryId(3, 1))}}
    following = lake.driver(before, epoch=2, relied=relied)
    following.execute(what)
    publish(following, 12, lake.written(10, after, TWO, 0, 6), epoch=2)
    assert len(lake.rows()) == 6


def partitioned(*ids: int) -> TableInfo:
    return table_of(partition={"enable": True, "definitions": [{"id": id_} for id_ in ids]})


def driven(lake: Lake, table: TableInfo, version: int, definition: str) -> IcebergDriver:
    """The sink of a run that finds the table in its log: with entry 4/0, or since a DDL without any."""
    known = DispatcherState(
        dispatcher=101,
        table_id=101,
        flushed_ts=49,
        planned_ts=49,
        table_version=version,
        definition=definition,
        newest=NewestEntry(plan=4, entry=0, table_version=5) if version == 5 else None,
    )
    state = State(
        n=9, uid="uid", origin="origin", start_ts=5, epoch=Epoch(number=2, nonce="n"), dispatchers={101: known}
    )
    catalog = {"uri": lake.endpoint.catalog_uri}
    spec = {
        "upstream": {"pdAddresses": ["http://pd:2379"]},
        "filter": {"rules": ["shop.*"]},
        "state": {"uri": "file:///state"},
        "sink": {"iceberg": {"warehouse": lake.endpoint.warehouse.uri, "catalog": catalog}},
    }
    head = {"apiVersion": "changefeed.dev/v1alpha1", "kind": "Changefeed", "metadata": {"name": "feed"}}
    sink, taken = IcebergClaim(parse(json.dumps({**head, "spec": spec}))), Taken(state, "")
    sink.settle_in(taken, [(101, table, version, False)])
    return sink.driver(taken, lambda: None, Patience(5))


def test_a_run_relies_on_what_its_log_says(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    publish(lake.driver(T), 7, lake.written(3, T, TWO))
    with pytest.raises(NeedsHuman, match="has lost changes that it had: entry 4/0 of dispatcher 101"):
        publish(driven(lake, T, 5, T.hash), 12, lake.written(10, T, TWO), epoch=2)


def test_a_run_relies_on_tables_that_its_log_has_a_ddl_of(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    with pytest.raises(NeedsHuman, match=r"shop\.t is not in .*, and this changefeed has written to it"):
        publish(driven(lake, T, 8, T.hash), 12, lake.written(10, T, TWO), epoch=2)


def test_a_table_that_was_left_out_follows_what_it_has_become(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    publish(lake.driver(T), 7, lake.written(3, T, TWO), lake.written(4, T, [(INSERT, 3, 30)]))
    driven(lake, WIDER, 60, T.hash).close()
    assert [field.name for field in lake.table().schema().fields] == ["_op", "_commit_ts", "id", "v", "w"]
    assert lake.rows() == [(*A, None), (*B, None), ("I", 40, 3, 30, None)]
