"""How a container says why it ended."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from changefeed.cli.main import main
from changefeed.cli.termination import termination_log, write_termination
from changefeed.errors import NeedsHuman
from changefeed.owner import driver
from changefeed.owner.closing import undriven
from changefeed.owner.driver import Outcome
from changefeed.spark.launch import Launch
from changefeed.upstream.contract import HeldUntil

ROOT = Path(__file__).parents[3]
RESOURCE = """
apiVersion: changefeed.dev/v1alpha1
kind: Changefeed
metadata: {name: orders, namespace: shop}
spec:
  upstream: {pdAddresses: ["http://127.0.0.1:2379"]}
  sink: {storage: {uri: file://./lake, protocol: csv}}
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "termination-log"
    monkeypatch.setenv("CHANGEFEED_TERMINATION_LOG", str(path))
    return path


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Launch, "begin", lambda _: None)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "orders.yaml"
    path.write_text(RESOURCE)
    return str(path)


def said(log: Path) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(log.read_bytes())
    return answer


@pytest.mark.parametrize("state", ["finished", "drained"])
def test_a_good_end(state: str, log: Path, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "run", lambda *_: Outcome(state, 449_000_000_000_000_000))
    assert main(["run", "-f", file]) == 0
    answer = said(log)
    assert answer["class"] == state.capitalize()
    assert answer["message"].startswith("The checkpoint is 449000000000000000 (")


def test_a_failure(log: Path, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Outcome:
        raise NeedsHuman("SinkOwned: another's.", "Choose another uri.")

    monkeypatch.setattr(driver, "run", fail)
    assert main(["run", "-f", file]) == 1
    assert said(log) == {"class": "NeedsHuman", "message": "SinkOwned: another's.", "next": "Choose another uri."}


def test_bad_input(log: Path, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["run", "-f", file, "--attempt", "-1"]) == 2
    assert said(log)["message"] == "--attempt: -1; allowed: 0 (attempts are not counted) or more"
    assert main(["run", "--fil"]) == 2
    assert said(log)["class"] == "BadArguments"


@pytest.mark.parametrize("verb", ["hold", "close"])
def test_the_jobs_verbs(verb: str, log: Path, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise NeedsHuman(f"{verb} failed.")

    monkeypatch.setattr(undriven, verb, fail)
    assert main([verb, "-f", file]) == 1
    assert said(log) == {"class": "NeedsHuman", "message": f"{verb} failed."}


def test_verbs_that_are_run_beside_the_container_leave_it_alone(log: Path) -> None:
    assert main(["verify"]) == 2
    assert not log.exists()


def test_where_it_goes() -> None:
    assert termination_log({}) is None
    assert termination_log({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}) == Path("/dev/termination-log")
    pod = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "CHANGEFEED_TERMINATION_LOG": "/tmp/x"}
    assert termination_log(pod) == Path("/tmp/x")


def test_a_long_message_is_cut_and_is_still_json(log: Path) -> None:
    write_termination(log, "Unavailable", "ä\n" * 5000, "Look at the store.")
    assert len(log.read_bytes()) <= 4096
    answer = said(log)
    assert answer["next"] == "Look at the store."
    assert answer["message"].startswith("ä\nä\n")
    assert answer["message"].endswith(" ...")
    assert len(answer["message"]) > 1900


def test_a_place_that_cant_be_written_changes_nothing(tmp_path: Path) -> None:
    write_termination(tmp_path / "nowhere" / "log", "Unavailable", "x")


def test_a_fault_of_ours_is_named_too(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hook = sys.excepthook
    made = runpy.run_path(str(ROOT / "spark-apps" / "changefeed_app.py"))
    assert sys.excepthook is hook, "only the program changes it"
    try:
        raise ZeroDivisionError("by zero")
    except ZeroDivisionError as error:
        made["say_crash"](type(error), error, error.__traceback__)
    assert said(log) == {
        "class": "ZeroDivisionError",
        "message": "by zero",
        "next": "Report it, with the driver's log.",
    }
    assert "ZeroDivisionError: by zero" in capsys.readouterr().err


def test_a_hold_says_what_it_got(log: Path, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldUntil(ts=450_000_000_000_000_000, until_ms=1_716_700_000_000)

    async def hold(*_: object) -> HeldUntil:
        return held

    monkeypatch.setattr(undriven, "hold", hold)
    assert main(["hold", "-f", file]) == 0
    answer = said(log)
    assert (answer["class"], answer["ts"], answer["until"]) == ("Held", str(held.ts), "2024-05-26T05:06:40Z")


def test_a_hold_of_nothing_says_why(log: Path, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hold(*_: object) -> undriven.NothingToHold:
        return undriven.NothingToHold("it is finished")

    monkeypatch.setattr(undriven, "hold", hold)
    assert main(["hold", "-f", file]) == 0
    assert said(log) == {"class": "NothingToHold", "message": "There is nothing to hold: it is finished."}
