"""A laptop's JVM, which is killed often: what it leaves is in the run's folder, which the next run clears."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from changefeed.spark.jvm import class_archive
from changefeed.spark.jvm.jvm import Jvm
from changefeed.spark.settings import LaptopDeployment


def test_its_temporary_files_are_in_the_runs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(class_archive, "command", lambda: ["java", "-cp", "jars"])
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: commands.append(command))
    Jvm.started(tmp_path, None)
    main = "org.apache.spark.api.python.PythonGatewayServer"
    assert commands == [["java", "-cp", "jars", f"-Djava.io.tmpdir={tmp_path}", main]]


def test_so_they_are_where_the_script_starts_it(tmp_path: Path) -> None:
    options = LaptopDeployment("local[4,8]").settings(tmp_path)["spark.driver.extraJavaOptions"]
    assert options.split()[-1] == f"-Djava.io.tmpdir={tmp_path}"
