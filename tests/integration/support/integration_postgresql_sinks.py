"""Changefeeds of a PostgreSQL into every kind of sink, verified while they run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

from changefeed.reading.progress import NoProgress
from changefeed.schema.sql.definition import Definition
from changefeed.schema.sql.dialect import Dialect
from changefeed.schema.sql.tables import create_table
from changefeed.upstream.postgresql.schema.catalog import read_published
from changefeed.upstream.postgresql.server import PostgresqlSession
from changefeed.verify.choice import verify_sink
from integration_kafka_broker import Broker
from integration_mariadb import MariaDb
from integration_postgresql import reached
from integration_postgresql_world import World

TIDB_EXTENSION = {"protocol": "canal-json", "canalJson": {"enableTidbExtension": True}}


def into_files(world: World, **options: Any) -> dict[str, Any]:
    return {"storage": {"uri": world.lake.as_uri(), "flushInterval": "100ms", **options}}


def into_mysql(world: World, database: MariaDb) -> dict[str, Any]:
    """It has the published tables, without a row."""
    with closing(PostgresqlSession(reached(world.database))) as session:
        tables = read_published(session, "changefeed").tables
    dialect = Dialect("MariaDB", (10, 11, 0))
    database.query(
        "DROP DATABASE IF EXISTS bank",
        "DROP DATABASE IF EXISTS changefeed",
        "CREATE DATABASE bank",
        *(create_table(Definition.of(table), dialect) for table in tables),
    )
    return {"mysql": {"uri": f"mysql://127.0.0.1:{database.port}"}}


def into_kafka(broker: Broker, prefix: str, **more: Any) -> dict[str, Any]:
    """A topic a table, which begin with `prefix`."""
    rules = [{"matcher": ["*.*"], "topic": f"{prefix}_{{schema}}_{{table}}", "partition": "index-value"}]
    uri = f"kafka://{broker.cluster.brokers}/{prefix}"
    return {"kafka": {"uri": uri, "dispatchers": rules, "delivery": "exactly-once", "replicationFactor": 1, **more}}


class Verified:
    """A changefeed that runs, and what verify says of it."""

    def __init__(self, world: World, **spec: Any) -> None:
        self.world, self.spec = world, spec

    async def verify(self) -> Any:
        return await verify_sink(self.world.changefeed(**self.spec), self.world.secrets, None, NoProgress())

    async def query(self, *statements: str) -> None:
        await asyncio.to_thread(self.world.database.query, *statements)


@asynccontextmanager
async def running_into(world: World, sink: dict[str, Any], **spec: Any) -> AsyncIterator[Verified]:
    """It is drained at the end."""
    run = world.run(sink=sink, **spec)
    published = world.lake / "metadata"
    await run.until(lambda: run.driver is not None and run.view.progress, "the driver runs")
    await run.until(lambda: "storage" not in sink or published.exists(), "a checkpoint is published")
    if spec.get("initialCopy"):
        await world.to_now(run)  # a table that is being copied must not be altered
    yield Verified(world, sink=sink, **spec)
    await run.drained()
