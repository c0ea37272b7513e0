"""The operator's page: what status says, what a driver adds, and plain words where it can't be asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from changefeed.kube.connection import Connection
from changefeed.spec.driver_status import DriverStatus, TableStatus
from changefeed.ui.drivers import Drivers
from changefeed.ui.view import ChangefeedView
from changefeed_operator import api
from changefeed_operator.actions import Decision
from changefeed_operator.loop import runtime
from changefeed_operator.loop.runtime import Operator, OperatorOptions
from changefeed_operator.page import ClusterChangefeeds
from changefeed_operator.settings import Settings
from operator_tiny_cluster import TinyCluster


def feed(name: str = "orders", state: str = "Normal") -> dict[str, Any]:
    metadata = {"namespace": "shop", "name": name, "generation": 1, "uid": f"uid-of-{name}"}
    status = {"state": state, "message": "It runs.", "checkpointTs": "470617531319320577"}
    return {"apiVersion": api.API_VERSION, "kind": "Changefeed", "metadata": metadata, "spec": {}, "status": status}


class Driver:
    """Answers `/status`."""

    def __init__(self) -> None:
        self.told = DriverStatus(namespace="shop", name="orders", at_ms=1, tables=(TableStatus(name="shop.t1"),))
        self.asked = 0

    async def answer(self, _: web.Request) -> web.Response:
        self.asked += 1
        return web.Response(text=self.told.model_dump_json(by_alias=True))


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
async def address(driver: Driver) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/status", driver.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def look(address: str, *feeds: dict[str, Any], name: str = "orders") -> ChangefeedView | None:
    async def listed() -> Iterable[dict[str, Any]]:
        return feeds

    drivers = Drivers()
    try:
        return await ClusterChangefeeds(listed, drivers, lambda namespace, name: address).changefeed("shop", name)
    finally:
        await drivers.close()


async def test_the_driver_adds_its_tables_to_what_status_says(driver: Driver, address: str) -> None:
    shown = await look(address, feed("bills"), feed())
    assert shown is not None
    assert (shown.message, [table.name for table in shown.tables], shown.notes) == ("It runs.", ["shop.t1"], ())


@pytest.mark.parametrize("state", ["Stopped", "Failed", "Finished"])
async def test_a_changefeed_without_a_driver_asks_nobody_and_says_so(driver: Driver, address: str, state: str) -> None:
    shown = await look(address, feed(state=state))
    assert shown is not None
    assert shown.notes[0].startswith("No driver is running")
    assert (driver.asked, shown.tables) == (0, ())


async def test_a_driver_that_can_t_be_reached_is_said_to_be_with_what_to_look_at() -> None:
    shown = await look("127.0.0.1:1", feed())
    assert shown is not None
    assert "No driver answers at 127.0.0.1:1" in shown.notes[0]
    assert "NetworkPolicy" in shown.notes[0]
    assert (shown.state, shown.message) == ("Normal", "It runs.")


async def test_another_changefeeds_driver_is_not_believed(driver: Driver, address: str) -> None:
    driver.told = driver.told.model_copy(update={"name": "bills"})
    shown = await look(address, feed())
    assert shown is not None
    assert "Another changefeed's driver" in shown.notes[0]
    assert shown.tables == ()


async def test_what_does_not_exist_is_not_shown(address: str) -> None:
    assert await look(address, feed(), name="bills") is None


async def test_the_operator_serves_its_page_when_it_is_told_to_whether_it_leads_or_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "decide", lambda observed, settings: Decision())
    cluster = TinyCluster()
    await cluster.start()
    cluster.put(api.CHANGEFEED, feed("<b>bold</b>", "Stopped"))

    async def shown(operator: Operator) -> None:
        """The list of changefeeds comes by a watch: it can be empty at first."""
        async with asyncio.timeout(20.0):
            while not operator.web_port:  # noqa: ASYNC110 - no event tells it
                await asyncio.sleep(0.005)
            text = ""
            while "shop/&lt;b&gt;bold&lt;/b&gt;" not in text:
                url = f"http://127.0.0.1:{operator.web_port}/"
                async with aiohttp.ClientSession() as session, session.get(url) as answer:
                    assert answer.status == 200
                    text = await answer.text()

    def made(web_address: tuple[str, int] | None) -> Operator:
        options = OperatorOptions(Settings("image"), "ops", metrics_port=0, web=web_address)
        return Operator(Connection(cluster.url), options, lambda code: None)

    leads, waits, without = made(("127.0.0.1", 0)), made(("127.0.0.1", 0)), made(None)
    tasks = [asyncio.create_task(leads.run())]
    try:
        await shown(leads)
        assert leads.leads
        tasks += [asyncio.create_task(each.run()) for each in (waits, without)]
        await shown(waits)
        assert not waits.leads
        assert without.web_port == 0
    finally:
        for operator in (waits, without, leads):
            operator.stop()
        assert await asyncio.wait_for(asyncio.gather(*tasks), 20.0) == [0] * len(tasks)
        await cluster.stop()
