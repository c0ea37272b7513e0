"""Verify can fail: each harm to the files of a real run is found and named, with exit code 4."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from changefeed.cli.main import main
from changefeed_devcluster.tidb.schema import NewColumn
from conftest import Changefeed, Upstream
from integration_observer import Observer, format_of, watching

COLUMNS = (
    NewColumn("id", "bigint"),
    NewColumn("code", "int", unique=True),
    NewColumn("owner", "varchar(32)", nullable=True),
    NewColumn("balance", "decimal(12,2)"),
)
ROWS = 40


def write_history(upstream: Upstream) -> int:
    """Two tables with every kind of change; gives the last transaction's commit ts."""
    tidb = upstream.tidb
    a, b = tidb.tables["shop.a"], tidb.tables["shop.ab"]
    owners = (None, "", "\\N", 'a "b", c', "two\nlines", "李雷")
    with tidb.begin() as txn:
        for table, sign in ((a, 1), (b, -1)):
            for pk in range(1, ROWS + 1):
                row = {"id": pk, "code": pk, "owner": owners[pk % len(owners)], "balance": str(sign * pk)}
                txn.insert(table, row)
    for pk in range(1, 11):
        with tidb.begin() as txn:
            txn.update(a, {"id": pk, "balance": "0.25", "code": 1000 + pk})
            txn.update(b, {"id": pk, "balance": "-0.25"})
    with tidb.begin() as txn:
        txn.delete(a, 20)
        txn.delete(b, 20)
    with tidb.begin() as txn:
        txn.insert(a, {"id": 20, "code": 20, "owner": "again", "balance": "3"})
        txn.insert(b, {"id": 20, "code": 20, "owner": None, "balance": "-3"})
    return txn.commit_ts


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\r\n")[:-1]


def edit(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    path.write_bytes(b"".join(line + b"\r\n" for line in change(lines(path))))


def move_checkpoint(lake: Path, ts: int) -> None:
    (lake / "metadata").write_text(json.dumps({"checkpoint-ts": ts}))


def harms(lake: Path, file: Path, checkpoint: int) -> dict[str, tuple[Callable[[], object], str]]:
    """By name: what is done, and what verify has to say. `file` holds the table's first rows."""
    name = file.relative_to(lake).as_posix()
    index = file.parent / "meta" / "CDC.index"
    value = b'"two\nlines"'
    return {
        "dropped": (lambda: edit(file, lambda rows: rows[:4] + rows[5:]), "is in no file: I, commit ts"),
        "doubled": (lambda: edit(file, lambda rows: rows[:5] + rows[4:]), f"{name}, row 6: a change of shop.a appears"),
        "swapped": (lambda: edit(file, lambda rows: [rows[1], rows[0], *rows[2:]]), f"{name}, row 2: a change of"),
        "changed": (
            lambda: file.write_bytes(file.read_bytes().replace(value, b'"one line"', 1)),
            f"{name}, row 4: the upstream has no such change to shop.a: I, commit ts",
        ),
        "NULL to text": (
            lambda: file.write_bytes(file.read_bytes().replace(b",\\N,", b',"\\N",', 1)),
            f"{name}, row 6: the upstream has no such change to shop.a: I, commit ts",
        ),
        "deleted": (file.unlink, f"{name} is missing"),
        "truncated": (lambda: file.write_bytes(file.read_bytes()[:-9]), f"{name} is cut off"),
        "index deleted": (index.unlink, f"{index.relative_to(lake).as_posix()} publishes 0 files"),
        "index forward": (lambda: index.write_text(f"CDC{99:020}.csv\n"), "is missing: "),
        "checkpoint moved up": (
            lambda: move_checkpoint(lake, checkpoint + 1),
            f"publishes checkpoint {checkpoint + 1}",
        ),
        "another table's rows": (
            lambda: shutil.copy(next((lake / "shop" / "ab").rglob("CDC*.csv")), file),
            f"{name}, row 1: a row of shop.ab is in a file of shop.a",
        ),
    }


async def finish_here(changefeed: Changefeed) -> None:
    outcome = await changefeed.start_here().outcome()
    assert outcome.state == "finished"


def test_verify_can_fail(
    upstream: Upstream, new_changefeed: Callable[..., Changefeed], capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.tidb.create_database("shop")
    upstream.tidb.create_table("shop", "a", COLUMNS, regions=4, handles=ROWS)
    upstream.tidb.create_table("shop", "ab", COLUMNS)
    changefeed = new_changefeed(["shop.*"])
    changefeed.spec["startTs"] = str(upstream.tidb.now())
    last_commit = write_history(upstream)
    changefeed.spec["targetTs"] = str(upstream.tidb.now())
    with watching(changefeed.lake.as_uri()) as observer:
        asyncio.run(finish_here(changefeed))
    assert observer.listings > 1

    def verify() -> tuple[int, dict[str, Any]]:
        code = main(["verify", "-f", str(changefeed.file), "--conserved", "balance", "--json"])
        return code, json.loads(capsys.readouterr().out)

    code, verdict = verify()
    assert code == 0, verdict
    assert verdict["rows"] == 2 * ROWS + 20 + 10 + 2 + 2
    assert verdict["transactions"] == 1 + 10 + 1 + 1
    assert verdict["conserved"] == "0"
    assert verdict["replayed"] == 2 * ROWS
    checkpoint = int(verdict["checkpoint_ts"])
    assert last_commit < checkpoint == changefeed.checkpoint()
    lake, kept = changefeed.lake, changefeed.folder / "kept"
    shutil.copytree(lake, kept)
    file = sorted((lake / "shop" / "a").rglob("CDC*.csv"))[0]
    for harm, (do, said) in harms(lake, file, checkpoint).items():
        do()
        code, verdict = verify()
        assert code == 4, harm
        assert not verdict["ok"]
        assert said in verdict["first_problem"], harm
        shutil.rmtree(lake)
        shutil.copytree(kept, lake)
    assert verify()[0] == 0


def test_the_observer_sees_what_comes_too_late(tmp_path: Path) -> None:
    """Each harm between two looks, on a sink that nobody writes."""
    folder = tmp_path / "shop" / "a" / "5"
    (folder / "meta").mkdir(parents=True)

    def publish(index: int, ts: int) -> None:
        file = folder / f"CDC{index:020}.csv"
        file.write_bytes(b'"I","a","shop",%d,1\r\n' % ts)
        (folder / "meta" / "CDC.index").write_text(f"{file.name}\n")

    observer = Observer(tmp_path.as_uri(), format_of())
    for step in (
        lambda: None,
        lambda: publish(1, 3),
        lambda: move_checkpoint(tmp_path, 5),
        lambda: publish(2, 6),
        lambda: move_checkpoint(tmp_path, 9),
    ):
        step()
        observer.look()
    assert observer.problems == []
    publish(3, 9)
    observer.look()
    assert observer.problems.pop().endswith("appeared with a row of commit ts 9, after checkpoint 9 was published.")
    move_checkpoint(tmp_path, 8)
    observer.look()
    assert observer.problems.pop() == "`metadata` went back from checkpoint 9 to 8."
    edit(folder / f"CDC{1:020}.csv", lambda rows: rows * 2)
    observer.look()
    assert [problem for problem in observer.problems if "was published with" in problem]
