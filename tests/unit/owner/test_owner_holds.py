"""Holds on a cluster's history that nobody needs: `changefeed gc` finds and removes them, with a log or without."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from changefeed.cli.main import main
from changefeed.errors import Unavailable
from changefeed.log.log import LOG, Log
from changefeed.log.records import StartRecord
from changefeed.objectstore.local import LocalStore
from changefeed.owner import locations
from changefeed.owner.closing import holds as holds_module
from changefeed.owner.closing import undriven
from changefeed.owner.preparation.records import epoch_record
from changefeed.spec.parse import parse
from changefeed.upstream.contract import Hold
from changefeed.upstream.tikv.cluster import TikvCluster
from changefeed_devcluster.certificates import Certificates
from changefeed_devcluster.server import DevCluster

HOUR = 3600
TS = 450_000_000_000_000_000
DONE, FAILED, BAD_INPUT = 0, 1, 2


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of Secrets at the same time."""
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def cluster(certificates: Path) -> Iterator[DevCluster]:
    with DevCluster(stores=1, certificates=Certificates(certificates, ["127.0.0.1"])) as cluster:
        yield cluster


class World:
    """A state URI, and a cluster with TLS whose PD keeps holds."""

    def __init__(self, folder: Path, cluster: DevCluster, certificates: Path) -> None:
        self.folder = folder
        self.cluster = cluster
        self.certificates = certificates
        self.secrets = ["--secrets-dir", str(certificates)]
        for hold in self.holds():
            cluster.safepoints.remove(hold.encode())

    @property
    def uri(self) -> str:
        return (self.folder / "state").as_uri()

    def file(self, name: str) -> Path:
        spec = {
            "upstream": {
                "pdAddresses": [f"https://{self.cluster.pd_address}"],
                "tls": {"secretRef": {"name": "client"}},
            },
            "startTs": str(TS),
            "state": {"uri": self.uri},
            "sink": {"storage": {"uri": (self.folder / "lake").as_uri(), "protocol": "csv"}},
        }
        head = {"apiVersion": "changefeed.dev/v1alpha1", "kind": "Changefeed"}
        metadata = {"name": name, "namespace": "shop", "uid": "u-1"}
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps({**head, "metadata": metadata, "spec": spec}))
        return path

    def ran(self, name: str) -> Path:
        """One that has a log and a hold; the folder of its log."""
        changefeed = parse(self.file(name).read_text())
        folder = Path(locations.state_location(changefeed).uri.removeprefix("file://"))
        log = Log(LocalStore(folder))
        log.read()
        cluster_id = self.cluster.cluster_id
        log.append(StartRecord(n=1, epoch=0, nonce="n", start_ts=TS, cluster_id=cluster_id, uid=changefeed.identity))
        log.claim_epoch(lambda before: epoch_record(changefeed, before, "n", 0))
        self.hold(locations.service_id(changefeed))
        return folder / LOG

    def hold(self, name: str, seconds: int = HOUR) -> None:
        self.cluster.safepoints.update(name.encode(), seconds, TS - 1, int(time.time()))

    def holds(self) -> list[str]:
        living = self.cluster.safepoints.living(int(time.time()))
        return [each.service_id.decode() for each in living if each.service_id != b"gc_worker"]

    def gc(self, *arguments: str) -> int:
        return main(["gc", "--state", self.uri, *arguments])


@pytest.fixture
def world(tmp_path: Path, cluster: DevCluster, certificates: Path) -> World:
    return World(tmp_path, cluster, certificates)


@pytest.fixture
def quick_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holds_module, "WATCH_S", 0.02)
    monkeypatch.setattr(holds_module, "LOOK_S", 0.01)


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_close_that_pd_would_refuse_changes_nothing(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The arguments, the Secret and the access are proved before the log is closed for good."""
    log = world.ran("orders")
    before = everything_in(log)
    Certificates(tmp_path / "another", ["127.0.0.1"])
    foreign = Path(shutil.copytree(world.certificates / "client", tmp_path / "secrets" / "client"))
    for name in ("tls.crt", "tls.key"):
        shutil.copy(tmp_path / "another" / "client" / name, foreign)
    for secrets, code, said in (
        ([], BAD_INPUT, "--secrets-dir: missing; spec.upstream.tls names Secret client"),
        (["--secrets-dir", str(tmp_path)], FAILED, "ca.crt can't be read"),
        (["--secrets-dir", str(foreign.parent)], FAILED, "does not accept the client certificate of Secret client"),
    ):
        assert world.gc("--close", "shop/orders", *secrets) == code
        assert said in capsys.readouterr().err
        assert everything_in(log) == before
        assert world.holds() == ["changefeed-shop-orders-u-1"]
    assert world.gc("--close", "shop/orders", *world.secrets) == DONE
    assert everything_in(log) != before
    assert world.holds() == []
    assert world.gc("--close", "shop/orders", *world.secrets) == BAD_INPUT, "nothing of it is left"


def test_a_closed_folder_is_named_and_closable_until_its_hold_is_gone(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world.ran("orders")

    async def away(*_: object) -> object:
        raise Unavailable("PD does not answer.", "Look at PD.")

    with monkeypatch.context() as patch:
        patch.setattr(undriven, "connect", away)
        assert world.gc("--close", "shop", *world.secrets) == DONE
        assert "its hold on the upstream's history is not removed: PD does not answer." in capsys.readouterr().out
    assert world.holds() == ["changefeed-shop-orders-u-1"]
    assert world.gc(*world.secrets) == DONE
    listed = capsys.readouterr().out
    assert "shop/orders/u-1  closed, with a hold" in listed
    assert "1 of 1 are left over" in listed
    # Without the Secret nobody knows whether it holds anything: then it may be closed again, and PD says no.
    assert world.gc() == DONE
    assert "not known: --secrets-dir: missing" in capsys.readouterr().out
    assert world.gc("--close", "shop/orders") == BAD_INPUT
    assert "--secrets-dir: missing" in capsys.readouterr().err
    assert world.gc("--close", "shop/orders", *world.secrets) == DONE
    assert world.holds() == []
    assert world.gc("--json", *world.secrets) == DONE
    (folder,) = json.loads(capsys.readouterr().out.splitlines()[-1])["folders"]
    assert (folder["closed"], folder["hold"], folder["left_over"]) == (True, None, False)


def test_a_folder_with_a_live_driver_says_so(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    log = world.ran("orders")
    held = LocalStore(log.parent)
    held.hold()
    try:
        assert world.gc("--close", "shop/orders", *world.secrets) == FAILED
        assert "shop/orders/u-1: a live driver runs it" in capsys.readouterr().err
        world.ran("users")
        assert world.gc("--close", "shop", *world.secrets) == DONE
        said = capsys.readouterr().out
        assert "shop/users/u-1 is closed" in said
        assert "Left alone, because a live driver runs it: shop/orders/u-1" in said
    finally:
        held.release()
    assert world.holds() == ["changefeed-shop-orders-u-1"]


def test_a_pd_that_lists_no_holds_is_named_and_keeps_nothing_from_being_closed(
    tmp_path: Path, certificates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of up to 8.5, and nothing answers its HTTP requests."""
    with DevCluster(stores=1, certificates=Certificates(certificates, ["127.0.0.1"]), gc_barriers=False) as older:
        world = World(tmp_path, older, certificates)
        world.ran("orders")
        assert world.gc(*world.secrets) == DONE
        assert f"The holds at https://{older.pd_address} are not known: PD at" in capsys.readouterr().out
        assert world.gc("--release", "changefeed-shop-a-b", *world.secrets) == BAD_INPUT
        assert "does not list the holds" in capsys.readouterr().err
        for _ in range(2):  # who can't know that the hold is gone may close it again
            assert world.gc("--close", "shop", *world.secrets) == DONE
        assert world.holds() == []


@pytest.mark.usefixtures("quick_watch")
def test_a_hold_of_one_that_never_started_is_found_and_released(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["-f", str(world.file("orders")), *world.secrets]
    assert main(["hold", *asked]) == DONE
    assert world.holds() == ["changefeed-shop-orders-u-1"]
    world.ran("users")
    others = ["changefeed-spark-0123456789abcdef", "changefeed-verify-0123456789ab", "ticdc-default"]
    for name in others:
        world.hold(name)
    capsys.readouterr()
    assert world.gc("--json", *asked) == DONE
    found = json.loads(capsys.readouterr().out)
    assert [(each["name"], each["ts"]) for each in found["holds"]] == [("changefeed-shop-orders-u-1", str(TS))]
    assert [each["folder"] for each in found["folders"]] == ["shop/users/u-1"]
    assert world.gc(*asked) == DONE
    assert "changefeed gc --release HOLD" in capsys.readouterr().out
    for name in ("changefeed-shop", "changefeed-shop-users-u-1", others[0]):
        assert world.gc("--release", name, *asked) == BAD_INPUT
        assert f"{name}: no such hold without a log" in capsys.readouterr().err
    assert world.gc("--release", "changefeed-shop-orders-u-1", *asked) == DONE
    assert world.holds() == sorted([*others, "changefeed-shop-users-u-1"])


@pytest.mark.usefixtures("quick_watch")
@pytest.mark.parametrize("renewed", ["its expiry", "its ts"])
def test_a_hold_that_somebody_renews_is_never_released(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], renewed: str
) -> None:
    """It is of a changefeed whose state is elsewhere."""
    name = "changefeed-shop-elsewhere-u-2"
    world.hold(name)
    look, looks = TikvCluster.holds, 0

    async def renewed_meanwhile(upstream: TikvCluster) -> list[Hold]:
        nonlocal looks
        looks += 1
        if looks == 3:  # the list of all, one look without a change, then
            seconds, ts = (HOUR + 60, TS) if renewed == "its expiry" else (HOUR, TS + 1)
            world.cluster.safepoints.update(name.encode(), seconds, ts - 1, int(time.time()))
        return await look(upstream)

    monkeypatch.setattr(TikvCluster, "holds", renewed_meanwhile)
    assert world.gc("--release", name, "-f", str(world.file("orders")), *world.secrets) == FAILED
    assert f"{name} is in use" in capsys.readouterr().err
    assert world.holds() == [name]


@pytest.mark.parametrize(
    ("folder", "hold"),
    [
        ("shop/orders/u-1", "changefeed-shop-orders-u-1"),
        ("team/a/shop/or-ders/0f-1", "changefeed-shop-or-ders-0f-1"),
        ("_id/users-of-shop", "changefeed-_id-users-of-shop-0123abcd"),
    ],
)
def test_a_folder_tells_the_name_of_its_hold(folder: str, hold: str) -> None:
    assert locations.folder_stem(folder) == locations.hold_stem(hold)
