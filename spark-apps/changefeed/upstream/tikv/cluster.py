"""A TiKV cluster with TiDB's tables in it, as an upstream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from changefeed.clock import Clock
from changefeed.model.table_copy import bounds_of
from changefeed.schema.history import SchemaHistory
from changefeed.schema.table_info import TableInfo
from changefeed.upstream.contract import GATHER_SECONDS, FeedEvent, Hold, SchemaEvent
from changefeed.upstream.tikv.client.holds import holds
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.client.safepoint import Safepoint
from changefeed.upstream.tikv.tidb.memcomparable import decode_bytes

if TYPE_CHECKING:
    from changefeed.upstream.tikv.ddl_span import DdlSpan
    from changefeed.upstream.tikv.feed.span_feed import SpanFeed

# What reads and pulls is loaded where it is used: a Job that renews a hold every few minutes has no use for it.


@dataclass(frozen=True)
class TikvCluster:
    """PD assigns every ts, keeps history from GC, and knows the regions."""

    pd: PdClient

    has_old_definitions = True

    @property
    def cluster_id(self) -> int:
        return self.pd.cluster_id

    async def now(self) -> int:
        return await self.pd.tso()

    async def now_ms(self) -> int:
        return await self.pd.pd_ms()

    def history_lease(self, name: str, ttl_seconds: int) -> Safepoint:
        return Safepoint(self.pd, name, ttl_seconds)

    async def holds(self) -> list[Hold]:
        return await holds(self.pd)

    async def release(self, name: str) -> None:
        """As Upstream.release."""
        await self.history_lease(name, 0).remove()

    async def schema(self, ts: int, known: Mapping[int, TableInfo] | None = None) -> SchemaHistory:
        """TiKV has the definitions of then, whatever the log knows."""
        from changefeed.upstream.tikv.client.kv import Snapshot
        from changefeed.upstream.tikv.tidb.snapshot import load_schema

        return await load_schema(Snapshot(self.pd, ts), ts)

    def schema_feed(self, schema: SchemaHistory, emit: Callable[[SchemaEvent], Awaitable[None]]) -> DdlSpan:
        from changefeed.upstream.tikv.ddl_span import DdlSpan

        return DdlSpan(self.pd, schema, emit)

    def feed(
        self,
        emit: Callable[[FeedEvent], Awaitable[None]],
        clock: Clock | None = None,
        *,
        scratch_folder: Path | None = None,
        room: Callable[[], Awaitable[None]] | None = None,
        gather_s: float = GATHER_SECONDS,
        scan_rate: float | None = None,
    ) -> SpanFeed:
        from changefeed.upstream.scratch import scratch_in
        from changefeed.upstream.tikv.feed.span_feed import SpanFeed

        scratch = None if scratch_folder is None else scratch_in(scratch_folder)
        return SpanFeed(self.pd, emit, clock, scratch=scratch, room=room, gather_s=gather_s, scan_rate=scan_rate)

    async def check(self, selects: Callable[[str, str], bool]) -> list[str]:
        """Whoever can ask can read."""
        return []

    async def tables_now(self) -> None:
        """Every DDL is in the schema feed."""

    def check_can_copy(self) -> None:
        """Every table can be read as of a ts for as long as its history is held."""

    async def bounds(self, table_id: int, most: int) -> tuple[bytes, ...]:
        """At borders of regions."""
        from changefeed.upstream.tikv.tidb.keys import table_span

        start, end = table_span(table_id)
        regions = await self.pd.scan_regions(start, end)
        borders = [decode_bytes(region.start_key)[0] for region in regions if region.start_key]
        return bounds_of(start, end, borders, most)

    async def copy_bounds(self, table: TableInfo, table_id: int, most: int) -> tuple[bytes, ...]:
        return await self.bounds(table_id, most)

    async def close(self) -> None:
        await self.pd.close()
