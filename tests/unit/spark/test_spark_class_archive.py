"""The archive of Spark's classes is that of the jars which stand there now, or none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from changefeed.spark.jvm import class_archive as module


@pytest.fixture
def jar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The only one of an installation; the archive is made in no time."""
    jar = tmp_path / "jars" / "spark-core.jar"
    jar.parent.mkdir()
    jar.touch()
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch(mode=0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_JARS", jar.parent)

    def run_spark(options: str, scratch: Path) -> None:
        Path(options.rpartition("=")[2]).touch()

    monkeypatch.setattr(module, "_run_spark", run_spark)
    return jar


def test_an_archive_is_made_once_and_used(jar: Path) -> None:
    assert "SharedArchiveFile" not in module.java_options()
    made = module.make()
    assert made is not None
    assert module.java_options().endswith(f"-XX:SharedArchiveFile={made}")
    os.utime(made, (1, 1))
    assert module.make() == made
    assert made.stat().st_mtime == 1, "it was not made again"


def test_jars_that_were_installed_anew_get_an_archive_of_their_own(jar: Path) -> None:
    first = module.make()
    os.utime(jar, (1, 1))
    assert "SharedArchiveFile" not in module.java_options()
    second = module.make()
    assert first is not None
    assert second is not None
    assert second.exists()
    assert not first.exists(), "a JVM would refuse it"
