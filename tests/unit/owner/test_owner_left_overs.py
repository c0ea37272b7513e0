"""`changefeed gc` over states on this machine: what is found, what is closed, what is left alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from changefeed.cli.main import main
from changefeed.errors import Conflict, NeedsHuman, Unavailable
from changefeed.log.log import Log
from changefeed.log.records import StartRecord
from changefeed.model.tso import MAX_TS
from changefeed.objectstore import Location
from changefeed.objectstore.local import LocalStore
from changefeed.owner import locations
from changefeed.owner.closing import undriven
from changefeed.owner.closing.left_overs import StateFolder, close_left_over, find
from changefeed.owner.preparation.records import epoch_record
from changefeed.spec.parse import parse
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.cluster import TikvCluster

NOW_MS = 1_800_000_000_000
TS = 450_000_000_000_000_000
FOLDER = "shop/orders/u-1"


class Pd:
    """What `close` asks of PD. `removed`: holds."""

    def __init__(self) -> None:
        self.removed: list[str] = []

    async def update_safepoint(self, service_id: str, ttl_seconds: int, safe_point: int) -> int:
        assert (ttl_seconds, safe_point) == (0, MAX_TS)
        self.removed.append(service_id)
        return 0

    async def close(self) -> None:
        pass


@pytest.fixture
def pd(monkeypatch: pytest.MonkeyPatch) -> Pd:
    made = Pd()

    async def connect(*_: object) -> TikvCluster:
        return TikvCluster(cast(PdClient, made))

    monkeypatch.setattr(undriven, "connect", connect)
    return made


@pytest.fixture
def state(tmp_path: Path) -> Location:
    """That of two changefeeds, each with a stored segment; no driver runs."""
    location = Location((tmp_path / "state").as_uri())
    for name, more in (("orders", {}), ("users", {"id": "users-of-shop"})):
        _run(location, name, **more)
    return location


def _run(state: Location, name: str, **more: str) -> None:
    resource: dict[str, Any] = {
        "apiVersion": "changefeed.dev/v1alpha1",
        "kind": "Changefeed",
        "metadata": {"name": name, "namespace": "shop", "uid": "u-1"},
        "spec": {
            "upstream": {"pdAddresses": ["http://127.0.0.1:1"]},
            "state": {"uri": state.uri, **more},
            "sink": {"storage": {"uri": "file:///lake", "protocol": "csv"}},
        },
    }
    changefeed = parse(json.dumps(resource))
    store = LocalStore(_path(locations.state_location(changefeed)))
    log = Log(store)
    log.read()
    log.append(StartRecord(n=1, epoch=0, nonce="n", start_ts=TS, cluster_id=7, uid=changefeed.identity))
    log.claim_epoch(lambda before: epoch_record(changefeed, before, "n", 0))
    store.create("events/1-n/0/00000000000000000001.arrow", b"12345")


def _path(location: Location) -> Path:
    return Path(location.uri.removeprefix("file://"))


def _found(state: Location) -> dict[str, StateFolder]:
    return {each.folder: each for each in find(state, NOW_MS)}


def _say_alive(state: Location, ago_s: int, ended: bool = False) -> None:
    said = {"v": 1, "epoch": 1, "host": "h", "pid": 1, "pdMs": str(NOW_MS - ago_s * 1000), "ended": ended}
    (_path(state) / FOLDER / "alive.json").write_text(json.dumps(said))


def test_every_state_below_the_uri_is_found_and_looking_changes_nothing(state: Location) -> None:
    before = {path: path.stat().st_mtime_ns for path in _path(state).rglob("*.json")}
    found = _found(state)
    assert list(found) == ["_id/users-of-shop", FOLDER]
    orders = found[FOLDER]
    assert (orders.checkpoint_ts, orders.event_bytes, orders.is_left_over) == (TS, 5, True)
    assert {path: path.stat().st_mtime_ns for path in _path(state).rglob("*.json")} == before


async def test_closing_ends_the_log_the_hold_and_the_events(state: Location, pd: Pd) -> None:
    assert await close_left_over(state, FOLDER, None, NOW_MS) == ""
    assert pd.removed == ["changefeed-shop-orders-u-1"]
    found = _found(state)
    assert (found[FOLDER].is_closed, found[FOLDER].event_bytes, found[FOLDER].is_left_over) == (True, 0, False)
    assert found["_id/users-of-shop"].is_left_over, "only what was named"


@pytest.mark.parametrize(("ago_s", "ended", "driven"), [(10, False, True), (10, True, False), (400, False, False)])
async def test_one_whose_driver_says_that_it_is_alive_is_left_alone(
    state: Location, pd: Pd, ago_s: int, ended: bool, driven: bool
) -> None:
    _say_alive(state, ago_s, ended)
    assert _found(state)[FOLDER].is_driven is driven
    if driven:
        with pytest.raises(Conflict, match="live driver"):
            await close_left_over(state, FOLDER, None, NOW_MS)
        assert pd.removed == []


async def test_one_that_a_process_of_this_machine_holds_is_left_alone(state: Location) -> None:
    held = LocalStore(_path(state) / FOLDER)
    held.hold()
    try:
        assert _found(state)[FOLDER].is_driven
    finally:
        held.release()
    assert not _found(state)[FOLDER].is_driven


async def test_without_pd_all_but_the_hold_is_removed(state: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object) -> Pd:
        raise Unavailable("PD does not answer.", "Look at PD.")

    monkeypatch.setattr(undriven, "connect", away)
    assert "is not removed: PD does not answer." in await close_left_over(state, FOLDER, None, NOW_MS)
    assert (_found(state)[FOLDER].is_closed, _found(state)[FOLDER].event_bytes) == (True, 0)


async def test_a_copy_of_a_state_is_not_closed_since_that_would_end_the_original(state: Location, pd: Pd) -> None:
    copy = Location(f"{state.uri}-copy")
    _path(state).rename(_path(copy))
    with pytest.raises(NeedsHuman, match=f"keeps its state at {state.uri}/{FOLDER}"):
        await close_left_over(copy, FOLDER, None, NOW_MS)
    assert pd.removed == []


def test_the_command_lists_and_closes_what_is_named(
    state: Location, pd: Pd, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gc", "--state", state.uri]) == 0
    out = capsys.readouterr().out
    assert f"{FOLDER}    left over or paused" in out
    assert "2 of 2 are left over, or paused." in out
    assert main(["gc", "--state", state.uri, "--close", "shop/ord"]) == 2
    assert "no such left-over" in capsys.readouterr().err
    assert main(["gc", "--state", state.uri, "--close", "shop", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"closed": [{"folder": FOLDER, "closed": True, "note": ""}]}
    assert pd.removed == ["changefeed-shop-orders-u-1"]
