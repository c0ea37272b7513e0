"""The server of the pages, and the one that asks drivers, over real connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web
from changefeed.errors import InvalidSpec, NeedsHuman, Unavailable
from changefeed.ui import drivers
from changefeed.ui.drivers import Drivers, DriverSilence
from changefeed.ui.server import parse_address, serve
from changefeed.ui.view import ChangefeedView, Overview, of_driver, overview
from ui_page import status


class Known:
    where = "in a test"

    async def overview(self) -> Overview:
        return overview([of_driver(status())])

    async def changefeed(self, namespace: str, name: str) -> ChangefeedView | None:
        if name == "away":
            raise Unavailable("The API server is <away>.", "Look at it.")
        return of_driver(status()) if (namespace, name) == ("shop", "orders") else None


@pytest.fixture
async def url() -> AsyncIterator[str]:
    runner, port = await serve(Known(), ("127.0.0.1", 0), "--address")
    yield f"http://127.0.0.1:{port}"
    await runner.cleanup()


async def _ask(method: str, url: str, **headers: str) -> tuple[int, str, dict[str, str]]:
    async with aiohttp.ClientSession() as session, session.request(method, url, headers=headers) as answer:
        return answer.status, await answer.text(), dict(answer.headers)


@pytest.mark.parametrize(
    ("path", "code", "says"),
    [
        ("/", 200, "shop/orders"),
        ("/changefeeds/shop/orders", 200, "Lag by stage"),
        ("/changefeeds/shop/none", 404, "There is no changefeed shop/none."),
        ("/changefeeds/shop/%3Cscript%3E", 404, "shop/&lt;script&gt;"),
        ("/changefeeds/shop/away", 503, "The API server is &lt;away&gt;."),
        ("/assets/style.css", 200, "prefers-color-scheme: dark"),
        ("/assets/refresh.js", 200, "fetch(location.href"),
        ("/assets/icon.svg", 200, "<svg"),
        ("/assets/..%2Fserver.py", 404, ""),
        ("/assets/pages.py", 404, ""),
        ("/metrics", 404, ""),
    ],
)
async def test_each_path_answers_and_lets_nothing_else_run(url: str, path: str, code: int, says: str) -> None:
    found, body, headers = await _ask("GET", url + path)
    assert found == code
    assert says in body
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_nothing_can_be_written(url: str, method: str) -> None:
    assert (await _ask(method, f"{url}/changefeeds/shop/orders"))[0] == 405


async def test_another_sites_name_for_this_machine_shows_nothing(url: str) -> None:
    code, body, _ = await _ask("GET", url, Host="evil.example:9465")
    assert code == 421
    assert "shop" not in body
    assert (await _ask("GET", url, Host="localhost:1"))[0] == 200


async def test_a_taken_port_says_what_to_do(url: str) -> None:
    port = int(url.rpartition(":")[2])
    with pytest.raises(NeedsHuman, match=rf"127\.0\.0\.1:{port}.*--web-address"):
        await serve(Known(), ("127.0.0.1", port), "--web-address")


async def test_without_a_host_every_address_is_served() -> None:
    runner, port = await serve(Known(), ("", 0), "--web-address")
    assert (await _ask("GET", f"http://127.0.0.1:{port}/", Host="page.example"))[0] == 200
    await runner.cleanup()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        (":8081", ("", 8081)),
        ("[::1]:0", ("::1", 0)),
        ("pd.example:1", ("pd.example", 1)),
    ],
)
def test_an_address_is_host_and_port(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text, "--address") == address


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x", "host:70000", "http://h:1", "u@h:1", "h:1/x", "h:1?x"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpec, match="--address"):
        parse_address(text, "--address")


@pytest.fixture
async def answering() -> AsyncIterator[
    Callable[[Callable[[web.Request], Awaitable[web.StreamResponse]]], Awaitable[str]]
]:
    """Serves `/status` as a test says; gives host and port."""
    runners: list[web.AppRunner] = []

    async def start(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> str:
        app = web.Application()
        app.router.add_get("/status", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        runners.append(runner)
        return f"127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
async def asking() -> AsyncIterator[Drivers]:
    made = Drivers()
    yield made
    await made.close()


async def test_a_driver_is_asked(answering: Callable[..., Awaitable[str]], asking: Drivers) -> None:
    told = status(1_000)

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=told.model_dump_json(by_alias=True))

    assert await asking.ask(await answering(answer)) == told


@pytest.mark.parametrize(
    ("code", "body", "why"),
    [
        (200, "{}", "not a driver"),
        (200, "changefeed_owner_plans_total 1", "not a driver"),
        (200, json.dumps({"namespace": "a", "name": "b", "lags": [{"atMs": 1}] * 10_000}), "not a driver"),
        (200, status().model_dump_json(by_alias=True) + " " * (5 << 20), "not a driver"),
        (404, "", "HTTP 404"),
        (503, "The driver ends.", "HTTP 503"),
        (302, "", "HTTP 302"),
    ],
)
async def test_what_is_no_driver_is_told_by_its_address(
    answering: Callable[..., Awaitable[str]], asking: Drivers, code: int, body: str, why: str
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=code, text=body, headers={"Location": "/status"} if code == 302 else {})

    address = await answering(answer)
    found = await asking.ask(address)
    assert isinstance(found, DriverSilence)
    assert why in found.why
    assert address in found.why


async def test_a_driver_that_is_silent_is_not_waited_for(
    answering: Callable[..., Awaitable[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivers, "TIMEOUT_S", 0.1)
    asking = Drivers()

    async def answer(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    found = await asking.ask(await answering(answer))
    await asking.close()
    assert isinstance(found, DriverSilence)
    assert found.why.startswith("No driver answers at 127.0.0.1:")
