"""Spark with Iceberg or with Delta Lake, for statements that other people run on our tables.

Neither has a runtime for the project's own Spark: this is an earlier one, in an environment of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from integration_catalogs import PASSWORD, USER
from integration_java import FETCH_S, checked, jars, leaves_in
from integration_mysql_programs import cached

SPARK, ICEBERG, DRIVER, DELTA = "4.1.4", "1.12.0", "3.5.6", "4.4.0"
START_S = 180
_REQUIREMENTS = Path(__file__).parents[3] / "requirements" / "spark-4.1.txt"
_STATEMENTS = Path(__file__).parent / "iceberg" / "statements.py"
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SETTINGS = {
    "spark.master": "local[1]",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
}
_ICEBERG = {"spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"}
_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",  # a VACUUM would have 10,000 tasks
}
#: What Delta's own artifact needs beside what Spark has.
_DELTA_ARTIFACTS = ("delta-spark_4.1_2.13", "delta-storage", "delta-kernel-api", "delta-kernel-defaults")


class SparkFailed(AssertionError):
    """Spark can't do what it was told."""


class SparkSql:
    """A Spark that runs. Threads may share it; it does one statement at a time."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log
        self._lock = Lock()
        self._answer()

    def __call__(self, statement: str) -> list[list[Any]]:
        """Its rows. Raises SparkFailed."""
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(statement) + "\n")
            self._process.stdin.flush()
            answer = self._answer()
        if "error" in answer:
            raise SparkFailed(f"{statement}\n{answer['error'][:3000]}")
        rows: list[list[Any]] = answer["rows"]
        return rows

    def use(self, name: str, address: str, warehouse: str) -> None:
        """The catalog that a MariaDB at `address` (mysql://host:port/database) is, under a name that is new."""
        catalog = f"spark.sql.catalog.{name}"
        settings = {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "jdbc",
            ".uri": address.replace("mysql://", "jdbc:mariadb://"),
            ".jdbc.user": USER,
            ".jdbc.password": PASSWORD,
            ".warehouse": warehouse,
            ".cache-enabled": "false",
        }
        for setting, value in settings.items():
            self(f"SET `{catalog}{setting}`=`{value}`")

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"Spark has ended:\n{self._log.read_text(errors='replace')[-4000:]}"
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def running(folder: Path) -> Iterator[SparkSql]:
    """It works in `folder`, on Iceberg tables."""
    library, runtime = installed()
    driver = jars(f"mariadb-java-client-{DRIVER}", f"org.mariadb.jdbc:mariadb-java-client:{DRIVER}")
    with _running(folder, library, [runtime, *driver.glob("mariadb-java-client-*.jar")], _ICEBERG) as spark:
        yield spark


@contextmanager
def delta_running(folder: Path) -> Iterator[SparkSql]:
    """It works in `folder`, on tables of Delta Lake: delta.`/path`."""
    artifacts = [f"io.delta:{name}:{DELTA}" for name in _DELTA_ARTIFACTS]
    path = sorted(jars(f"delta-{DELTA}", alone=artifacts).glob("*.jar"))
    with _running(folder, packages(f"pyspark-{SPARK}", _REQUIREMENTS), path, _DELTA) as spark:
        yield spark


@contextmanager
def _running(folder: Path, library: Path, path: Sequence[Path], more: Mapping[str, str]) -> Iterator[SparkSql]:
    settings = {**_SETTINGS, **more} | {
        "spark.driver.extraClassPath": os.pathsep.join(map(str, path)),
        "spark.driver.extraJavaOptions": f"{_JAVA} {leaves_in(folder)}",
    }
    # Without the packages that tests have, and so without their Spark.
    command = [sys.executable, "-S", str(_STATEMENTS), *(f"{name}={value}" for name, value in settings.items())]
    environment = {
        **os.environ,
        "PYTHONPATH": str(library),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder),
    }
    environment.pop("SPARK_HOME", None)
    log = folder / "spark.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            cwd=folder,
            env=environment,
        ) as process,
    ):
        try:
            yield SparkSql(process, log)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def installed() -> tuple[Path, Path]:
    """The folder of Spark's packages for Python, and Iceberg's runtime."""
    artifact = f"org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:{ICEBERG}"
    (runtime,) = jars(f"iceberg-{ICEBERG}", artifact).glob("*.jar")
    return packages(f"pyspark-{SPARK}", _REQUIREMENTS), runtime


def packages(name: str, locked: Path) -> Path:
    """The folder `name` of the cache with what a file of requirements names: libraries for `python -S`."""

    def install(scratch: Path) -> Path:
        target = scratch / "packages"
        command = [
            str(Path(sys.executable).parent / "uv"),
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--require-hashes",
        ]
        command += ["--python", sys.executable, "--target", str(target), "-r", str(locked)]
        checked(command, f"installing {locked.name} with uv", FETCH_S)
        return target

    return cached(name, install)
