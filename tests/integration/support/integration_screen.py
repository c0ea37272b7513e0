"""`changefeed run` as a user starts it, and what an error must look like: one screen, the reason, the next step."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from conftest import BIN

SCREEN_LINES = 12
FAILED, BAD_INPUT, CANNOT_CHECK, UNAVAILABLE = 1, 2, 3, 69


def run_alone(file: Path, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`changefeed run` in a process of its own, to its end."""
    command = [BIN / "changefeed", "run", "-f", file, *(arguments or ["--metrics-port", "0"])]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=env)


def one_screen(out: str, err: str, as_json: bool, said: tuple[str, ...]) -> None:
    """The error stands where it belongs, is short, and holds all that is `said`."""
    if as_json:
        error = json.loads(out)["error"]
        assert err == ""
        assert error["class"]
        assert error["next"]
        shown = f"{error['message']}\n{error['next']}"
    else:
        assert out == ""
        assert err.startswith("error: ")
        assert "\nnext: " in err
        shown = err
    assert "Traceback" not in shown
    assert len(shown.splitlines()) <= SCREEN_LINES
    for words in said:
        assert words in shown
