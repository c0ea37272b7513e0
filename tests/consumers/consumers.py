"""`make consumers`: runs the readers that people use over what the product writes, and writes what they make of it to
docs/reference/consumers.md.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LOCKED = ROOT / "requirements" / "consumers.txt"
sys.path[:0] = [str(HERE), *(str(HERE.parent / "integration" / each) for each in ("", "support"))]

from consumers_comparison import judged  # noqa: E402
from consumers_history import Lake, history, written  # noqa: E402
from consumers_page import Found, page  # noqa: E402
from consumers_reading import APPEND, CSV, CSV_LF, JSON, PARQUET, UNQUOTED, UPSERT  # noqa: E402
from consumers_topics_page import topics_section  # noqa: E402
from integration_spark_sql import ICEBERG, installed, packages  # noqa: E402

FORMATS = (CSV, CSV_LF, UNQUOTED, JSON, PARQUET, APPEND, UPSERT)
READ_S = 1800.0


@dataclass(frozen=True)
class Python:
    """What runs a reader. `path`: where it looks for libraries first, beside those of its own."""

    command: tuple[str, ...]
    path: tuple[Path, ...] = (HERE,)
    variables: Mapping[str, str] = field(default_factory=dict)

    def run(self, program: str, *arguments: str, folder: Path, log: Path) -> None:
        """Raises CalledProcessError."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, self.path)), **self.variables}
        with log.open("wb") as said:
            subprocess.run(
                [*self.command, "-c", program, *arguments],
                check=True, env=environment, cwd=folder, stdout=said, stderr=said, timeout=READ_S,
            )  # fmt: skip


def project() -> Python:
    """This one, with what tests have for servers and for Java."""
    return Python((sys.executable,), (HERE, HERE.parent / "integration", HERE.parent / "integration" / "support"))


@dataclass(frozen=True)
class Tool:
    """`module`: of `readers`."""

    name: str
    module: str
    python: Callable[[], Python] = project


#: What the project uses itself, so that CI reads with them too.
OWN = (
    Tool("DuckDB", "read_duckdb"),
    Tool("polars", "read_polars"),
    Tool("pyarrow", "read_pyarrow"),
    Tool("pyiceberg", "read_pyiceberg"),
)


def locked() -> Python:
    """With the libraries of requirements/consumers.txt instead of the project's."""
    digest = hashlib.sha256(LOCKED.read_bytes()).hexdigest()[:12]
    return Python((sys.executable, "-S"), (HERE, packages(f"consumers-{digest}", LOCKED)))


def spark_with_iceberg() -> Python:
    """An earlier Spark, as Iceberg has no runtime for the project's."""
    library, runtime = installed()
    variables = {"PYSPARK_SUBMIT_ARGS": f"--driver-class-path {runtime} pyspark-shell", "SPARK_LOCAL_IP": "127.0.0.1"}
    variables |= {"SPARK_HOME": str(library / "pyspark"), "ICEBERG": ICEBERG}
    return Python((sys.executable, "-S"), (HERE, library), variables)


OTHERS = (
    Tool("Flink", "read_flink"),
    Tool("MariaDB LOAD DATA", "read_mariadb"),
    Tool("Spark", "read_spark"),
    Tool("ClickHouse", "read_chdb", locked),
    Tool("daft", "read_daft", locked),
    Tool("DuckDB", "read_duckdb", locked),  # its 2.0 has no extension for Iceberg in a registry
    Tool("fastparquet", "read_fastparquet", locked),
    Tool("iceberg-rust", "read_datafusion", locked),
    Tool("pandas", "read_pandas", locked),
    Tool("Spark", "read_spark_iceberg", spark_with_iceberg),
)


def read(tool: Tool, lake: Lake, folder: Path) -> Found:
    """Raises CalledProcessError, with what the reader printed, when its process fails as a whole."""
    task, answer = folder / f"{tool.module}.task", folder / f"{tool.module}.answer"
    task.write_bytes(pickle.dumps(lake.parts))
    program = (
        "import sys, pathlib, consumers_reading; consumers_reading.main(sys.argv[1], *map(pathlib.Path, sys.argv[2:]))"
    )
    log = folder / f"{tool.module}.log"
    tool.python().run(program, tool.module, str(task), str(answer), folder=folder, log=log)
    version, answers = pickle.loads(answer.read_bytes())
    return Found(tool.name, version, tuple(judged(lake, each) for each in answers))


async def lake_in(folder: Path, formats: Sequence[str] = FORMATS) -> Lake:
    with history(folder) as (world, tables):
        return await written(world, tables, formats)


def main(into: Path) -> None:
    with tempfile.TemporaryDirectory() as aside:
        folder = Path(aside)
        lake = asyncio.run(lake_in(folder))
        found = []
        for tool in (*OWN, *OTHERS):
            print(f"reading with {tool.name}", file=sys.stderr)  # noqa: T201
            found.append(read(tool, lake, folder))
        print("reading topics", file=sys.stderr)  # noqa: T201
        apart = folder / "topics"
        apart.mkdir()
        into.write_text(page(found) + topics_section(apart))


if __name__ == "__main__":
    main(ROOT / "docs" / "reference" / "consumers.md")
