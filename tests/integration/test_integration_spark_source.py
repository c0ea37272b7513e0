"""The Spark source in real Spark sessions: docs/spark-source.md as it stands, deaths of the job, TLS, and our wheel."""

from __future__ import annotations

import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pytest
from changefeed_devcluster.certificates import Certificates
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.schema import NewColumn
from conftest import BIN, wait_for
from integration_inprocess import World, insert, new_world
from integration_java import jars, leaves_in
from integration_source import expected, found, write_some
from pyiceberg.catalog.sql import SqlCatalog

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "spark-source.md"
DEADLINE_S = 400.0
pytestmark = pytest.mark.timeout(1300)  # three sessions, on two cores that have other tests to run
STREAM = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
changes = spark.readStream.format("changefeed").options(**OPTIONS).load()

def write(batch, number):
    batch.write.mode("overwrite").parquet(f"lake/batch={number}")

stream = changes.writeStream.foreachBatch(write).option("checkpointLocation", "checkpoint")
stream.trigger(**TRIGGER).start().awaitTermination()
"""
SHOWN = '\norders.toDF().write.parquet("shown")\n'
BATCH = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.read.format("changefeed").options(**OPTIONS).load().write.parquet("lake")
"""


def recipe(title: str, world: World) -> str:
    """The first code below a heading, for this upstream."""
    section = DOCUMENT.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert code is not None, title
    return (
        code[1]
        .replace("http://pd:2379", f"http://{world.cluster.pd_address}")
        .replace("START", str(world.start_ts + 1))
    )


def given(world: World, **more: str) -> dict[str, str]:
    """Options."""
    options = {"pdAddresses": f"http://{world.cluster.pd_address}", "tables": "shop.orders"}
    return options | {"startingVersion": str(world.start_ts + 1)} | more


@contextmanager
def job(folder: Path, code: str, python: Path | None = None, **names: Any) -> Iterator[subprocess.Popen[str]]:
    """One in a session of its own, which is killed at the end of the block, if it still runs: as by power loss.

    `names` are defined before the code. What it says is in `job.log`.
    """
    head = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    environment = os.environ | {
        "PYSPARK_PYTHON": str(python or sys.executable),
        "PYSPARK_SUBMIT_ARGS": shlex.join(["--driver-java-options", leaves_in(folder), "pyspark-shell"]),
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    if python is None:  # Spark looks for modules in folders, and what is installed to be edited is in none
        environment["PYTHONPATH"] = str(ROOT / "spark-apps")
    with (folder / "job.log").open("a") as log:
        process = subprocess.Popen(
            [str(python or sys.executable), "-c", head + code],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run(folder: Path, code: str, python: Path | None = None, **names: Any) -> None:
    with job(folder, code, python, **names) as process:
        assert process.wait(DEADLINE_S) == 0, (folder / "job.log").read_text()[-6000:]


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of all Parquet files below the folder."""
    table: pa.Table = pyarrow.dataset.dataset(folder, format="parquet", exclude_invalid_files=True).to_table()
    found: list[dict[str, Any]] = table.to_pylist()
    return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """With some history."""
    with new_world(tmp_path_factory.mktemp("spark")) as made:
        for number in range(20):
            made.insert(range(10 * number, 10 * number + 10))
        with made.tidb.begin() as txn:
            txn.update(made.orders, {"id": 7, "name": "seven"})
            txn.delete(made.orders, 8)
        yield made


def history(world: World) -> Any:
    return expected(world.tidb.history(world.orders, world.start_ts, world.tidb.now()))


def standing(changes: list[dict[str, Any]]) -> dict[int, str]:
    """The table that changes leave."""
    kept: dict[int, str] = {}
    for row in sorted(changes, key=lambda row: row["_commit_version"]):
        if row["_change_type"] == "delete":
            kept.pop(row["id"])
        elif row["_change_type"] != "update_preimage":
            kept[row["id"]] = row["name"]
    return kept


def upstream_rows(world: World) -> dict[int, str]:
    return {key: row["name"] for key, row in world.tidb.snapshot(world.orders, world.tidb.now()).items()}


def test_parquet(world: World, tmp_path: Path) -> None:
    run(tmp_path, recipe("Parquet", world))
    changes = rows(tmp_path / "lake" / "orders")
    assert found(changes) == history(world)
    assert standing(changes) == upstream_rows(world)


def test_iceberg(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = recipe("Iceberg", world)
    for _ in range(2):  # the second has the last batch to run again, which is known
        run(tmp_path, code)
        shutil.rmtree(tmp_path / "checkpoints" / "orders" / "commits")
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse="warehouse")
    assert found(catalog.load_table("shop.orders").scan().to_arrow().to_pylist()) == history(world)


def test_a_bounded_read(world: World, tmp_path: Path) -> None:
    """Between two versions, by tasks that pull."""
    first = world.tidb.history(world.orders, world.start_ts, world.tidb.now())[50].commit_ts
    run(tmp_path, BATCH, OPTIONS=given(world, startingVersion=str(first)))
    assert found(rows(tmp_path / "lake")) == expected(world.tidb.history(world.orders, first - 1, world.tidb.now()))


def test_a_job_that_is_killed_twice_loses_and_doubles_nothing(tmp_path: Path) -> None:
    with new_world(tmp_path) as world:
        stop = threading.Event()
        writer = threading.Thread(target=write_until, args=(world, stop))
        writer.start()
        try:
            options = given(world, maxRowsPerTrigger="40")
            for _ in range(2):
                before = planned(tmp_path)
                with job(tmp_path, STREAM, OPTIONS=options, TRIGGER={"processingTime": "0 seconds"}) as process:
                    wait_for(
                        lambda process=process, before=before: planned(tmp_path) > before + 3 or process.poll(),
                        "batches are planned",
                        DEADLINE_S,
                    )
                    assert process.poll() is None, (tmp_path / "job.log").read_text()[-6000:]
        finally:
            stop.set()
            writer.join()
        run(tmp_path, STREAM, OPTIONS=given(world), TRIGGER={"availableNow": True})
        changes = rows(tmp_path / "lake")
        assert found(changes) == history(world)
        assert standing(changes) == upstream_rows(world)


def planned(folder: Path) -> int:
    """Batches, by Spark's own log."""
    return len(list((folder / "checkpoint" / "offsets").glob("[0-9]*")))


def write_until(world: World, stop: threading.Event) -> None:
    rng, alive = random.Random(5), set[int]()
    while not stop.wait(0.05):
        write_some(world, rng, alive, below=300, least=4, most=4)


def test_an_upstream_with_tls_and_a_ddl(tmp_path: Path) -> None:
    """The query is ended by the DDL, loaded anew, and no key of the client is in anything that Spark keeps or says."""
    secure = Certificates(tmp_path / "tls", ["127.0.0.1"])
    with DevCluster(stores=2, min_ts_interval=0.05, certificates=secure, common_names=["changefeed"]) as cluster:
        world = World(cluster, tmp_path)
        world.insert(range(10))
        tls = {"pdAddresses": f"https://{cluster.pd_address}", "tlsDir": str(tmp_path / "tls" / "client")}
        options = given(world, **tls)
        with job(tmp_path, STREAM, OPTIONS=options, TRIGGER={"processingTime": "0 seconds"}) as process:
            wait_for(
                lambda: list((tmp_path / "lake").glob("batch=*/_SUCCESS")) or process.poll(),
                "rows over TLS",
                DEADLINE_S,
            )
            wider = world.tidb.add_column(world.orders, NewColumn("age", "int", nullable=True))
            insert(world, wider, range(10, 15), name="n", age=3)
            assert process.wait(DEADLINE_S) == 1, "a DDL ends it"
        said = (tmp_path / "job.log").read_text()
        assert f"at ts {world.tidb.last_ddl_ts} (ADD_COLUMN of shop.orders" in said
        assert "column age is new" in said
        assert "restart with the same checkpoint" in said
        run(tmp_path, STREAM, OPTIONS=options, TRIGGER={"availableNow": True})
        changes = rows(tmp_path / "lake")
        assert sorted(row["id"] for row in changes) == list(range(15))
    key = (tmp_path / "tls" / "client" / "tls.key").read_text().splitlines()[1]
    kept = [path for path in [tmp_path / "job.log", *(tmp_path / "checkpoint").rglob("*")] if path.is_file()]
    assert [path for path in kept if key in path.read_text(errors="replace")] == []


def test_the_wheel_in_a_new_environment_with_the_oldest_spark_and_delta(world: World, tmp_path: Path) -> None:
    """What `pip install` gives is all that is needed; Spark finds the format by itself."""
    python = environment(tmp_path, "pyspark==4.2.0", "delta-spark==4.4.0")
    delta = jars("delta-spark-4.4.0", "io.delta:delta-spark_4.2_2.13:4.4.0")
    few = {"spark.sql.shuffle.partitions": "2", "spark.databricks.delta.snapshotPartitions": "2"}
    config = few | {"spark.jars": ",".join(map(str, delta.glob("*.jar")))}
    code = recipe("Delta", world).replace(
        "configure_spark_with_delta_pip(builder)",
        f"builder.config(map={config!r})",  # which would fetch them anew
    )
    run(tmp_path, code + SHOWN, python)
    assert {row["id"]: row["name"] for row in rows(tmp_path / "shown")} == upstream_rows(world)


def environment(folder: Path, *more: str) -> Path:
    """A virtual environment with our wheel and its extra `spark`; its Python."""
    uv = [str(BIN / "uv")]
    source = folder / "source"  # a build leaves things behind
    for name in ("spark-apps", "devcluster", "operator"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        str(source),
    ]
    subprocess.run(command, check=True, timeout=DEADLINE_S)
    (wheel,) = folder.glob("*.whl")
    assert "pyspark_changefeed/__init__.py" in zipfile.ZipFile(wheel).namelist()
    subprocess.run([*uv, "venv", "-q", "--python", sys.executable, str(folder / "new")], check=True, timeout=60)
    python = folder / "new" / "bin" / "python"
    install = [*uv, "pip", "install", "-q", "--python", str(python), f"{wheel}[spark]", *more]
    subprocess.run(install, check=True, timeout=600)
    return python
