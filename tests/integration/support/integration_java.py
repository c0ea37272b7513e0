"""Programs in Java for tests: libraries that Maven fetches into the cache once, and classes compiled against them."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest
from integration_tools import needs_tool

FETCH_S, COMPILE_S = 600.0, 90.0
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>dev.changefeed</groupId><artifactId>test</artifactId><version>1</version>
  <dependencies>{}</dependencies>
</project>
"""
_NOTHING_ELSE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
_COORDINATES = ("groupId", "artifactId", "version", "classifier")


def java_tool(name: Literal["java", "javac", "mvn"]) -> str:
    """Return the program's path, that of JAVA_HOME first; the test is skipped where there is none (`needs_tool`)."""
    java_home = os.environ.get("JAVA_HOME")
    return needs_tool(name, folders=[f"{java_home}/bin"] if java_home else ())


def leaves_in(folder: Path) -> str:
    """Return the option of a JVM that leaves its temporary files there: one that is killed doesn't delete them."""
    return f"-Djava.io.tmpdir={folder}"


def jars(name: str, *artifacts: str, alone: Sequence[str] = ()) -> Path:
    """The folder `name` of the cache with artifacts, each `group:artifact:version[:classifier]`, and what they need.

    `alone`: artifacts that are fetched without what they need.

    Filled aside and renamed, so it is whole or not there; one process fills at a time.
    """
    dependencies = [_dependency(artifact) for artifact in artifacts]
    dependencies += [_dependency(artifact, _NOTHING_ELSE) for artifact in alone]

    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
    return _filled(name, ", ".join([*artifacts, *alone]), "".join(dependencies), goal)


def _filled(name: str, what: str, dependencies: str, goal: list[str]) -> Path:
    """`goal`: what Maven does to fill a folder, for a project with these dependencies."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "changefeed"
    folder = cache / name
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock, tempfile.TemporaryDirectory(dir=cache) as aside:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            pom, made = Path(aside) / "pom.xml", Path(aside) / "made"
            pom.write_text(_POM.format(dependencies))
            command = [java_tool("mvn"), "-q", "-B", "-f", str(pom), *goal, f"-DoutputDirectory={made}"]
            checked(command, f"fetching {what} with mvn", FETCH_S)
            made.rename(folder)
    return folder


def unpacked(name: str, artifact: str) -> Path:
    """The folder `name` of the cache with what an archive has, `group:artifact:version:type:classifier`; as `jars`."""
    return _filled(name, artifact, "", ["dependency:unpack", f"-Dartifact={artifact}"])


def _dependency(artifact: str, more: str = "") -> str:
    parts = zip(_COORDINATES, artifact.split(":"), strict=False)
    return f"<dependency>{''.join(f'<{name}>{value}</{name}>' for name, value in parts)}{more}</dependency>"


def compiled(source: Path, folder: Path, *libraries: Path) -> str:
    """The class path of a program of one file, whose classes go to `folder`; `libraries`: folders of jars."""
    path = os.pathsep.join(f"{each}/*" for each in libraries)
    checked([java_tool("javac"), "-cp", path, "-d", str(folder), str(source)], f"compiling {source.name}", COMPILE_S)
    return f"{folder}{os.pathsep}{path}"


def checked(command: list[str], what: str, timeout_s: float, stdin: bytes = b"") -> bytes:
    """What the command prints; the test fails when the command does."""
    done = subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=timeout_s)
    if done.returncode:
        said = (done.stdout + b"\n" + done.stderr).decode(errors="replace")
        pytest.fail(f"{what} failed with exit code {done.returncode}:\n{said}")
    return done.stdout
