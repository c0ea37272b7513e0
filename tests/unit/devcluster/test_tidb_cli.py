"""The command: its lines, its signals, its exit codes."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from changefeed_devcluster.cli import app, main
from changefeed_devcluster.harm import widest_middle
from changefeed_devcluster.keys import record_key, table_prefix
from changefeed_devcluster.terminal import CommandFailed

_COMMAND = [sys.executable, "-c", "from changefeed_devcluster.cli import main; main()"]


@contextmanager
def _started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    process = subprocess.Popen([*_COMMAND, "start", *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*_COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)


def _refused(*arguments: str) -> object:
    """The exit code of the command, which must end by itself; in this process, where loading it costs nothing."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


def test_a_workload_runs_is_harmed_stops_and_goes_on_in_its_folder(tmp_path: Path) -> None:
    options = ("--workload", "bank", "--rows", "50", "--data", str(tmp_path))
    with _started(*options) as (process, ready):
        assert ready["tables"] == ["bank.accounts_0", "bank.accounts_1"]
        split = _run("harm", "split", "--pd", ready["pd"])
        assert (split.returncode, len(json.loads(split.stdout)["regions"])) == (0, 2)
        process.send_signal(signal.SIGUSR1)
        assert process.stdout is not None
        stopped = json.loads(process.stdout.readline())
        assert stopped["workload"] == "stopped"
        assert stopped["rows"] > 0
        assert int(stopped["ts"]) > int(ready["startTs"])
        process.send_signal(signal.SIGTERM)
        assert (process.stdout.read(), process.wait(30)) == ("", 0)
    with _started("--workload-seconds", "0", *options) as (process, again):
        assert (again["cluster_id"], again["tables"]) == (ready["cluster_id"], ready["tables"])
        assert int(again["startTs"]) > int(stopped["ts"])
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_a_folder_is_replayed_without_being_written_to(tmp_path: Path) -> None:
    options = ("--workload", "bank", "--rows", "50", "--rate", "0", "--data", str(tmp_path))
    with _started(*options) as (process, ready):
        assert process.stdout is not None
        stopped = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    before = (tmp_path / "journal").read_bytes()
    lines = []
    for _ in range(2):
        with _started("--data", str(tmp_path), "--replay") as (process, again):
            assert process.stdout is not None
            lines.append((again["startTs"], again["cluster_id"], json.loads(process.stdout.readline())["ts"]))
    assert lines == [(ready["startTs"], ready["cluster_id"], lines[0][2])] * 2
    assert int(ready["startTs"]) < int(lines[0][2]) < int(stopped["ts"])
    assert (tmp_path / "journal").read_bytes() == before


def test_a_frozen_history_is_ready_and_harmed(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--workload", "sysbench", "--tables", "1", "--regions", "4", "--rows", "3000", "--rate", "0")
    with _started(*options, "--frozen", "live") as (process, ready):
        assert process.stdout is not None
        stopped = json.loads(process.stdout.readline())
        assert (stopped["workload"], stopped["rows"], ready["tables"]) == ("stopped", 3000, ["sbtest.sbtest1"])
        assert int(ready["startTs"]) < int(stopped["ts"])
        for action in ("merge", "transfer", "lock", "stall-region", "heal", "abandon"):
            app(["harm", action, "--pd", ready["pd"]], result_action="return_value")
        lasting = (
            ["repeat"],
            ["reorder", "--seconds", "1"],
            ["delay", "--by", "0.1"],
            ["slow-scans", "--bytes-per-second", "1000"],
            ["congest", "--store", "1"],
            ["stall"],
        )
        for arguments in (*lasting, ["heal"]):
            app(["harm", *arguments, "--pd", ready["pd"]], result_action="return_value")
        answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [list(answer) for answer in answers] == [
            ["regions"], ["regions"], ["key", "start_ts"], ["region"], [], ["key", "start_ts"], *([[]] * 7),
        ]  # fmt: skip
        with pytest.raises(CommandFailed, match=r"no two rows|frozen history"):
            app(["harm", "abandon", "--committed", "--pd", ready["pd"]], result_action="return_value")


def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        for arguments, named in (
            (("--port", port), port),
            (("--store-port", str(int(port) - 1)), port),
            (("--store-port", "65535"), "65535"),
            (("--data", str(file)), str(file)),
            (("--proposed-watermark", "4"), "3 stores"),
            (("--workload", "bank", "--rows", "3"), "at least 4 accounts"),
            (("--replay",), "--data"),
            (("--replay", "--data", str(tmp_path / "none")), "--data"),
            (("--frozen", "scan", "--workload", "bank"), "sysbench"),
        ):
            code = _refused("start", *arguments)
            out, err = capfd.readouterr()
            assert (code, out, err.count("\n")) == (2, "", 1), err
            assert named in err


@pytest.mark.parametrize("arguments", [("--nonsense",), ("--port", "99999"), ("--tables", "0"), ("--workload", "x")])
def test_a_wrong_option_is_exit_code_2_without_traceback(
    arguments: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    assert _refused("start", *arguments) == 2
    said = "".join(capfd.readouterr())
    assert arguments[0] in said
    assert "Traceback" not in said


def test_harm_to_nobody_says_so() -> None:
    done = _run("harm", "cut", "--pd", "127.0.0.1:1")
    assert (done.returncode, done.stderr.count("\n")) == (69, 1)


def test_the_widest_region_between_two_rows_is_split_in_its_middle() -> None:
    borders = [table_prefix(5), record_key(5, 11), record_key(5, 21), record_key(5, 61), record_key(6, 9)]
    found = [{"start": a.hex(), "end": b.hex()} for a, b in pairwise(borders)]
    assert widest_middle(found) == record_key(5, 41).hex()
    with pytest.raises(CommandFailed, match="say which one"):
        widest_middle(found[:1])
