"""`make demo`: a bank on a development cluster, a changefeed from it to files, and the proof that the files are right.

Uses nothing but the commands that a user has. Exit code 0 only when `changefeed verify` holds.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
RESOURCE = "examples/demo.yaml"
LAKE = Path(".demo/lake")
PORT = 23790
WORKLOAD_S = 20
DEADLINE_S = 75  # for all of it but the verification

console = Console()


class Cluster:
    """The development cluster in a process of its own, out of reach of the terminal's Ctrl-C."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [
                BIN / "changefeed-devcluster",
                "start",
                *("--workload", "bank", "--tables", "4", "--regions", "4", "--rate", "1000"),
                *("--workload-seconds", str(WORKLOAD_S)),
                *("--port", str(PORT), "--data", ".demo/devcluster"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.ready = self._line()
        self.stopped: dict[str, Any] | None = None  # its second line, once the workload has ended
        threading.Thread(target=self._follow, daemon=True).start()

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        found: dict[str, Any] = json.loads(line) if line else {}
        return found

    def _follow(self) -> None:
        self.stopped = self._line()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)


def main() -> int:
    os.chdir(ROOT)
    if _port_taken():
        say(f"Port {PORT} is in use, perhaps by another demo: stop that one, then try again.", "red")
        return 1
    before = checkpoint()
    say(f"Resuming from checkpoint {before}." if before else "First run: starting now, writing to .demo/.", "bold")
    cluster = Cluster()
    try:
        if not cluster.ready:
            say("The development cluster failed to start; see its message above.", "red")
            return 1
        say(f"A bank of 4 tables x 4 regions at PD {cluster.ready['pd']}; transfers for {WORKLOAD_S} s.")
        return run(cluster) or verify(before)
    except KeyboardInterrupt:
        return 130
    finally:
        cluster.stop()


def run(cluster: Cluster) -> int:
    """Run the changefeed until it has caught up with the end of the workload; gives its exit code."""
    process = subprocess.Popen([BIN / "changefeed", "run", "-f", RESOURCE, "--metrics-port", "0"])
    deadline = time.monotonic() + DEADLINE_S
    try:
        while process.poll() is None and not _caught_up(cluster):
            if time.monotonic() > deadline:
                say(f"Not caught up within {DEADLINE_S} s; checkpoint {checkpoint()}.", "red")
                process.send_signal(signal.SIGTERM)
                return process.wait() or 1
            time.sleep(0.2)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        return process.wait()
    except KeyboardInterrupt:
        process.wait()  # it got the Ctrl-C too, and drains
        raise


def _caught_up(cluster: Cluster) -> bool:
    stopped = cluster.stopped
    return stopped is not None and "ts" in stopped and checkpoint() >= int(stopped["ts"])


def verify(before: int) -> int:
    """Prove what was written; gives the exit code."""
    say("\nComparing every file with the upstream's own history ...", "bold")
    code = subprocess.run(
        [BIN / "changefeed", "verify", "-f", RESOURCE, "--conserved", "balance"], check=False
    ).returncode
    if code:
        return code
    say("Verified: no row is missing, duplicated or out of order, and the sum of all balances never changed.", "green")
    since = f"from {before} " if before else ""
    say(f"The checkpoint moved {since}to {checkpoint()}.")
    say("Run `make demo` again to continue; `make clean` removes everything.")
    files = sorted(LAKE.rglob("CDC*.csv"), key=lambda file: file.stat().st_mtime)
    say(f"\n{len(files):,} files below {LAKE}/; the latest one with rows:", "bold")
    newest = next((file for file in reversed(files) if file.stat().st_size), None)
    if newest:
        say(f"  {newest}")
        for line in newest.read_text(encoding="utf-8").splitlines()[:4]:
            say(f"    {line}", "dim")
    return 0


def checkpoint() -> int:
    """Return what the sink publishes; 0: nothing yet."""
    try:
        return int(json.loads((LAKE / "metadata").read_bytes())["checkpoint-ts"])
    except FileNotFoundError:
        return 0


def say(text: str, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)


def _port_taken() -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", PORT))
        except OSError:
            return True
    return False


if __name__ == "__main__":
    sys.exit(main())
