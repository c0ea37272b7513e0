"""What else than DDLs decides whether a table can be rebuilt: the log, filters, and how files are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from changefeed.errors import InvalidSpec
from changefeed.log.log import Log
from changefeed.log.records import EpochRecord, ExpireRecord, StartRecord, encode_record
from changefeed.objectstore.local import LocalStore
from changefeed.objectstore.open import open_store
from changefeed.restore import parquet
from changefeed.restore.folder import parquet_of
from changefeed.restore.parquet import write as write_parquet
from changefeed.restore.source import NotRestorable, RestoreSource, text_in_utc
from changefeed.sink.storage.schema_file import SchemaFile, write
from changefeed.spec.parse import effective, parse
from changefeed_devcluster.ddl import tables
from restore_story import Marks, restored
from verify_story import Story, write_story


async def test_without_the_log_all_is_rebuilt_but_what_was_renamed(story: Story, tmp_path: Path) -> None:
    marks = Marks(story)
    ts = marks.mark()
    tables.rename_table(story.tidb, story.table("items"), story.tidb.databases[story.too], "renamed")
    story.update("parted", 1, price=6)
    end_ts = marks.mark()
    sink = await write_story(tmp_path, story)
    (sink.lake / ".changefeed-owner.json").unlink()
    found, _ = restored(sink.uri, ts, tmp_path / "then")
    assert found == {name: rows for name, rows in marks.all[0][1].items() if not name.endswith(".old")}
    found, report = restored(sink.uri, end_ts, tmp_path / "now")
    assert found == {f"{story.db}.parted": marks.all[1][1][f"{story.db}.parted"]}
    (why,) = [left.why for left in report.left if left.table == f"{story.too}.renamed"]
    assert "without the changefeed's log it is unknown whether it is still written" in why


@pytest.mark.parametrize(
    ("filter_", "why"),
    [
        ({"eventFilters": [{"matcher": ["*.items"], "ignoreEvent": ["delete"]}]}, "eventFilters drop changes"),
        ({"ignoreTxnStartTs": ["7"]}, "ignoreTxnStartTs drops transactions"),
    ],
)
async def test_what_the_changefeed_leaves_out_is_not_made_up(
    story: Story, tmp_path: Path, filter_: dict[str, Any], why: str
) -> None:
    sink = await write_story(tmp_path, story, **filter_)
    found, report = restored(sink.uri, sink.checkpoint_ts, tmp_path / "out")
    assert f"{story.db}.items" not in found
    assert [why in left.why for left in report.left if left.table == f"{story.db}.items"] == [True]


async def test_files_without_commit_ts_are_refused_by_the_option_that_they_need(story: Story, tmp_path: Path) -> None:
    sink = await write_story(tmp_path, story)
    (epoch,) = [path for path in (tmp_path / "state" / "log").glob("*.json") if '"kind":"epoch"' in path.read_text()]
    record = json.loads(epoch.read_text())
    record["config"]["spec"]["sink"]["storage"]["csv"]["includeCommitTs"] = False
    epoch.write_text(json.dumps(record))
    with pytest.raises(NotRestorable, match="carry no commit ts"):
        RestoreSource(open_store(sink.uri))


async def test_a_folder_whose_first_days_have_expired_is_refused(story: Story, tmp_path: Path) -> None:
    sink = await write_story(tmp_path, story)
    log = tmp_path / "state" / "log"
    state = Log(LocalStore(tmp_path / "state")).read()
    expired = ExpireRecord(n=state.n + 1, epoch=state.epoch.number, nonce=state.epoch.nonce, before="2026-11-20")
    (log / f"{state.n + 1:020}.json").write_bytes(encode_record(expired))
    with pytest.raises(NotRestorable, match="from before 2026-11-20 have expired"):
        RestoreSource(open_store(sink.uri))


async def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text(json.dumps({"checkpoint-ts": 5}))
    with pytest.raises(NotRestorable, match="has no tables"):
        RestoreSource(open_store(tmp_path.as_uri()))


def test_a_clocks_times_become_utc() -> None:
    shown = [
        "2024-07-02 01:00:00.005",
        "2024-01-01 00:00:00.999",
        "2024-10-27 02:30:00.000",
        "0000-00-00 00:00:00.000",
        None,
    ]
    utc = [
        "2024-07-01 23:00:00.005",
        "2023-12-31 23:00:00.999",
        "2024-10-27 00:30:00.000",
        "0000-00-00 00:00:00.000",
        None,
    ]
    assert text_in_utc(pl.Series(shown), "Europe/Berlin", 3).to_list() == utc
    assert text_in_utc(pl.Series(["2024-07-02 01:00:00"]), "Europe/Berlin", 0).to_list() == ["2024-07-01 23:00:00"]


@pytest.mark.parametrize("adopted", [True, False])
async def test_a_folder_that_ticdc_began_gives_what_was_before_and_rows_that_stand_twice_once(
    tmp_path: Path, adopted: bool
) -> None:
    """TiCDC has made version 10 and written up to 25; the changefeed goes on at 20. Where the log does not say so, the
    table may be another one from then on.
    """
    lake = tmp_path / "lake"
    write(LocalStore(lake), SchemaFile("shop", "orders", 10, COLUMNS, "CREATE TABLE orders (id BIGINT PRIMARY KEY)", 3))
    data(lake, 10, ("I", 11, 1), ("I", 15, 2), ("D", 21, 1), ("I", 25, 3))
    write(LocalStore(lake), SchemaFile("shop", "orders", 20, COLUMNS))
    data(lake, 20, ("D", 21, 1), ("I", 25, 3), ("I", 29, 4))
    (lake / "metadata").write_text(json.dumps({"checkpoint-ts": 30}))
    state = (tmp_path / "state").as_uri()
    (lake / ".changefeed-owner.json").write_text(json.dumps({"uid": "local", "stateUri": state}))
    log = Log(open_store(state))
    log.append(StartRecord(n=1, epoch=0, nonce="a", start_ts=20, cluster_id=1, uid="local", adopted=adopted))
    storage = {"uri": lake.as_uri(), "protocol": "csv", "csv": {"includeCommitTs": True}}
    spec = {"upstream": {"pdAddresses": ["http://pd:1"]}, "filter": {"rules": ["shop.*"]}, "sink": {"storage": storage}}
    resource = {
        "apiVersion": "changefeed.dev/v1alpha1",
        "kind": "Changefeed",
        "metadata": {"name": "test"},
        "spec": spec,
    }
    config = effective(parse(json.dumps(resource)))
    log.append(EpochRecord(n=2, epoch=1, nonce="a", attempt=0, host="h", pid=1, config=config, versions={}))
    for ts, ids in ((12, {1}), (20, {1, 2}), (22, {2}), (30, {2, 3, 4})):
        found, report = restored(lake.as_uri(), ts, tmp_path / str(ts))
        if ts >= 20 and not adopted:
            assert [left.table for left in report.left] == ["shop.orders"]
            assert files_in(tmp_path, f".{ts}*") == []
        else:
            assert (set(found["shop.orders"]), report.left) == (ids, [])


COLUMNS = ({"ColumnName": "id", "ColumnType": "BIGINT", "ColumnIsPk": "true", "ColumnNullable": "false"},)


def data(lake: Path, version: int, *rows: tuple[str, int, int]) -> None:
    directory = lake / "shop" / "orders" / str(version) / "2026-03-01"
    (directory / "meta").mkdir(parents=True)
    file = directory / f"CDC{1:020}.csv"
    file.write_text("".join(f'"{op}","orders","shop",{ts},{number}\r\n' for op, ts, number in rows), newline="")
    (directory / "meta" / "CDC.index").write_text(f"{file.name}\n")


def files_in(folder: Path, pattern: str) -> list[Path]:
    return list(folder.glob(pattern))


async def test_a_folder_appears_as_a_whole_or_not_at_all(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = await write_story(tmp_path, story)
    out = tmp_path / "out"

    def killed(*arguments: Any) -> tuple[int, list[str]]:
        if "parted" in str(arguments[-1]):
            raise KeyboardInterrupt
        return write_parquet(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(parquet, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            restored(sink.uri, sink.checkpoint_ts, out)
    assert files_in(tmp_path, "out/**") == []
    assert len(files_in(tmp_path, ".out*/*/items.parquet")) == 1, "one table was written"
    found, _ = restored(sink.uri, sink.checkpoint_ts, out)
    assert set(found) == {f"{story.db}.items", f"{story.db}.parted"}
    assert files_in(tmp_path, ".out*/**") == []
    with pytest.raises(InvalidSpec, match="not empty"):
        restored(sink.uri, sink.checkpoint_ts, out)


NAMES = ["t", "表", "a.b", ".t", "..", ".", "../t", "/t", "a/b", "a%2Fb", "a\0b", "%"]


@pytest.mark.parametrize("schema", NAMES)
def test_whatever_its_name_a_table_is_below_the_folder_in_a_file_of_its_own(tmp_path: Path, schema: str) -> None:
    paths = [parquet_of(tmp_path, (schema, name)) for name in NAMES]
    assert {path.resolve().parents[1] for path in paths} == {tmp_path.resolve()}
    assert len({path.resolve() for path in paths}) == len(NAMES)
    assert len({parquet_of(tmp_path, (each, "t")).parent for each in NAMES}) == len(NAMES)
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.touch()


def test_usual_names_are_those_of_files(tmp_path: Path) -> None:
    assert parquet_of(tmp_path, ("shop", "orders 2")) == tmp_path / "shop" / "orders 2.parquet"
