"""`changefeed ui` beside a running changefeed, in a real browser. CHANGEFEED_EVIDENCE=docs/ui.png takes its picture."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from changefeed_devcluster import keys
from changefeed_devcluster.tidb.schema import NewColumn
from changefeed_devcluster.workload.bank import Bank
from conftest import BIN, Changefeed, Upstream, free_port
from integration_browser import Browser, browser

START_S = 60.0
NASTY = "<img src=x onerror=alert(1)>"
TRANSACTIONS = "section[aria-labelledby=transactions] tbody th"
TABLES = "section[aria-labelledby=tables] tbody th"
CHECKPOINT = ".figures code"


@contextmanager
def working(bank: Bank) -> Iterator[None]:
    stop = threading.Event()
    bank.load(stop)
    writer = threading.Thread(target=bank.run, args=(stop, 300.0))
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


@contextmanager
def page(*arguments: str) -> Iterator[str]:
    """Its URL."""
    command = [BIN / "changefeed", "ui", "--address", "127.0.0.1:0", "--json", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


def _seconds(said: str) -> float:
    units = {"s": 1.0, "min": 60.0, "h": 3600.0}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+) (s|min|h)\b", said))


def _lag(seen: Browser) -> float:
    return _seconds((seen.texts("#lag") or [""])[0])


def test_a_person_sees_the_changefeed_live(upstream: Upstream, new_changefeed: Callable[..., Changefeed]) -> None:
    bank = Bank(upstream.tidb, tables=4, regions=4, accounts=100)
    bank.create()
    changefeed = new_changefeed(["bank.*"])
    changefeed.spec["startTs"] = str(upstream.tidb.now())
    changefeed.metrics_port = free_port()
    changefeed.start()
    address = f"127.0.0.1:{changefeed.metrics_port}"
    with working(bank), page("--driver", address, "-f", str(changefeed.file)) as url, browser() as seen:
        seen.chrome.get(url)
        seen.until(lambda: "default/test" in " ".join(seen.texts("tbody a")), "the changefeed is listed", START_S)
        seen.chrome.get(f"{url}changefeeds/default/test")
        seen.until(lambda: seen.texts("h1") == ["default/test Normal"], "it runs", START_S)
        _follows_it_live(seen)
        _shows_who_holds_it_back(seen, upstream, bank)
        _shows_names_as_they_are(seen, upstream)
        _suits_the_reader(seen, f"{url}changefeeds/default/test")
        assert seen.complaints() == []
        changefeed.kill()
        seen.until(lambda: seen.texts("h1") == ["default/test Not answering"], "the driver is gone")
        assert f"No driver answers at {address}" in " ".join(seen.texts(".note"))


def _follows_it_live(seen: Browser) -> None:
    """Without the page being loaded anew."""
    seen.run("window.same = true")
    before = seen.texts(CHECKPOINT)
    columns = len(seen.texts(".chart .hit"))
    seen.until(lambda: seen.texts(CHECKPOINT) not in ([], before), "the checkpoint moves on")
    seen.until(lambda: len(seen.texts(".chart .hit")) > columns, "the chart goes on")
    assert seen.run("return window.same") is True
    assert 0 < _lag(seen) < START_S
    assert sorted(seen.texts(TABLES)) == [f"bank.accounts_{number}" for number in range(4)]


def _shows_who_holds_it_back(seen: Browser, upstream: Upstream, bank: Bank) -> None:
    start_ts = upstream.cluster.lock(keys.record_key(bank.tables[0].id, 1))
    seen.until(lambda: seen.texts(TRANSACTIONS) == ["bank.accounts_0"], "the open transaction is shown")
    assert str(start_ts) in seen.texts("section[aria-labelledby=transactions] code")
    seen.until(lambda: _lag(seen) > 5, "the lag grows meanwhile")
    pulling = next(each for each in seen.texts(".legend li") if each.startswith("upstream and pullers"))
    assert _seconds(pulling) > _lag(seen) / 2, "it is pulling that is late"
    if picture := os.environ.get("CHANGEFEED_EVIDENCE"):
        seen.chrome.save_screenshot(picture)
    upstream.cluster.heal()
    seen.until(lambda: not seen.texts(TRANSACTIONS), "the transaction has ended")
    seen.until(lambda: 0 < _lag(seen) < 8, "it has caught up")


def _shows_names_as_they_are(seen: Browser, upstream: Upstream) -> None:
    upstream.tidb.create_table("bank", NASTY, (NewColumn("id", "bigint"),))
    seen.until(lambda: f"bank.{NASTY}" in seen.texts(TABLES), "the new table is shown")
    assert seen.run("return document.images.length") == 0


def _suits_the_reader(seen: Browser, url: str) -> None:
    """Dark, narrow, and without scripts."""
    colour = "return getComputedStyle(document.body).backgroundColor"
    light = seen.run(colour)
    seen.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert seen.run(colour) != light
    seen.chrome.set_window_size(500, 900)
    assert seen.run("return document.documentElement.scrollWidth <= innerWidth")
    seen.command("Emulation.setScriptExecutionDisabled", value=True)
    seen.chrome.get(url)
    assert seen.texts("h1") == ["default/test Normal"]
    seen.command("Emulation.setScriptExecutionDisabled", value=False)
    seen.chrome.get(url)
