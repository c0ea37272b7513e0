"""Kills and freezes the processes of a changefeed, and stands where its service manager would."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import psutil
from conftest import Changefeed, free_port, wait_for
from integration_victims import Source, Victims

PASSED_S = 240.0  # after a kill, on a busy machine
PROBE_TIMEOUT_S = 2.0
PROBE_FAILURES = 3  # in a row
WOKEN_AFTER_S = 21.0  # longer than anybody takes to notice

#: What a process is (killed, frozen) and its run's exit code (docs/running.md); None: it goes on.
EXIT_CODES: dict[str, int | None] = {
    "driver killed": -9,
    "driver frozen": -9,  # by the service manager, whose probes fail
    "driver woken": None,
    "group killed": -9,  # the driver and all that it has started
    "jvm killed": 69,
    "jvm frozen": 69,
    "puller killed": None,
    "puller frozen": None,
    "worker killed": None,
    "worker frozen": None,
}


class Killer:
    """Does harm, one event after the other, and sees to it that the run goes on after each."""

    def __init__(
        self,
        upstream: Source,
        changefeed: Changefeed,
        pullers: int,
        say: Callable[[str], None],
        downstream_port: int | None = None,
    ) -> None:
        self._upstream = upstream
        self._changefeed = changefeed
        self._victims = Victims(upstream, changefeed, downstream_port)
        self._pullers = pullers
        self._say = say
        self.starts = 0
        self.totals: Counter[str] = Counter()  # what the metrics of all drivers have counted

    def start(self) -> None:
        self._changefeed.metrics_port = free_port()
        self._changefeed.start()
        self.starts += 1

    def harm(self, event: str) -> float:
        """Seconds until the checkpoint had passed what the upstream had written when it was done (or woken)."""
        documented = EXIT_CODES[event]
        if documented is not None:
            self.take_totals()
        victim, began = self._do(event)
        if documented is not None:
            code, _, err = self._changefeed.finish(PASSED_S)
            assert code == documented, f"{event}: {code}, {err}"
            assert "Traceback" not in err, err
            self._say(f"{event}: ended with {code} after {time.monotonic() - began:.1f} s")
            self.start()
        self.wait_until_passed()
        seconds = time.monotonic() - began
        self._say(f"{event}: recovered in {seconds:.1f} s")
        if event != "driver woken":
            self._wait_for(lambda: not victim.is_running(), f"that the {event} is gone")
        self._wait_for(lambda: len(self._victims.pullers()) == self._pullers, "that all pullers pull")
        return seconds

    def wait_until_passed(self) -> None:
        now = self._upstream.now()
        self._wait_for(lambda: self._changefeed.checkpoint() > now, f"a checkpoint above {now}")

    def take_totals(self) -> None:
        """To be called before a driver ends."""
        for name in ("changefeed_puller_region_registrations_total", "changefeed_puller_finished_locks_total"):
            self.totals[name] += int(self._changefeed.metric(name))

    def _do(self, event: str) -> tuple[psutil.Process, float]:
        """Whom it was done to, and the moment from which on recovery is measured."""
        name, _, how = event.partition(" ")
        if name == "worker":
            victim = self._wait_for(self._victims.executing, "a task that writes a file")  # it is frozen
        elif name == "puller":
            victim = min(self._wait_for(self._victims.pullers, "a puller"), key=lambda puller: puller.pid)
        else:
            victim = self._victims.jvm() if name == "jvm" else self._victims.driver()
        began = time.monotonic()
        family = self._victims.family() if name == "group" else []
        if how == "killed":
            victim.kill()
            for each in family:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
        else:
            victim.suspend()
        if event == "driver frozen":
            self._probe_until_ill()
            victim.kill()
        elif event == "driver woken":
            time.sleep(WOKEN_AFTER_S)  # how long it is frozen is what is wanted
            victim.resume()
            began = time.monotonic()
        return victim, began

    def _probe_until_ill(self) -> None:
        failures = 0
        while failures < PROBE_FAILURES:
            failures = 0 if self._is_well() else failures + 1

    def _is_well(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self._changefeed.metrics_port}/healthz", timeout=PROBE_TIMEOUT_S):
                return True
        except (URLError, TimeoutError):
            return False

    def _wait_for(self, condition: Callable[[], object], what: str) -> Any:
        def holds() -> object:
            process = self._changefeed.process
            assert process is not None
            assert process.poll() is None, self._changefeed.finish()
            return condition()

        return wait_for(holds, what, PASSED_S)
