"""What the driver's `/healthz` says: its event loop turns, Spark's JVM answers."""

from __future__ import annotations

import asyncio
import threading
import time
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from changefeed.metrics import Registry
from changefeed.owner.serving import http_server
from changefeed.owner.serving.http_server import Health, served

DEADLINE_S = 10.0


async def test_a_loop_that_stands_still_is_ill_until_it_turns_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "SILENT_S", 0.2)
    monkeypatch.setattr(http_server, "TURN_EVERY_S", 0.01)
    watched = Health(lambda: 0.0)
    found: list[str] = []
    seen = threading.Event()

    def probe() -> None:
        while not (why := watched.ill()):
            time.sleep(0.01)
        found.append(why)
        seen.set()

    prober = threading.Thread(target=probe, daemon=True)
    prober.start()
    seen.wait(DEADLINE_S)  # on the loop, which stands still
    assert found[0].startswith("The driver's event loop has stood still")
    async with asyncio.timeout(DEADLINE_S):
        while watched.ill():  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0.01)
    watched.close()


async def test_a_jvm_that_does_not_answer_makes_the_probe_fail_and_metrics_go_on() -> None:
    silent_s = 0.0
    watched = Health(lambda: silent_s)

    def ask(port: int, path: str) -> tuple[int, bytes]:
        try:
            with urlopen(f"http://127.0.0.1:{port}{path}", timeout=5.0) as answer:
                return answer.status, answer.read()
        except HTTPError as error:
            with error:
                return error.code, error.read()

    with served(Registry("a", "b"), 0, ill=watched.ill) as port:
        assert await asyncio.to_thread(ask, port, "/healthz") == (200, b"ok\n")
        silent_s = 16.0
        assert await asyncio.to_thread(ask, port, "/healthz") == (503, b"Spark's JVM has not answered for 16 s.\n")
        assert (await asyncio.to_thread(ask, port, "/metrics"))[0] == 200
    watched.close()
