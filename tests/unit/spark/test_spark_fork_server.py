"""Processes that Spark asks for come from one that has everything loaded, and are to Spark as those that it starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from changefeed.spark.worker import fork_server, worker_client
from changefeed.spark.worker.fork_server import ForkServer
from changefeed.spark.worker.worker_client import ADDRESS

#: Loaded first of all by a Python that has it on its path: where a fork would serve Spark it is a program of ours.
IN_PLACE_OF_SPARKS = """
import importlib, runpy, sys, types

def manager():
    del sys.modules["pyspark.daemon"]
    if sys.argv[1] == "pyspark.worker":
        importlib.import_module("pyspark.daemon").manager()
    else:
        runpy.run_module(sys.argv[1])

sys.modules["pyspark.daemon"] = types.SimpleNamespace(manager=manager)
"""

PROBE = """
import json, os, sys, threading
loaded = sorted(sys.modules.keys() & {"polars", "pyspark.worker", "changefeed.spark.task"})
print(json.dumps({
    "asked": input(), "loaded": loaded, "threads": threading.active_count(),
    "server": os.environ.get("OF_THE_SERVER"), "mine": os.environ.get("OF_THE_ASKER"),
}))
"""

STUBBORN = """
import os, signal
os.setpgid(0, 0)
os.write(1, b"1" if os.fork() else b"2")
signal.pause()
"""


def begun(folder: Path, **programs: str) -> ForkServer:
    """A server whose forks can be those programs as well."""
    for name, text in {"sitecustomize": IN_PLACE_OF_SPARKS, **programs}.items():
        (folder / f"{name}.py").write_text(text)
    return ForkServer(folder, {"PYTHONPATH": str(folder), "OF_THE_SERVER": "x"}, None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a server that runs."""
    folder = tmp_path_factory.mktemp("fork-server")
    made = begun(folder, probe=PROBE)
    yield folder
    made.close()


def ask(folder: Path, *program: str, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", worker_client.__file__, *program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **ForkServer.environment(folder), **environment},
    )


def test_it_has_everything_loaded_no_thread_and_the_askers_streams_and_environment(folder: Path) -> None:
    out, _ = ask(folder, "probe", OF_THE_ASKER="y").communicate(b"hello\n", timeout=60)
    said = json.loads(out)
    assert (said["asked"], said["server"], said["mine"]) == ("hello", None, "y")
    assert said["loaded"] == ["changefeed.spark.task", "polars", "pyspark.worker"]
    assert said["threads"] == 1


def test_a_daemon_says_its_port_and_ends_with_its_standard_input(folder: Path) -> None:
    process = ask(folder, "pyspark.worker")
    assert process.stdout is not None
    assert 1024 < int.from_bytes(process.stdout.read(4)) < 65536
    assert process.communicate(timeout=60)[0] == b""
    assert process.returncode == 0


def test_a_daemon_that_is_told_to_stop_stops(folder: Path) -> None:
    process = ask(folder, "pyspark.worker")
    assert process.stdout is not None
    assert len(process.stdout.read(4)) == 4
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert process.communicate()[0] == b""


def test_all_that_it_has_forked_ends_with_it(tmp_path: Path) -> None:
    """A puller, say: a daemon's own fork, in the daemon's group, that looks at nothing but its own work."""
    server = begun(tmp_path, stubborn=STUBBORN)
    process = ask(tmp_path, "stubborn")
    assert process.stdout is not None
    assert sorted(process.stdout.read(2)) == sorted(b"12"), "both live"
    server.close()
    assert process.communicate(timeout=60)[0] == b"", "nobody holds it open"
    assert process.returncode == 0


def test_without_a_server_it_loads_what_it_needs_itself(tmp_path: Path) -> None:
    server = ForkServer(tmp_path, {}, None)
    server.close()
    address = Path(ForkServer.environment(tmp_path)[ADDRESS])
    assert address.exists()
    process = ask(tmp_path, "pyspark.worker")
    assert process.stdout is not None
    assert len(process.stdout.read(4)) == 4
    assert process.communicate(timeout=60)[0] == b""


def test_one_that_is_frozen_does_not_keep_the_driver_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "END_S", 0.1)
    made = ForkServer(tmp_path, {}, None)
    made._process.send_signal(signal.SIGSTOP)
    made.close()
    assert made._process.returncode == -signal.SIGKILL
