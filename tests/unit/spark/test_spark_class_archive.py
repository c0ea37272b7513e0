"""The archive of Spark's classes is that of the jars which stand there now, or none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

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
    monkeypatch.setattr(module, "JARS", jar.parent)

    def run_spark(options: str, scratch: Path) -> None:
        Path(options.rpartition("=")[2]).touch()

    monkeypatch.setattr(module, "run_spark", run_spark)
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


def test_of_a_list_it_is_made_for_jars_in_the_order_of_their_names(
    jar: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What Java is asked, and what it is started with: a JVM takes no archive that was made for another class path."""
    for name in ("b.jar", "Zip.jar", "slf4j-api-2.jar", "a.jar"):
        (jar.parent / name).touch()
    asked = ["java", "-cp", f"conf:first.jar:{jar.parent}/*", "-Xmx1g"]
    names = ("slf4j-api-2.jar", "Zip.jar", "a.jar", "b.jar", "spark-core.jar")
    in_order = ":".join(f"{jar.parent}/{name}" for name in names)
    commands: list[list[str]] = []
    contents = ["one", "another", "one", "a third"]

    def run_spark(options: str, scratch: Path) -> None:
        (scratch / "classes.json").write_text(json.dumps(asked))

    def run(command: list[str], **_: object) -> SimpleNamespace:
        if command[-1] != "true":
            commands.append(command)
            file = next(part for part in command if part.startswith("-XX:SharedArchiveFile=")).partition("=")[2]
            Path(file).write_text(contents.pop(0))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(module, "run_spark", run_spark)
    monkeypatch.setattr(module.subprocess, "run", run)
    made = module.make(tmp_path / "classes.txt")
    assert made is not None
    assert made.read_text() == "one", "what comes out twice"
    assert len(commands) == 3
    command = commands[0]
    assert command[-2:] == ["-cp", in_order]
    assert f"-XX:SharedClassListFile={tmp_path / 'classes.txt'}" in command
    started = module.command()
    assert started is not None
    assert started[:3] == ["java", "-cp", in_order]
    assert started[-1] == f"-XX:SharedArchiveFile={made}"


def test_the_list_of_a_run_holds_what_jars_hold(jar: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loaded = "# Made by Java\nb/B\n@lambda-proxy b/B run\na/A$1\njdk/proxy1/$Proxy12\nb/B$$Lambda$7/0x1\na/A$1\n"

    def run_spark(options: str, scratch: Path) -> None:
        Path(options.rpartition("=")[2]).write_text(loaded)

    monkeypatch.setattr(module, "run_spark", run_spark)
    module.main(["--list", str(tmp_path / "list")])
    assert (tmp_path / "list").read_text() == "a/A$1\nb/B\n"


def test_the_images_list_is_one(jar: Path) -> None:
    names = (Path(__file__).parents[3] / "images" / "spark-classes.txt").read_text().splitlines()
    assert names == sorted(set(names))
    assert "org/apache/spark/SparkContext" in names
    assert not [name for name in names if module.NO_CLASS.match(name)]


def test_a_command_begins_with_java_where_an_emulator_runs_it(tmp_path: Path) -> None:
    """As /proc shows a JVM of arm64 on amd64."""
    java = "/opt/java/bin/java"
    shown = [
        "/usr/libexec/qemu-binfmt/aarch64-binfmt-P",
        java,
        java,
        "-cp",
        "a.jar",
        "-Xmx1g",
        module.SCRIPTS_MAIN,
        "x",
    ]
    (tmp_path / "cmdline").write_text("\0".join(shown))
    assert module.asked_of(tmp_path, "-Xmx1g") == [java, "-cp", "a.jar"]
