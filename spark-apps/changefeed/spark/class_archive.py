"""Spark's classes in one file that a JVM maps when it starts, instead of loading thousands from jars: half the start.

Only a cache, made by the project's set-up (and by the image's): a JVM that finds none, or one that is not its own,
starts without, just slower. `python -m changefeed.spark.class_archive` makes it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

_JARS = Path(pyspark.__file__).parent / "jars"
_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto -Xlog:disable -Xlog:all=error:stderr"


def java_options() -> str:
    """What a JVM is started with: little runs in it and no row passes through, so it should start fast, no more."""
    archive = _path()
    return f"{_JVM} -XX:SharedArchiveFile={archive}" if archive is not None and archive.exists() else _JVM


def make() -> Path | None:
    """The archive of this Java and this Spark, made unless it is there; None without Java."""
    archive = _path()
    if archive is None or archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=archive.parent))
    try:
        made = scratch / "classes.jsa"
        _run_spark(f"{_JVM} -XX:ArchiveClassesAtExit={made}", scratch)
        if made.exists():
            made.replace(archive)
            _forget_older(archive)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return archive


def _path() -> Path | None:
    """Of its own for each Java and each installation of Spark: neither can use another's.

    A JVM compares the times of the jars, so it takes no archive of an installation that stood in the same place before.
    Times are in whole seconds, which is what an image's layers keep of them.
    """
    home = os.environ.get("JAVA_HOME", "")
    java = shutil.which(os.path.join(home, "bin", "java") if home else "java")
    if java is None:
        return None
    binary = Path(java).resolve()
    installed = max(int(jar.stat().st_mtime) for jar in _JARS.iterdir())
    content = _hash(f"{version('pyspark')} {installed} {binary} {int(binary.stat().st_mtime)}")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "changefeed" / f"spark-classes-{_hash(str(Path(sys.prefix).resolve()))}-{content}.jsa"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _forget_older(archive: Path) -> None:
    """Those of the same place: nothing can use them any more."""
    place = archive.name.rpartition("-")[0]
    for other in archive.parent.glob(f"{place}-*.jsa"):
        if other != archive:
            other.unlink(missing_ok=True)


def _run_spark(java_options: str, scratch: Path) -> None:
    """As a changefeed does: a query from a Python source to a Python sink, once."""
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
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.driver.extraJavaOptions": java_options,
    }
    conf = SparkConf().setAll(list(settings.items()))
    with (scratch / "spark.log").open("wb") as output:
        gateway = launch_gateway(conf, {"stdout": output, "stderr": output})
    session = SparkSession(SparkContext(conf=conf, gateway=gateway))
    session.sparkContext.parallelize(range(2), 2).mapPartitions(lambda rows: rows).count()
    session.dataSource.register(_Source)
    session.dataSource.register(_Sink)
    query = (
        session.readStream.format(_Source.name())
        .load()
        .writeStream.format(_Sink.name())
        .option("checkpointLocation", str(scratch / "checkpoint"))
        .trigger(processingTime="50 milliseconds")
        .start()
    )
    query.processAllAvailable()
    query.stop()
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # at which it ends, and writes the archive
    gateway.proc.wait()


class _Reader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def latestOffset(self) -> dict[str, int]:
        return {"n": 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import pyarrow as pa

        yield pa.RecordBatch.from_pydict({"n": pa.array([1], pa.int64())})


class _Writer(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """There is nothing to commit."""


class _Source(DataSource):
    @classmethod
    def name(cls) -> str:
        return "class-archive-source"

    def schema(self) -> str:
        return "n long"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _Reader()


class _Sink(DataSource):
    @classmethod
    def name(cls) -> str:
        return "class-archive-sink"

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
        return _Writer()


if __name__ == "__main__":
    make()
