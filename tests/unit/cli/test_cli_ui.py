"""`changefeed ui`: what drivers tell, what logs tell, and what drivers told before they fell silent."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from changefeed.cli.main import main
from changefeed.cli.recorded import Logs
from changefeed.cli.ui import LaptopChangefeeds
from changefeed.log.log import Log
from changefeed.log.records import EpochRecord, StartRecord
from changefeed.model.tso import compose
from changefeed.objectstore import Location
from changefeed.objectstore.open import open_store
from changefeed.spec.driver_status import DriverStatus
from changefeed.ui.drivers import DriverSilence
from changefeed.ui.view import ChangefeedView, ms_of

NOW_MS = 1_795_802_400_000


class Asked:
    """In the place of `Drivers`: what each address answers now."""

    def __init__(self, **answers: DriverStatus | DriverSilence) -> None:
        self.answers = answers

    async def ask(self, address: str) -> DriverStatus | DriverSilence:
        return self.answers[address]


def driver(name: str = "orders", **changes: Any) -> DriverStatus:
    return DriverStatus(
        namespace="shop", name=name, state="Normal", at_ms=NOW_MS, checkpoint_ts=compose(NOW_MS - 2_000), **changes
    )


def write_log(folder: Path, name: str = "orders") -> None:
    """Record 1 and an epoch: a changefeed that has started."""
    folder.mkdir(parents=True)
    log = Log(open_store(folder.as_uri()))
    log.append(StartRecord(n=1, epoch=0, nonce="a", start_ts=compose(NOW_MS - 9_000), cluster_id=7, uid="local"))
    config = {
        "metadata": {"namespace": "shop", "name": name, "uid": "local"},
        "spec": {"upstream": {"pdAddresses": ["http://pd:2379"]}, "sink": {"storage": {"uri": "s3://lake/orders"}}},
    }
    log.append(EpochRecord(n=2, epoch=1, nonce="b", attempt=0, host="h", pid=1, config=config, versions={}))


def laptop(logs: Logs, asked: Asked) -> LaptopChangefeeds:
    fake: Any = asked
    return LaptopChangefeeds(logs, list(asked.answers), fake)


async def test_a_driver_is_shown_and_what_it_said_stays_when_it_falls_silent() -> None:
    asked = Asked(a=driver())
    page = laptop(Logs([], []), asked)
    (shown,) = (await page.overview()).changefeeds
    assert (shown.state, shown.lag) == ("Normal", 2.0)
    asked.answers["a"] = DriverSilence("No driver answers at a.")
    (shown,) = (await page.overview()).changefeeds
    assert (shown.state, shown.checkpoint_ts) == ("Not answering", compose(NOW_MS - 2_000))
    assert shown.notes == ("No driver answers at a. The page shows the driver's last report.",)
    asked.answers["a"] = driver()
    shown_again = await page.changefeed("shop", "orders")
    assert shown_again is not None
    assert shown_again.state == "Normal"


async def test_without_a_driver_the_next_step_is_said() -> None:
    found = await laptop(Logs([], []), Asked(a=DriverSilence("No driver answers at a."))).overview()
    assert found.changefeeds == ()
    assert found.notes[0].startswith("No driver answers at a. Start one with changefeed run")


async def test_logs_are_shown_until_a_driver_tells_more(tmp_path: Path) -> None:
    write_log(tmp_path / "shop" / "orders" / "local")
    write_log(tmp_path / "shop" / "bills" / "local", "bills")
    asked = Asked(a=DriverSilence("No driver answers at a."))
    logs = Logs([], [Location(tmp_path.as_uri())])
    page = laptop(logs, asked)
    assert (await page.overview()).notes[0] == "The logs are being read."
    logs.look()
    found = await page.overview()
    assert {one.name: one.state for one in found.changefeeds} == {"orders": "Not running", "bills": "Not running"}
    assert found.notes == ("No driver answers at a.",)
    asked.answers["a"] = driver()
    found = await page.overview()
    assert {one.name: one.state for one in found.changefeeds} == {"orders": "Normal", "bills": "Not running"}


def looked_at(logs: Logs) -> tuple[list[ChangefeedView], list[str]]:
    logs.look()
    return logs.known


def test_a_log_says_how_far_it_has_got(tmp_path: Path) -> None:
    write_log(tmp_path / "log-of-one")
    known, problems = looked_at(Logs([Location((tmp_path / "log-of-one").as_uri())], []))
    assert problems == []
    (one,) = known
    assert (one.namespace, one.name, ms_of(one.checkpoint_ts)) == ("shop", "orders", NOW_MS - 9_000)
    assert dict(one.facts)["Sink"] == "storage s3://lake/orders"
    (same,), _ = looked_at(Logs([], [Location((tmp_path / "log-of-one").as_uri())]))
    assert same.name == "orders"


def test_what_is_no_log_is_said(tmp_path: Path) -> None:
    known, problems = looked_at(Logs([Location((tmp_path / "nothing").as_uri())], []))
    assert known == []
    assert "has not run" in problems[0]
    assert str(tmp_path) in problems[0]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--address", "nowhere"], "--address"),
        (["--driver", "http://h:1"], "--driver"),
        (["--secret", "s"], "--secrets-dir"),
        (["--file", "no-such-file.yaml"], "--file"),
        (["--state", "ftp://x"], "--state"),
    ],
)
def test_bad_arguments_are_named(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", *arguments, "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert named in error["message"] + error["next"]


def test_it_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    write_log(tmp_path / "a")
    command = [
        Path(sys.executable).parent / "changefeed",
        "ui",
        "--state",
        tmp_path.as_uri(),
        "--driver",
        "127.0.0.1:1",
    ]
    process = subprocess.Popen([*command, "--address", "127.0.0.1:0", "--json"], stdout=subprocess.PIPE, text=True)
    watchdog = threading.Timer(60.0, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        page = ""
        while "shop/orders" not in page:
            with urlopen(url, timeout=10.0) as answer:
                page = answer.read().decode()
        assert "No driver answers at 127.0.0.1:1" in page
        process.send_signal(signal.SIGINT)
        assert process.wait(30.0) == 0
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()
