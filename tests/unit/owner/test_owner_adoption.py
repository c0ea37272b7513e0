"""`changefeed adopt`: a sink whose changefeed is gone, and its log, go to a Changefeed with a state id; and so does a
folder that TiCDC has written.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from changefeed.cli.main import main
from changefeed.errors import Conflict, Fenced, InvalidSpec, NeedsHuman, OutputConflict, StateInUse, Superseded
from changefeed.log.log import Log
from changefeed.log.records import CommitRecord
from changefeed.objectstore.local import LocalStore
from changefeed.owner import adoption as adoption_module
from changefeed.owner.adoption import adopt
from changefeed.owner.alive import Alive
from changefeed.owner.closing.undriven import close
from changefeed.owner.locations import service_id
from changefeed.owner.preparation.prepare import open_state_and_sink, prepare
from changefeed.owner.preparation.prepared import Prepared
from changefeed.spec.model import Changefeed
from changefeed.spec.parse import effective, parse
from changefeed.ticdc import adoption as ticdc_module
from changefeed.ticdc.adoption import adopt_ticdc
from changefeed.upstream import choice
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.schema import NewColumn
from changefeed_devcluster.tidb.tidb import Tidb


@pytest.fixture(scope="module")
def tidb(cluster: DevCluster) -> Tidb:
    made_tidb = Tidb(cluster)
    made_tidb.bootstrap()
    made_tidb.create_database("shop")
    made_tidb.create_table("shop", "orders", (NewColumn("id", "bigint"),))
    return made_tidb


Make = Callable[..., Changefeed]


@pytest.fixture
def make(tmp_path: Path, cluster: DevCluster, tidb: Tidb) -> Make:
    """`make(uid, id=None)`: the changefeed as one resource after the other has it."""

    def changefeed(uid: str, state_id: str | None = None, **spec: Any) -> Changefeed:
        state = {"uri": (tmp_path / "state").as_uri(), **({"id": state_id} if state_id else {})}
        members = {
            "upstream": {"pdAddresses": [f"http://{cluster.pd_address}"]},
            "filter": {"rules": ["shop.*"]},
            "state": state,
            "sink": {"storage": {"uri": (tmp_path / "lake").as_uri(), "protocol": "csv"}},
        }
        metadata = {"namespace": "shop", "name": "orders", "uid": uid}
        document = {"apiVersion": "changefeed.dev/v1alpha1", "kind": "Changefeed", "metadata": metadata}
        return parse(json.dumps(document | {"spec": members | spec}))

    return changefeed


async def start(changefeed: Changefeed, attempt: int = 1) -> Prepared:
    state, sink = open_state_and_sink(changefeed)
    pd = await choice.access_of(changefeed).connect(10.0)
    try:
        return await prepare(changefeed, pd, state, sink, attempt=attempt)
    finally:
        await pd.close()
        state.release()
        sink.release()


def advance(prepared: Prepared, ts: int) -> None:
    n, epoch = prepared.log.state.n + 1, prepared.epoch
    prepared.log.append(CommitRecord(n=n, epoch=epoch, nonce=prepared.nonce, checkpoint_ts=ts))


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


async def test_rule_7_a_sink_goes_to_another_changefeed_with_its_log(tmp_path: Path, make: Make, tidb: Tidb) -> None:
    old = await start(make("A"), attempt=5)
    checkpoint = tidb.now()
    advance(old, checkpoint)
    old.log.fold(old.log.state)
    new = make("B", "orders")
    with pytest.raises(NeedsHuman, match="SinkOwned") as refused:
        await start(new)
    assert "changefeed adopt" in refused.value.next_step

    segments = tmp_path / "state" / "shop" / "orders" / "A" / "events" / f"1-{old.nonce}"
    segments.mkdir(parents=True, exist_ok=True)
    (segments / "1.arrow").write_text("rows")
    before = everything_in(tmp_path)
    seen = await adopt(new)
    assert (seen.owner, seen.uid, seen.checkpoint_ts) == ("shop/orders", "A", checkpoint)
    assert [step.split()[0] for step in seen.steps] == ["Hold", "End", "Copy", "Change"]
    assert everything_in(tmp_path) == before, "only looked"

    assert await adopt(new, confirmed=True) == seen
    assert not segments.exists(), "nobody would delete them any more"
    taken = await start(new)
    assert (taken.state.checkpoint_ts, taken.state.uid, taken.epoch) == (checkpoint, old.state.uid, 3)
    claimed = json.loads((tmp_path / "lake" / ".changefeed-owner.json").read_text())
    assert claimed == {"uid": "A", "stateUri": taken.state_location.uri}
    for attempt in (6, 99):
        with pytest.raises(Superseded, match=r"changefeed adopt has taken over the state at .* from this one, uid A"):
            await start(make("A"), attempt)
    advance(taken, tidb.now())
    with pytest.raises(NeedsHuman, match=r"has the state .* already"):
        await adopt(new)


async def test_rule_7_a_state_goes_back_to_one_that_was_superseded(make: Make, tidb: Tidb) -> None:
    """As when a late driver of a resource that is gone has taken over from the one that lives (history.py, 11)."""
    await start(make("B", "orders"), attempt=3)
    await start(make("A", "orders"), attempt=1)
    with pytest.raises(Superseded):
        await start(make("B", "orders"), attempt=4)
    assert [step.split()[0] for step in (await adopt(make("B", "orders"), confirmed=True)).steps] == ["Hold", "End"]
    assert (await start(make("B", "orders"), attempt=4)).epoch == 4
    with pytest.raises(Superseded):
        await start(make("A", "orders"), attempt=9)


async def test_rule_7_adopting_holds_history_before_it_ends_the_old_log(
    make: Make, cluster: DevCluster, tidb: Tidb, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start(make("A"))
    new = make("B", "held")

    def fails(_: object) -> None:
        held = [each.service_id for each in cluster.safepoints.living(0)]
        assert service_id(new).encode() in held
        raise KeyboardInterrupt

    monkeypatch.setattr(adoption_module, "_carry_out", fails)
    with pytest.raises(KeyboardInterrupt):
        await adopt(new, confirmed=True)


async def test_rule_7_an_adoption_that_died_is_gone_on_with(
    make: Make, tidb: Tidb, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance(await start(make("A")), tidb.now())
    new = make("B", "again")
    create = adoption_module.create_bytes

    def dies(store: LocalStore, path: str, body: bytes) -> None:
        if path.endswith("3.json"):
            raise OutputConflict("it dies here")
        create(store, path, body)

    with monkeypatch.context() as dying:
        dying.setattr(adoption_module, "create_bytes", dies)
        with pytest.raises(OutputConflict, match="dies here"):
            await adopt(new, confirmed=True)
    with pytest.raises(NeedsHuman, match="SinkOwned"):
        await start(new)
    await adopt(new, confirmed=True)
    assert (await start(new)).state.superseded[0] == "A"


async def test_rule_7_what_can_not_be_adopted_is_refused(tmp_path: Path, make: Make, tidb: Tidb) -> None:
    new = make("B", "orders")
    with pytest.raises(NeedsHuman, match="belongs to no changefeed"):
        await adopt(new)
    old = await start(make("A"))
    with pytest.raises(InvalidSpec, match=r"spec\.state\.id: missing"):
        await adopt(make("B"))
    with pytest.raises(InvalidSpec, match=r"spec\.startTs"):
        await adopt(make("B", "orders", startTs="449"))
    other = {"storage": {"uri": (tmp_path / "other").as_uri(), "protocol": "csv"}}
    await start(make("C", "orders", sink=other))
    with pytest.raises(NeedsHuman, match="log of another changefeed"):
        await adopt(new)
    (old.log.store.root / "log").rename(tmp_path / "away")  # type: ignore[attr-defined]
    with pytest.raises(NeedsHuman, match="Without the log it is unknown"):
        await adopt(make("B", "free"))


async def test_rule_7_what_a_driver_runs_is_not_adopted(
    make: Make, tidb: Tidb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a store without lock files."""
    old = await start(make("A"))
    pd = await choice.access_of(make("A")).connect(10.0)
    Alive(old.log.store, "A", "shop/orders").refresh(1, await pd.now_ms())
    await pd.close()

    class Shared:
        pass

    monkeypatch.setattr(adoption_module, "LocalStore", Shared)
    with pytest.raises(StateInUse, match="Changefeed shop/orders, uid A, runs"):
        await adopt(make("B", "orders"), confirmed=True)
    assert not Log(old.log.store).read().closed


async def test_rule_6_a_duplicate_that_is_deleted_closes_nothing_of_the_one_that_runs(
    tmp_path: Path, make: Make, cluster: DevCluster, tidb: Tidb
) -> None:
    """Two Changefeeds have one id by mistake. The second never drove it, and is deleted, as it was told."""
    first = await start(make("A", "both"))
    before = everything_in(tmp_path)
    assert not await close(make("B", "both"))
    assert everything_in(tmp_path) == before
    assert service_id(make("A", "both")).encode() in [each.service_id for each in cluster.safepoints.living(0)]
    advance(first, tidb.now())
    assert (await start(make("A", "both"), attempt=2)).epoch == 2


async def test_rule_6_closed_ends_a_resource_that_never_ran_as_well(make: Make, tidb: Tidb) -> None:
    await start(make("A", "ended"), attempt=7)
    assert await close(make("A", "ended"))
    assert await close(make("B", "ended")), "no driver of it may come late"
    assert not await close(make("B", "ended"))
    for uid, refusal in (("A", Superseded), ("B", Fenced)):
        with pytest.raises(refusal):
            await start(make(uid, "ended"), attempt=9)
    assert (await start(make("C", "ended"), attempt=1)).state.superseded == ("A", "B")
    assert not await close(make("A", "ended"))


async def test_the_command_looks_first(
    tmp_path: Path, make: Make, tidb: Tidb, capsys: pytest.CaptureFixture[str]
) -> None:
    await start(make("A"))
    file = tmp_path / "new.json"
    file.write_text(json.dumps(effective(make("B", "orders"))))
    assert await asyncio.to_thread(main, ["adopt", "-f", str(file)]) == 0
    said = capsys.readouterr().out
    assert "was written last by shop/orders, uid A" in said
    assert "Nothing was changed" in said
    assert await asyncio.to_thread(main, ["adopt", "-f", str(file), "--confirm", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["done"], answer["uid"]) == (True, "A")
    assert (await start(make("B", "orders"))).epoch == 3


@pytest.fixture
def checkpoint(tmp_path: Path, tidb: Tidb, monkeypatch: pytest.MonkeyPatch) -> int:
    """The checkpoint of a folder that TiCDC has written, `lake`."""
    began, checkpoint_ts = tidb.now(), tidb.now()
    day = tmp_path / "lake" / "shop" / "orders" / str(began) / "2026-11-26"
    (day / "meta").mkdir(parents=True)
    (day / f"CDC{1:020}.csv").write_text('"I","orders","shop",1\r\n')
    (day / "meta" / "CDC.index").write_text(f"CDC{1:020}.csv\n")
    (day.parents[1] / "meta").mkdir()
    (day.parents[1] / "meta" / f"schema_{began}_0123456789.json").write_text("{}")
    say(tmp_path, checkpoint_ts)
    monkeypatch.setattr(ticdc_module, "WATCHED_S", 0.0)
    return checkpoint_ts


def say(folder: Path, checkpoint_ts: int) -> None:
    (folder / "lake" / "metadata").write_text(json.dumps({"checkpoint-ts": checkpoint_ts}))


async def test_rule_7_a_folder_of_ticdcs_is_gone_on_with_at_its_checkpoint(
    tmp_path: Path, make: Make, cluster: DevCluster, checkpoint: int
) -> None:
    new = make("B", "orders")
    with pytest.raises(NeedsHuman, match="SinkOwned") as refused:
        await start(new)
    assert "changefeed adopt --ticdc" in refused.value.next_step
    with pytest.raises(NeedsHuman, match="belongs to no changefeed"):
        await adopt(new)

    holders = [each.service_id for each in cluster.safepoints.living(0)]
    before = everything_in(tmp_path / "lake")
    seen = await adopt_ticdc(new)
    assert (seen.checkpoint_ts, seen.start_ts, seen.files, seen.tables) == (checkpoint, checkpoint, 1, 1)
    assert [step.split()[0] for step in seen.steps] == ["Hold", "Begin", "Make"]
    assert everything_in(tmp_path / "lake") == before, "only looked"
    assert [each.service_id for each in cluster.safepoints.living(0)] == holders

    assert await adopt_ticdc(new, confirmed=True) == seen
    taken = await start(new)
    assert (taken.state.checkpoint_ts, taken.state.start_ts, taken.state.adopted) == (checkpoint, checkpoint, True)
    assert {table.series for table in taken.planned_tables().values()} == {f"shop/orders/{checkpoint}"}
    now = everything_in(tmp_path / "lake")
    assert {path: now[path] for path in before} == before
    claimed = json.loads((tmp_path / "lake" / ".changefeed-owner.json").read_text())
    assert claimed == {"uid": "orders", "stateUri": taken.state_location.uri}
    with pytest.raises(NeedsHuman, match=r"has .* already"):
        await adopt_ticdc(new)
    with pytest.raises(NeedsHuman, match="SinkOwned"):
        await adopt_ticdc(make("C", "others"))


async def test_rule_7_the_start_of_a_folder_of_ticdcs_may_be_above_its_metadata(
    make: Make, tidb: Tidb, checkpoint: int
) -> None:
    own = tidb.now()
    new = make("B", "orders", startTs=str(own))
    seen = await adopt_ticdc(new, confirmed=True)
    assert (seen.checkpoint_ts, seen.start_ts) == (checkpoint, own)
    assert "changes will be missing" in seen.steps[-1]
    assert (await start(new)).state.checkpoint_ts == own


async def test_rule_7_an_adoption_from_ticdc_that_died_is_gone_on_with(
    tmp_path: Path, make: Make, tidb: Tidb, checkpoint: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = make("B", "orders")

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(ticdc_module, "take", dies)
        with pytest.raises(KeyboardInterrupt):
            await adopt_ticdc(new, confirmed=True)
    with pytest.raises(NeedsHuman, match="SinkOwned"):
        await start(new)
    with pytest.raises(InvalidSpec, match=r"spec\.startTs"):
        await adopt_ticdc(make("B", "orders", startTs=str(tidb.now())))
    say(tmp_path, tidb.now())
    with pytest.raises(NeedsHuman, match=f"at {checkpoint} was begun earlier, but TiCDC has since advanced"):
        await adopt_ticdc(new, confirmed=True)
    say(tmp_path, checkpoint)
    assert (await adopt_ticdc(new, confirmed=True)).start_ts == checkpoint
    assert (await start(new)).state.adopted


async def test_rule_7_history_is_held_before_a_folder_of_ticdcs_is_taken(
    make: Make, cluster: DevCluster, checkpoint: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = make("B", "held-for-ticdc")

    async def fails(*_: object) -> None:
        assert service_id(new).encode() in [each.service_id for each in cluster.safepoints.living(0)]
        raise KeyboardInterrupt

    monkeypatch.setattr(ticdc_module, "check_still", fails)
    with pytest.raises(KeyboardInterrupt):
        await adopt_ticdc(new, confirmed=True)


async def test_rule_7_what_ticdc_still_writes_is_not_adopted(
    tmp_path: Path, make: Make, tidb: Tidb, checkpoint: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = ticdc_module.seen_files

    def writes_behind_it(sink: LocalStore) -> dict[str, int]:
        found = seen(sink)
        say(tmp_path, tidb.now())
        return found

    monkeypatch.setattr(ticdc_module, "seen_files", writes_behind_it)
    with pytest.raises(Conflict, match="metadata has changed") as refused:
        await adopt_ticdc(make("B", "orders"), confirmed=True)
    assert "Pause TiCDC" in refused.value.next_step
    assert not (tmp_path / "lake" / ".changefeed-owner.json").exists()


async def test_rule_7_what_can_not_be_adopted_from_ticdc_is_refused(
    tmp_path: Path, make: Make, tidb: Tidb, checkpoint: int
) -> None:
    new = make("B", "orders")
    with pytest.raises(InvalidSpec, match=r"spec\.state\.id: missing"):
        await adopt_ticdc(make("B"))
    for start_ts in (checkpoint - 1, tidb.now() + (1 << 40)):
        with pytest.raises(InvalidSpec, match=r"spec\.startTs"):
            await adopt_ticdc(make("B", "orders", startTs=str(start_ts)))
    with pytest.raises(InvalidSpec, match=r"spec\.filter\.rules"):
        await adopt_ticdc(make("B", "orders", filter={"rules": ["other.*"]}))
    sink = {"uri": (tmp_path / "lake").as_uri(), "protocol": "canal-json"}
    with pytest.raises(InvalidSpec, match=r"would be named .*\.json"):
        await adopt_ticdc(make("B", "orders", sink={"storage": sink}))
    schemas = tmp_path / "lake" / "shop" / "orders" / "meta"
    (ahead := schemas / f"schema_{checkpoint}_0123456789.json").write_text("{}")
    with pytest.raises(NeedsHuman, match="its `metadata` does not cover"):
        await adopt_ticdc(new, confirmed=True)
    ahead.unlink()
    (tmp_path / "lake" / "metadata").unlink()
    with pytest.raises(NeedsHuman, match="no `metadata` with a checkpoint"):
        await adopt_ticdc(new, confirmed=True)
    say(tmp_path, checkpoint)
    other = {"storage": {"uri": (tmp_path / "other").as_uri(), "protocol": "csv"}}
    await start(make("C", "orders", sink=other))
    with pytest.raises(NeedsHuman, match="log of another changefeed"):
        await adopt_ticdc(new, confirmed=True)
    assert not (tmp_path / "lake" / ".changefeed-owner.json").exists()


async def test_the_command_looks_at_a_folder_of_ticdcs_first(
    tmp_path: Path, make: Make, checkpoint: int, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new.json"
    file.write_text(json.dumps(effective(make("B", "orders"))))
    assert await asyncio.to_thread(main, ["adopt", "-f", str(file), "--ticdc"]) == 0
    said = capsys.readouterr().out
    assert f"has 1 files of 1 tables; their checkpoint is {checkpoint}" in said
    assert "Nothing was changed. Make sure that TiCDC's changefeed is paused" in said
    assert await asyncio.to_thread(main, ["adopt", "-f", str(file), "--ticdc", "--confirm", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["done"], answer["start_ts"]) == (True, str(checkpoint))
    assert (await start(make("B", "orders"))).epoch == 1
