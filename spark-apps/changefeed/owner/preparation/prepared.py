"""A changefeed that a driver has claimed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from changefeed.eventstore.run_folder import RunFolder
from changefeed.log.log import Log
from changefeed.log.state import State
from changefeed.objectstore import Location
from changefeed.owner.alive import Alive
from changefeed.owner.pace import pace_of
from changefeed.owner.planning.plan_entries import Table
from changefeed.owner.planning.syncpoints import Syncpoints
from changefeed.owner.pulling.quota import segment_bytes
from changefeed.puller.task import Limits, PullerJob
from changefeed.schema.history import SchemaHistory
from changefeed.schema.table_info import TableInfo
from changefeed.sink.claim import SinkClaim, Taken
from changefeed.spec.model import Changefeed
from changefeed.upstream.contract import Access, HistoryLease, Upstream


@dataclass
class Prepared:
    """A claimed changefeed with all that a run needs."""

    changefeed: Changefeed
    upstream: Upstream
    history: HistoryLease
    log: Log
    state: State
    nonce: str
    codec: str
    state_location: Location
    sink: SinkClaim
    schema: SchemaHistory
    tables: dict[int, TableInfo]  # by physical id, which is the dispatcher's
    run_folder: RunFolder
    finished: bool = False
    alive: Alive | None = None  # where the state has no lock files

    @property
    def epoch(self) -> int:
        return self.state.epoch.number

    @property
    def taken(self) -> Taken:
        return Taken(self.state, self.state_location.uri)

    def puller_job(self, upstream: Access) -> PullerJob:
        """`upstream`: for any cluster; pullers are held to the one that the log is of."""
        spec, pace = self.changefeed.spec, pace_of(self.changefeed)
        return PullerJob(
            count=spec.spark.pullers.count,
            upstream=upstream.of_cluster(self.state.cluster_id),
            state=self.state_location,
            limits=Limits(
                quota_bytes=spec.spark.pullers.memory_quota,
                roll_bytes=segment_bytes(spec.event_store.quota, spec.spark.pullers.count),
                roll_interval=pace.roll_s,
                gather_s=pace.gather_s,
                buffer_bytes=spec.event_store.buffer_size // spec.spark.pullers.count,
                scan_rate=spec.upstream.scan_rate and spec.upstream.scan_rate / spec.spark.pullers.count,
            ),
        )

    def syncpoints(self) -> Syncpoints | None:
        interval_s, state = self.changefeed.spec.sink.syncpoint_interval_s, self.state
        if interval_s is None:
            return None
        return Syncpoints(round(interval_s * 1000), state.whole_from_ts, state.reached_ts())

    def planned_tables(self) -> dict[int, Table]:
        return {
            dispatcher: Table(
                dispatcher, info.hash, version, self.sink.outputs.series(info, dispatcher, version), info.full_name
            )
            for dispatcher, info in self.tables.items()
            for version in [self.table_version(dispatcher)]
        }

    def table_version(self, dispatcher: int) -> int:
        """Return the version of the rows that are written next.

        A table that rules have left out and select again may have changed.
        """
        if self.state.is_redefined(dispatcher, self.tables[dispatcher].hash):
            return self.schema.snapshot_ts
        return self.state.table_version(dispatcher)

    def table_infos(self) -> dict[str, dict[str, Any]]:
        return {info.hash: info.to_json() for info in self.tables.values()}
