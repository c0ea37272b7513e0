"""How a run ends, and what it leaves: drained, finished at its target, refused; a DDL ends none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from changefeed_devcluster import keys
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from conftest import Changefeed, Upstream, wait_for

COLUMNS = (NewColumn("id", "bigint"), NewColumn("name", "varchar(32)", nullable=True))
SCREEN_LINES = 24

pytestmark = pytest.mark.timeout(300)  # several starts


def make_table(upstream: Upstream, name: str) -> NamedTable:
    if "shop" not in upstream.tidb.databases:
        upstream.tidb.create_database("shop")
    return upstream.tidb.create_table("shop", name, COLUMNS)


def insert(upstream: Upstream, table: NamedTable, ids: Iterable[int]) -> int:
    """Rows in one transaction; its commit ts."""
    with upstream.tidb.begin() as txn:
        for pk in ids:
            txn.insert(table, {"id": pk, "name": f"number {pk}"})
    return txn.commit_ts


def records_in(files: Iterable[Path]) -> list[list[str]]:
    """The files' lines, split at commas: operation, table, schema, commit ts, columns."""
    return [line.split(",") for file in files for line in file.read_text().splitlines()]


def indexes_by_directory(changefeed: Changefeed) -> dict[Path, list[int]]:
    found: dict[Path, list[int]] = {}
    for file in changefeed.data_files():
        found.setdefault(file.parent, []).append(int(file.stem.removeprefix("CDC")))
    return found


def assert_one_screen(err: str, *said: str) -> None:
    """An error for a person: what failed and what to do, no traceback."""
    assert err.startswith("error: "), err
    assert "\nnext: " in err
    assert len(err.splitlines()) <= SCREEN_LINES, err
    assert "Traceback" not in err
    for part in said:
        assert part in err, f"{part!r} is not in {err!r}"


def test_refused_twice_at_once_then_drained_then_finished_at_its_target(
    upstream: Upstream, new_changefeed: Callable[..., Changefeed], capfd: pytest.CaptureFixture[str]
) -> None:
    table = make_table(upstream, "orders")
    changefeed = new_changefeed(["shop.*"])
    changefeed.spec["startTs"] = str(upstream.tidb.now())
    first = insert(upstream, table, range(100))
    changefeed.start()
    wait_for(lambda: changefeed.checkpoint() >= first, "a checkpoint at the first rows")

    twin = Changefeed(changefeed.folder, changefeed.spec)
    code, out, err = twin.run(as_json=False)
    assert code == 1
    assert not out
    assert changefeed.process is not None
    assert_one_screen(err, "in use", str(changefeed.process.pid), "is running twice")

    second = insert(upstream, table, range(100, 200))
    wait_for(lambda: changefeed.checkpoint() >= second, "that the first run goes on after the second was refused")
    assert [record["epoch"] for record in changefeed.records("epoch")] == [1]
    code, out, err = changefeed.drain()
    assert code == 0, err
    assert json.loads(out)["state"] == "drained"
    drained_at = changefeed.checkpoint()
    assert int(json.loads(out)["checkpoint_ts"]) == drained_at
    written = {file: file.stat().st_ino for file in changefeed.data_files()}

    third = insert(upstream, table, range(200, 300))
    target = upstream.tidb.now()
    beyond = insert(upstream, table, range(300, 400))
    changefeed.spec["targetTs"] = str(target)
    changefeed.options = ["--json"]
    capfd.readouterr()
    assert changefeed.run_here() == 0
    said = json.loads(capfd.readouterr().out)
    assert (said["state"], int(said["checkpoint_ts"])) == ("finished", target)
    assert changefeed.checkpoint() == target
    rows = records_in(changefeed.data_files())
    commits = [int(row[3]) for row in rows]
    assert sorted(int(row[4]) for row in rows) == list(range(300))
    assert set(commits) == {first, second, third}
    assert beyond not in commits
    assert {file: file.stat().st_ino for file in written} == written

    log = changefeed.records()
    changefeed.options = []
    code, out, err = changefeed.run()
    assert code == 0, err
    assert (json.loads(out)["state"], int(json.loads(out)["checkpoint_ts"])) == ("finished", target)
    assert [record["kind"] for record in changefeed.records()[len(log) :]] in ([], ["epoch"])
    code, verdict = changefeed.verify()
    assert code == 0, verdict
    assert (verdict["rows"], verdict["missing"], verdict["duplicate"]) == (300, 0, 0)


async def test_rule_13_an_entry_without_rows_is_a_file_without_bytes(
    upstream: Upstream, new_changefeed: Callable[..., Changefeed]
) -> None:
    """Two rows come in one segment, with a lock and the target between them.

    What lies after the lock and up to the target is planned because rows might be there. There is none: the entry is
    empty. (A delete of a row that never existed can't make one: the puller drops it.)
    """
    table = make_table(upstream, "orders")
    changefeed = new_changefeed(["shop.*"])
    changefeed.spec["startTs"] = str(upstream.tidb.now())
    before = insert(upstream, table, [1])
    locked = keys.record_key(table.id, 3)
    lock_ts = upstream.cluster.hold_lock(locked, ttl_ms=3_600_000)
    target = upstream.tidb.now()
    insert(upstream, table, [2])
    changefeed.spec["targetTs"] = str(target)
    run = changefeed.start_here()
    await run.until(changefeed.data_files, "the file of the row below the lock")
    upstream.cluster.store.rollback([locked], lock_ts)
    assert ((await run.outcome()).state, changefeed.checkpoint()) == ("finished", target)

    entries = [entry for plan in changefeed.records("plan") for entry in plan["entries"]]
    assert [(entry["output"]["index"], entry["reason"]) for entry in entries] == [(1, "interval"), (2, "barrier")]
    full, empty = (changefeed.lake / entry["output"]["path"] for entry in entries)
    assert records_in([full]) == [['"I"', '"orders"', '"shop"', str(before), "1", '"number 1"']]
    assert empty.stat().st_size == 0
    assert indexes_by_directory(changefeed) == {empty.parent: [1, 2]}
    assert (empty.parent / "meta" / "CDC.index").read_text().strip() == empty.name
    files = [file for commit in changefeed.records("commit") for file in commit["files"]]
    assert [(file["rows"], file["raw_rows"]) for file in files] == [(1, 1), (0, 0)]
    code, verdict = changefeed.verify()
    assert code == 0, verdict
    assert (verdict["rows"], verdict["files"]) == (1, 2)


def test_rule_9_a_ddl_comes_behind_every_row_up_to_its_ts(
    upstream: Upstream, new_changefeed: Callable[..., Changefeed]
) -> None:
    orders, other = make_table(upstream, "orders"), make_table(upstream, "tmp_other")
    changefeed = new_changefeed(["shop.*", "!shop.tmp_*"])
    changefeed.spec["startTs"] = str(upstream.tidb.now())
    insert(upstream, orders, range(100))
    changefeed.start()
    wait_for(changefeed.data_files, "a first data file")
    upstream.tidb.add_column(other, NewColumn("note", "varchar(32)", nullable=True))
    make_table(upstream, "tmp_new")
    upstream.tidb.create_database("elsewhere")
    insert(upstream, orders, range(100, 200))

    with upstream.tidb.begin() as txn:
        txn.insert(orders, {"id": 1000, "name": "at T"})
        txn.prewrite()
        wide = upstream.tidb.add_column(orders, NewColumn("note", "varchar(32)", nullable=True))
        altered = upstream.tidb.last_ddl_ts
        upstream.cluster.store.commit([keys.record_key(orders.id, 1000)], txn.start_ts, altered)
        txn.commit_ts = altered
    with upstream.tidb.begin() as txn:
        txn.insert(wide, {"id": 2000, "name": "after T", "note": "new"})
    after = upstream.tidb.now()
    wait_for(lambda: changefeed.checkpoint() > after, "a checkpoint after the DDLs")
    code, _, err = changefeed.drain()
    assert code == 0, err

    assert [record["query"][:11] for record in changefeed.records("ddl")] == ["ALTER TABLE"]
    before = [file for file in changefeed.data_files() if str(altered) not in file.parts]
    rows = {int(row[4]): row for row in records_in(before)}
    assert sorted(rows) == [*range(200), 1000]
    assert rows[1000] == ['"I"', '"orders"', '"shop"', str(altered), "1000", '"at T"']
    behind = [file for file in changefeed.data_files() if str(altered) in file.parts]
    assert [row[4:] for row in records_in(behind)] == [["2000", '"after T"', '"new"']]
    code, verdict = changefeed.verify()
    assert code == 0, verdict
    assert verdict["rows"] == 202
