"""`changefeed ui`: the web page for changefeeds on this machine, from running drivers and from logs."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from changefeed.cli.arguments import AsJson
from changefeed.cli.config_file import read
from changefeed.cli.output import write_json, write_text
from changefeed.errors import InvalidSpec

if TYPE_CHECKING:
    from changefeed.cli.recorded import Logs
    from changefeed.ui.drivers import Drivers
    from changefeed.ui.view import ChangefeedView, Overview

_DRIVER = "127.0.0.1:9464"  # where `changefeed run` answers unless it is told otherwise
_START = "Start one with changefeed run, or name it with --driver; -f and --state show what logs tell."


def ui(
    *,
    driver: Annotated[list[str] | None, Parameter(negative="")] = None,
    file: Annotated[list[Path] | None, Parameter(name=["--file", "-f"], negative="")] = None,
    state: Annotated[list[str] | None, Parameter(negative="")] = None,
    address: str = "127.0.0.1:9465",
    secrets_dir: Path | None = None,
    secret: str | None = None,
    as_json: AsJson = False,
) -> None:
    """Show changefeeds in a browser: lag by stage, tables, open transactions, the last error. Read-only.

    Anyone who can reach the address can see the page: it has no login.

    Parameters
    ----------
    driver
        HOST:PORT of a running driver's metrics. Default: 127.0.0.1:9464. May be repeated.
    file
        A Changefeed as YAML: show what its log says, running or not. May be repeated.
    state
        A state URI: show what the logs below it say. May be repeated.
    address
        HOST:PORT to serve the page on; port 0 picks a free one.
    secrets_dir
        Folder of Secrets: DIR/<secretRef.name>/<key>. Without it, credentials come from the environment.
    secret
        The Secret in --secrets-dir for the --state URIs.
    """
    from changefeed.cli.recorded import Logs
    from changefeed.objectstore import Location
    from changefeed.objectstore.open import canonical
    from changefeed.owner.locations import state_location
    from changefeed.ui.server import parse_address

    if secret is not None and secrets_dir is None:
        raise InvalidSpec("--secret", f"{secret}; allowed: together with --secrets-dir DIR")
    opened = secrets_dir / secret if secrets_dir and secret else None
    folders = [state_location(read(each), secrets_dir) for each in file or ()]
    roots = [Location(canonical(each, "--state"), opened) for each in state or ()]
    at = parse_address(address, "--address")
    drivers = driver or [_DRIVER]
    for each in drivers:
        parse_address(each, "--driver")
    asyncio.run(_serve(Logs(folders, roots), drivers, at, as_json))


async def _serve(logs: Logs, drivers: list[str], address: tuple[str, int], as_json: bool) -> None:
    from changefeed.ui.drivers import Drivers
    from changefeed.ui.server import serve

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        threading.Thread(target=logs.keep_looking, daemon=True).start()
        asking = Drivers()
        stack.push_async_callback(asking.close)
        server, port = await serve(LaptopChangefeeds(logs, drivers, asking), address, "--address")
        stack.push_async_callback(server.cleanup)
        host = address[0] or "127.0.0.1"
        url = f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
        write_json({"url": url}) if as_json else write_text(f"{url}\nPress Ctrl-C to stop.")
        sys.stdout.flush()
        await stop.wait()


class LaptopChangefeeds:
    """Knows what running drivers tell and what logs tell, and what drivers told before they fell silent."""

    where = "on this machine"

    def __init__(self, logs: Logs, drivers: list[str], asking: Drivers) -> None:
        self._logs = logs
        self._drivers = drivers
        self._asking = asking
        self._told: dict[str, ChangefeedView] = {}  # by driver's address: what it said last

    async def overview(self) -> Overview:
        from changefeed.ui.view import overview

        found, notes = await self._look()
        return overview(found.values(), notes)

    async def changefeed(self, namespace: str, name: str) -> ChangefeedView | None:
        found, _ = await self._look()
        return found.get((namespace, name))

    async def _look(self) -> tuple[dict[tuple[str, str], ChangefeedView], list[str]]:
        from changefeed.ui.drivers import DriverSilence
        from changefeed.ui.view import of_driver, unanswered

        answers = await asyncio.gather(*map(self._asking.ask, self._drivers))
        recorded, notes = self._logs.known
        found = {(one.namespace, one.name): one for one in recorded}
        notes = list(notes)
        for address, answer in zip(self._drivers, answers, strict=True):
            told = self._told.get(address)
            if not isinstance(answer, DriverSilence):
                told = self._told[address] = of_driver(answer)
                found[told.namespace, told.name] = told
            elif told is None:
                notes.append(answer.why if recorded else f"{answer.why} {_START}")
            else:
                key = (told.namespace, told.name)
                silent = unanswered(told, answer.why, int(time.time() * 1000))
                found[key] = _with_log(silent, found.get(key))
        return found, notes


def _with_log(silent: ChangefeedView, recorded: ChangefeedView | None) -> ChangefeedView:
    """The log knows better how far it has got, and whether it has ended."""
    if recorded is None or recorded.checkpoint_ts < silent.checkpoint_ts:
        return silent
    word = recorded.state if recorded.state in ("Finished", "Closed") else silent.state
    return replace(silent, state=word, checkpoint_ts=recorded.checkpoint_ts)
