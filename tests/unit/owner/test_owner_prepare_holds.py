"""What a start does about the history that it needs: held before anything is recorded, and let go if it fails."""

from __future__ import annotations

import time
from typing import Any

import pytest
from changefeed.errors import InvalidSpec, NeedsHuman, Unavailable
from changefeed.log.log import Log
from changefeed.objectstore.local import LocalStore
from changefeed.owner.closing.undriven import hold
from changefeed.upstream.tikv.client import leader
from changefeed.upstream.tikv.client.safepoint import Safepoint
from changefeed.upstream.tikv.cluster import TikvCluster
from changefeed_devcluster.pd.safepoints import GC_WORKER
from changefeed_devcluster.tidb.tidb import Tidb
from owner_home import Home

HOLDER = b"changefeed-default-test-local"


async def test_rule_24_history_is_held_before_record_1(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    hold, append = Safepoint.hold, Log.append

    async def noted_hold(self: Safepoint, ts: int) -> int:
        assert home.kinds() == []
        least = await hold(self, ts)
        order.append(f"held {ts}")
        return least

    def noted_append(self: Log, record: Any) -> None:
        order.append(f"{record.kind} {record.start_ts}")
        append(self, record)

    monkeypatch.setattr(Safepoint, "hold", noted_hold)
    monkeypatch.setattr(Log, "append", noted_append)
    ts = (await home.prepare()).state.start_ts
    assert order == [f"held {ts}", f"start {ts}"]


async def test_rule_24_a_hold_that_is_refused_leaves_no_record(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hold(*_: object) -> int:
        raise NeedsHuman("SnapshotLostByGC: too late.")

    monkeypatch.setattr(Safepoint, "hold", hold)
    with pytest.raises(NeedsHuman, match="SnapshotLostByGC"):
        await home.prepare()
    assert home.kinds() == []


async def test_a_first_start_right_after_a_restart_of_pd_waits_for_the_leaders(
    home: Home, tidb: Tidb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PD hears of them one after the other, for longer than a call to it may take."""
    monkeypatch.setattr(leader, "PATIENCE", 1.5)
    home.cluster.restart_pd(heartbeat_s=4.0)
    await home.prepare()
    assert home.kinds() == ["start", "epoch"]


def held_names(home: Home) -> list[bytes]:
    living = home.cluster.safepoints.living(int(time.time()))
    return [each.service_id for each in living if each.service_id != GC_WORKER]


@pytest.mark.parametrize("with_start_ts", [False, True])
async def test_a_first_start_that_fails_removes_the_hold_that_it_has_made(
    home: Home, tidb: Tidb, with_start_ts: bool
) -> None:
    no_hold_is_left(home)
    spec: dict[str, Any] = {"startTs": str(tidb.now())} if with_start_ts else {}
    with pytest.raises(InvalidSpec, match="match no table"):
        await home.prepare(filter={"rules": ["nothing.*"]}, **spec)
    assert held_names(home) == []
    await home.prepare(**spec)
    assert held_names(home) == [HOLDER]
    with pytest.raises(InvalidSpec, match="match no table"):
        await home.prepare(filter={"rules": ["nothing.*"]}, **spec)
    assert held_names(home) == [HOLDER], "it has a log by now"


@pytest.mark.parametrize("held_by", ["changefeed hold", "the operator"])
async def test_a_first_start_that_fails_leaves_the_hold_that_was_there(home: Home, tidb: Tidb, held_by: str) -> None:
    """Who has held from startTs on before the start needs it for the next one."""
    no_hold_is_left(home)
    spec: dict[str, Any] = {"startTs": str(tidb.now()), "filter": {"rules": ["nothing.*"]}}
    if held_by == "changefeed hold":
        await hold(home.changefeed(**spec))
    with pytest.raises(InvalidSpec, match="match no table"):
        await home.prepare(attempt=0 if held_by == "changefeed hold" else 1, **spec)
    assert held_names(home) == [HOLDER]


async def test_rule_14_a_first_start_that_something_kept_from_starting_holds_for_the_next_one(
    home: Home, tidb: Tidb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Start it again, says exit code 69: nothing is lost."""
    no_hold_is_left(home)

    async def away(*_: object) -> object:
        raise Unavailable("A store does not answer.")

    monkeypatch.setattr(TikvCluster, "schema", away)
    with pytest.raises(Unavailable):
        await home.prepare(startTs=str(tidb.now()))
    assert held_names(home) == [HOLDER]
    no_hold_is_left(home)
    with pytest.raises(Unavailable):
        await home.prepare()
    assert held_names(home) == [], "the next start begins at another ts"


async def test_a_hold_that_another_start_relies_on_by_now_is_left(
    home: Home, tidb: Tidb, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_hold_is_left(home)
    other = Home(home.folder, home.cluster, home.pd)
    spec: dict[str, Any] = {"startTs": str(tidb.now())}
    load = TikvCluster.schema

    async def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(TikvCluster, "schema", load)
        monkeypatch.setattr(LocalStore, "hold", lambda self: None)  # as on a store without lock files
        await other.prepare(**spec)
        raise NeedsHuman("This one fails.")

    monkeypatch.setattr(TikvCluster, "schema", overtaken)
    with pytest.raises(NeedsHuman, match="This one fails"):
        await home.prepare(**spec)
    assert held_names(home) == [HOLDER]


def no_hold_is_left(home: Home) -> None:
    for name in held_names(home):
        home.cluster.safepoints.remove(name)
