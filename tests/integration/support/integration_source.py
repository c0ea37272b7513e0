"""What Spark does with a stream, without Spark: its logs and its order of calls, which may end anywhere."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from changefeed.source.bounded import plan
from changefeed.source.followed_table import read_schema_now
from changefeed.source.offset import Offset
from changefeed.source.options import SourceOptions
from changefeed.source.stream import TableStream
from changefeed_devcluster.tidb.server import CommittedChange
from integration_inprocess import World

Row = dict[str, Any]
_IMAGES = {
    "insert": (("insert", "row"),),
    "delete": (("delete", "old_row"),),
    "update": (("update_preimage", "old_row"), ("update_postimage", "row")),
}


class Died(Exception):
    """The query's process is gone."""


def options(world: World, **more: str) -> SourceOptions:
    given = {
        "pdAddresses": f"http://{world.cluster.pd_address}",
        "tables": "shop.orders",
        "startingVersion": str(world.start_ts + 1),
        "eventStore": (world.folder / "events").as_uri(),
    }
    return SourceOptions.parse(given | more)


class Query:
    """One run of a query."""

    def __init__(self, spark: PlayedSpark, stream: TableStream, columns: Any) -> None:
        self._spark = spark
        self.stream = stream
        self._columns = columns
        self._is_new = True

    async def batch(self, die: str = "") -> bool:
        """Run the next one, or that which the run before has planned only; False: there is nothing.

        `die`: behind what: "planned", "read", "written".
        """
        spark = self._spark
        number = len(spark.offsets) - 1
        if not (self._is_new and number == spark.committed):
            if spark.offsets:
                await self.stream.commit(Offset.from_json(spark.offsets[-1]))
            start = await self._start(len(spark.offsets))
            end = json.loads(json.dumps((await self.stream.latest(Offset.from_json(start))).to_json()))
            if end == start:
                return False
            spark.offsets.append(end)
            number += 1
            self._is_new = False
            _die_at("planned", die)
            await self._run(number, start, die)
            return True
        self._is_new = False
        await self._run(number, await self._start(number), die)
        return True

    async def until(self, ts: int) -> None:
        """All batches with changes up to this ts."""
        while True:
            if await self.batch():
                continue
            if self.stream.readable_ts() >= ts:
                return
            await self.stream.next_news()

    async def _start(self, number: int) -> Row:
        """Return where a batch starts: Spark does not log the first one."""
        return self._spark.offsets[number - 1] if number else (await self.stream.initial()).to_json()

    async def _run(self, number: int, start: Row, die: str) -> None:
        parts = await self.stream.partitions(Offset.from_json(start), Offset.from_json(self._spark.offsets[number]))
        rows = [_rows_of(part, self._columns) for part in parts]
        _die_at("read", die)
        self._spark.sink[number] = rows
        _die_at("written", die)
        self._spark.committed = number + 1


class PlayedSpark:
    """A checkpoint, and a sink that takes each batch once, by its number."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.offsets: list[Row] = []  # ends of batches
        self.committed = 0  # batches
        self.sink: dict[int, list[list[Row]]] = {}

    @asynccontextmanager
    async def query(self, schema: Any = None) -> AsyncIterator[Query]:
        """Loaded anew; `schema`: the user's own. A Died in the block ends it, with what the process had."""
        read = schema or await read_schema_now(self.options)
        stream = TableStream(self.options, read)
        try:
            yield Query(self, stream, read if schema else read.columns)
        except Died:
            pass
        finally:
            await stream.close()

    def rows(self) -> list[Row]:
        return [row for _, parts in sorted(self.sink.items()) for part in parts for row in part]

    def versions(self) -> list[set[int]]:
        """Commit versions of each batch."""
        return [{row["_commit_version"] for part in parts for row in part} for _, parts in sorted(self.sink.items())]


async def read_bounded(options: SourceOptions, schema: Any = None) -> list[list[Row]]:
    """By part."""
    read = schema or await read_schema_now(options)
    columns = schema or read.columns
    return [await asyncio.to_thread(_rows_of, part, columns) for part in await plan(options, read)]


def _rows_of(part: Any, columns: Any) -> list[Row]:
    return [row for batch in part.read(columns) for row in batch.to_pylist()]


def write_some(world: World, rng: random.Random, alive: set[int], below: int, most: int, least: int = 1) -> None:
    """A transaction of `least` to `most` changes of orders; `alive`: the ids that there are."""
    with world.tidb.begin() as txn:
        for number in rng.sample(range(below), rng.randint(least, most)):
            if number not in alive:
                txn.insert(world.orders, {"id": number, "name": f"n{rng.randint(0, 9)}"})
                alive.add(number)
            elif rng.random() < 0.3:
                txn.delete(world.orders, number)
                alive.remove(number)
            else:
                txn.update(world.orders, {"id": number, "name": f"n{rng.randint(0, 9)}"})


def expected(changes: Iterable[CommittedChange], columns: Iterable[str] = ("id", "name")) -> Counter[tuple[Any, ...]]:
    """(change type, commit version, cells) of an upstream's history."""
    return Counter(
        (kind, change.commit_ts, *(getattr(change, image).get(name) for name in columns))
        for change in changes
        for kind, image in _IMAGES[change.op]
    )


def found(rows: Iterable[Row], columns: Iterable[str] = ("id", "name")) -> Counter[tuple[Any, ...]]:
    return Counter((row["_change_type"], row["_commit_version"], *(row[name] for name in columns)) for row in rows)


def _die_at(here: str, die: str) -> None:
    if here == die:
        raise Died(here)
