"""Spark's classes in one file that a JVM maps when it starts, instead of loading thousands from jars: half the start.

Beside it stands the command that Spark's own script starts a JVM with, which takes a script and a JVM to find out.

Only a cache: a JVM that finds none, or one that is not its own, starts without, just slower. The project's set-up makes
it of what a run has loaded (`python -m changefeed.spark.jvm.class_archive`). For an image it is made of a list
(`--classes FILE`), to the same bytes each time; `--list FILE` writes the list of a run.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

# PySpark is not loaded here: what starts a JVM asks this module how, and has better things to do before.
JARS = Path(str(getattr(find_spec("pyspark"), "origin", ""))).parent / "jars"
_JVM = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto -Xlog:disable -Xlog:all=error:stderr "
    # The classes are those that are installed, and it starts processes without a helper that is one itself.
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote -Djdk.lang.Process.launchMechanism=VFORK"
)
#: Addresses that are the same each time, nothing compiled beside: else the order of things in the file is another each
#: time. With them it still is now and then (2 of 8), so the file that comes out twice is taken.
_SAME_ADDRESSES = ("setarch", "--addr-no-randomize")
_DUMP = ("-Xshare:dump", "-Xint", "-Xmx1g")
_MOST_DUMPS = 8
#: Made while a program runs, so that no jar has them, and what only `-Xshare:dump` would understand.
NO_CLASS = re.compile(r"[@#]|.*\$Proxy\d|.*\$\$Lambda")
SCRIPTS_MAIN = "org.apache.spark.deploy.SparkSubmit"
_SLOWS_ANY_START = "--add-modules=jdk.incubator.vector"  # for machine learning; without, Java's own archive is used


def java_options() -> str:
    """What a JVM is started with: little runs in it and no row passes through, so it should start fast, no more."""
    return _options(_path())


def command() -> list[str] | None:
    """Java with what Spark wants it to have, less the name of a class to run; None when nobody has asked the script."""
    archive = _path()
    if archive is None or not _command_of(archive).exists():
        return None
    asked: list[str] = json.loads(_command_of(archive).read_text())
    return [*asked, *_options(archive).split()]


def make(classes: Path | None = None) -> Path | None:
    """The archive of this Java and this Spark, made unless it is there; None without Java.

    `classes`: names of those to be in it, else what a run loads. Jars then come in the order of their names.
    """
    archive = _path()
    if archive is None or archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=archive.parent))
    try:
        made = scratch / "classes.jsa"
        run_spark(_JVM if classes else f"{_JVM} -XX:ArchiveClassesAtExit={made}", scratch)
        if classes:
            _dump(classes, made)
        if made.exists():
            if _command_of(made).exists():
                _command_of(made).replace(_command_of(archive))
            made.replace(archive)
            _forget_older(archive)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return archive


def jars_in_order() -> str:
    """Spark's jars as a class path, that of logging first as Spark has it, the others by their names.

    Spark itself names the folder with a `*`, which stands for whatever order the file system has. A JVM takes an
    archive only when its class path begins with the one that the archive was made for.
    """
    jars = sorted(JARS.glob("*.jar"), key=lambda jar: (not jar.name.startswith("slf4j-api-"), jar.name))
    return ":".join(map(str, jars))


def write_list(file: Path) -> None:
    """The names of the classes that a run loads from jars or from Java, sorted."""
    scratch = Path(tempfile.mkdtemp())
    try:
        run_spark(
            f"{_JVM.replace('-Xshare:auto', '-Xshare:off')} -XX:DumpLoadedClassList={scratch / 'loaded'}", scratch
        )
        loaded = {line for line in (scratch / "loaded").read_text().splitlines() if not NO_CLASS.match(line)}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    file.write_text("".join(f"{name}\n" for name in sorted(loaded)))


def _dump(classes: Path, archive: Path) -> None:
    """Java's own way to make an archive of a list. The command beside it gets the class path that it is for."""
    java, *asked = json.loads(_command_of(archive).read_text())
    asked[asked.index("-cp") + 1] = jars_in_order()
    _command_of(archive).write_text(json.dumps([java, *asked]))
    files = [f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={archive}"]
    options = [option for option in _JVM.split() if not option.startswith("-Xshare")]
    dump = [java, *options, *_DUMP, *files, "-cp", jars_in_order()]
    # A container may be forbidden to ask for it; then it is an archive all the same, if not the same one.
    can = subprocess.run([*_SAME_ADDRESSES, "true"], check=False, capture_output=True).returncode == 0
    made: set[str] = set()
    for _ in range(_MOST_DUMPS if can else 1):
        archive.unlink(missing_ok=True)
        subprocess.run([*_SAME_ADDRESSES, *dump] if can else dump, check=True, stdout=subprocess.DEVNULL)
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        if digest in made:
            break
        made.add(digest)


def _options(archive: Path | None) -> str:
    return f"{_JVM} -XX:SharedArchiveFile={archive}" if archive is not None and archive.exists() else _JVM


def _path() -> Path | None:
    """Return the path, which each Java and each installation of Spark has of its own: neither can use another's.

    A JVM compares the times of the jars, so it takes no archive of an installation that stood there before.
    Times are in whole seconds, which is what an image's layers keep of them.
    """
    home = os.environ.get("JAVA_HOME", "")
    java = shutil.which(os.path.join(home, "bin", "java") if home else "java")
    if java is None:
        return None
    binary = Path(java).resolve()
    installed = max(int(jar.stat().st_mtime) for jar in JARS.iterdir())
    content = _hash(f"{version('pyspark')} {installed} {binary} {int(binary.stat().st_mtime)} {_JVM}")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "changefeed" / f"spark-classes-{_hash(str(Path(sys.prefix).resolve()))}-{content}.jsa"


def _command_of(archive: Path) -> Path:
    return archive.with_suffix(".json")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _forget_older(archive: Path) -> None:
    """Delete older ones of the same installation: nothing can use them any more."""
    installation = archive.name.rpartition("-")[0]
    for other in archive.parent.glob(f"{installation}-*"):
        if other.stem != archive.stem:
            other.unlink(missing_ok=True)


def asked_of(process: Path, java_options: str) -> list[str]:
    """Java's command with what Spark's script had added; `process`: of the JVM, below /proc.

    Where an image is built for another processor, an emulator and its own arguments come before Java.
    """
    arguments = (process / "cmdline").read_text().split("\0")
    del arguments[arguments.index(SCRIPTS_MAIN) :]
    java = max(index for index, each in enumerate(arguments) if Path(each).name == "java")
    ours = {*java_options.split(), _SLOWS_ANY_START}
    return [each for each in arguments[java:] if each not in ours]


def run_spark(java_options: str, scratch: Path) -> None:
    """As a changefeed does: a job of Python tasks, once."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # where an image is built no name leads to this machine
    settings = {
        "spark.master": "local[2]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "FATAL",
        "spark.local.dir": str(scratch / "local"),
        "spark.driver.extraJavaOptions": java_options,
    }
    conf = SparkConf().setAll(list(settings.items()))
    with (scratch / "spark.log").open("wb") as output:
        gateway = launch_gateway(conf, {"stdout": output, "stderr": output})
    process = Path("/proc") / str(gateway.proc.pid)
    if process.exists():  # Linux has it
        (scratch / "classes.json").write_text(json.dumps(asked_of(process, java_options)))
    context = SparkContext(conf=conf, gateway=gateway)
    context.setJobGroup("changefeed", "as a run has one", interruptOnCancel=True)
    context.parallelize(range(2), 2).mapPartitionsWithIndex(lambda _, rows: rows).count()
    context.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # at which it ends, and writes the archive
    gateway.proc.wait()


def main(arguments: Sequence[str]) -> None:
    match arguments:
        case ["--list", file]:
            write_list(Path(file))
        case ["--classes", file]:
            make(Path(file))
        case _:
            make()


if __name__ == "__main__":
    main(sys.argv[1:])
