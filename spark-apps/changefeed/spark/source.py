"""The streaming source: an offset is a plan's record number, a task reads, sorts and encodes its share of the plan.

What it yields are descriptors of spooled pieces of output files, never rows (DESIGN.md 3.4).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from changefeed.model.record import Work, WorkEntry
from changefeed.objectstore import Place
from changefeed.objectstore.patience import Patience
from changefeed.spark.at_work import at_work
from changefeed.spark.owner_client import OwnerClient, reporting
from changefeed.wire.owner import OwnerAddress

NAME = "changefeed"


class EntriesPartition(InputPartition):
    """Some entries of one plan, as JSON of `Work`: everything that a task knows."""

    def __init__(self, work: str) -> None:
        super().__init__(work)
        self.work = work


def pack(entries: Sequence[WorkEntry], partitions: int) -> list[list[WorkEntry]]:
    """Entries in at most `partitions` groups of about equal bytes: a tiny task costs 60 ms (facts, Spark 5.3)."""
    groups: list[list[WorkEntry]] = [[] for _ in range(min(partitions, len(entries)))]
    sizes = [0] * len(groups)
    for entry in sorted(entries, key=lambda e: (-e.plan_entry.estimate, e.plan_entry.entry)):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(entry)
        sizes[smallest] += max(entry.plan_entry.estimate, 1)
    return groups


class PlanReader(DataSourceStreamReader):
    """Driver side: asks the owner. Task side (`read`): a function of its partition alone."""

    def __init__(self, owner: OwnerAddress, state: Place, partitions: int) -> None:
        self._owner = owner
        self._state = state
        self._partitions = partitions
        self._client: OwnerClient | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def initialOffset(self) -> dict[str, int]:
        return {"record": 0}

    def latestOffset(self) -> dict[str, int]:
        return {"record": self._connected().latest()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        work = self._connected().plan(end["record"])
        groups = pack(work.entries, self._partitions)
        return [EntriesPartition(_share(work, group).model_dump_json(by_alias=True)) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from changefeed.spark.read_task import describe

        assert isinstance(partition, EntriesPartition)
        work = Work.model_validate_json(partition.work)
        with reporting(self._owner), at_work(self._owner) as share:
            yield from share.making(describe(work, self._state, Patience(math.inf, failed=share.waits)))

    def commit(self, end: dict[str, int]) -> None:
        """Nothing: the log is the truth, Spark's offsets are scratch (rule 20)."""

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()

    def _connected(self) -> OwnerClient:
        if self._client is None:
            self._client = OwnerClient(self._owner)
        return self._client


def _share(work: Work, entries: list[WorkEntry]) -> Work:
    used = {entry.plan_entry.table_info for entry in entries}
    table_infos = {key: info for key, info in work.table_infos.items() if key in used}
    return work.model_copy(update={"entries": tuple(entries), "table_infos": table_infos})


def source_for(owner: OwnerAddress, state: Place, partitions: int) -> type[DataSource]:
    """A data source class that carries `owner` in its closure, so that cloudpickle takes it along by value."""

    class ChangefeedSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return NAME

        def schema(self) -> Any:
            from pyspark.sql.pandas.types import from_arrow_schema

            from changefeed.pipeline.spool import DESCRIPTOR_SCHEMA

            return from_arrow_schema(DESCRIPTOR_SCHEMA)

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return PlanReader(owner, state, partitions)

    return ChangefeedSource
