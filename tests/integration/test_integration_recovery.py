"""A run that is killed in the middle of a plan: the next one finishes that very plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from conftest import Changefeed, Upstream, wait_for
from integration_observer import watching

COLUMNS = (NewColumn("id", "bigint"), NewColumn("balance", "bigint"), NewColumn("text", "varchar(255)"))
TABLES = 10
ROWS = 200  # a table and a round
ROUNDS = 20

pytestmark = pytest.mark.timeout(300)  # several starts


def write_rows(upstream: Upstream, tables: Sequence[NamedTable], turn: int) -> None:
    """New rows of every table, in one transaction."""
    with upstream.tidb.begin() as txn:
        for table in tables:
            for pk in range(turn * ROWS, (turn + 1) * ROWS):
                txn.insert(table, {"id": pk, "balance": pk, "text": "x" * 200})


@dataclass(frozen=True)
class Cutoff:
    """What stood in the log and the sink when every process of the run was dead."""

    plan: Path
    record: bytes
    existing: dict[Path, tuple[int, bytes]]  # (inode, content)
    missing: list[Path]


def stop_all(driver: psutil.Process, known: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Freezes the driver, Spark's JVM and its workers, those first that are `known`; what is frozen writes nothing."""
    frozen: list[psutil.Process] = []
    found = [*known, driver]
    while found:
        for process in found:
            with suppress(psutil.NoSuchProcess):  # a worker whose task is over
                process.suspend()
                frozen.append(process)
        found = [process for process in driver.children(recursive=True) if process not in frozen]
    return frozen


def kill_all(changefeed: Changefeed, processes: Sequence[psutil.Process]) -> None:
    """SIGKILL, as power loss would end them."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # the kernel ends what is frozen with its parent
            process.kill()
    changefeed.kill()
    wait_for(lambda: not any(map(is_alive, processes)), "that all are dead")


def is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def committed(changefeed: Changefeed, plan: int) -> list[tuple[int, int]]:
    """(epoch of the commit record, entry) of each file of the plan that the log has as committed."""
    files = [(record["epoch"], file) for record in changefeed.records("commit") for file in record["files"]]
    return [(epoch, file["entry"]) for epoch, file in files if file["plan"] == plan]


def open_plan(changefeed: Changefeed) -> tuple[Path, list[Path]] | None:
    """The log's newest plan and its files, if there are several and some are in no commit record."""
    for plan in changefeed.records("plan")[-1:]:
        files = [changefeed.lake / entry["output"]["path"] for entry in plan["entries"]]
        if len(files) > 1 and len(committed(changefeed, plan["n"])) < len(files):
            return changefeed.log / f"{plan['n']:020}.json", files
    return None


def kill_inside_a_plan(changefeed: Changefeed, write_more: Callable[[int], None]) -> Cutoff:
    """Kills the whole run while some files of a plan exist and others do not; a lost race is run again."""
    assert changefeed.process is not None
    driver = psutil.Process(changefeed.process.pid)
    for turn in range(1, ROUNDS):
        plan, files = wait_for(lambda: open_plan(changefeed), "a plan of several entries")
        workers = driver.children(recursive=True)
        while not any(file.exists() for file in files):
            assert changefeed.process.poll() is None, changefeed.finish()
        frozen = stop_all(driver, workers)
        existing = {file: (file.stat().st_ino, file.read_bytes()) for file in files if file.exists()}
        missing = [file for file in files if file not in existing]
        if missing:
            kill_all(changefeed, frozen)
            return Cutoff(plan, plan.read_bytes(), existing, missing)
        for process in frozen:
            process.resume()
        wait_for(lambda: open_plan(changefeed) is None, "the commit of the plan")
        write_more(turn)
    pytest.fail(f"in {ROUNDS} rounds no plan was caught half done")


def test_rule_3_and_16_a_killed_plan_is_finished_as_recorded(
    upstream: Upstream, new_changefeed: Callable[..., Changefeed]
) -> None:
    upstream.tidb.create_database("shop")
    tables = [upstream.tidb.create_table("shop", f"t_{n}", COLUMNS) for n in range(TABLES)]
    changefeed = new_changefeed(["shop.*"])
    changefeed.spec["startTs"] = str(upstream.tidb.now())
    write_rows(upstream, tables, 0)
    with watching(changefeed.lake.as_uri(), every_s=0.2):
        changefeed.start()
        cutoff = kill_inside_a_plan(changefeed, lambda turn: write_rows(upstream, tables, turn))
        for file in (*cutoff.existing, *cutoff.missing):
            size = f"{len(cutoff.existing[file][1])} bytes" if file in cutoff.existing else "missing"
            print(f"at the kill: {file.relative_to(changefeed.lake)}: {size}")  # noqa: T201 - what the test is about
        assert cutoff.missing
        assert cutoff.existing
        assert not any(file.exists() for file in cutoff.missing), "a dead run has written"
        number = int(cutoff.plan.stem)
        planned = json.loads(cutoff.record)["entries"]
        entries = {changefeed.lake / entry["output"]["path"]: entry["entry"] for entry in planned}
        before = [entry for _, entry in committed(changefeed, number)]
        assert set(before) <= {entries[file] for file in cutoff.existing}, "what is committed stands in the sink"
        published = changefeed.checkpoint()

        write_rows(upstream, tables, ROUNDS)
        end = upstream.tidb.now()
        changefeed.spec["sink"]["storage"]["flushInterval"] = "250ms"
        changefeed.spec["targetTs"] = str(end)
        assert changefeed.run_here() == 0
        assert changefeed.checkpoint() == end
        assert cutoff.plan.read_bytes() == cutoff.record
        assert [record["epoch"] for record in changefeed.records("epoch")] == [1, 2]
        after = [(epoch, entry) for epoch, entry in committed(changefeed, number) if entry not in before]
        assert {epoch for epoch, _ in after} == {2}
        assert sorted([*before, *(entry for _, entry in after)]) == sorted(entries.values())
        for file, (inode, content) in cutoff.existing.items():
            assert file.stat().st_ino == inode, f"{file} was written again"
            assert file.read_bytes() == content
        assert all(file.stat().st_size for file in cutoff.missing)
    assert changefeed.checkpoint() > published
    code, verdict = changefeed.verify()
    assert code == 0, verdict
    assert verdict["rows"] % (TABLES * ROWS) == 0
    assert (verdict["missing"], verdict["duplicate"], verdict["out_of_order"]) == (0, 0, 0)
