"""The upstream's side of the comparison: an incremental scan of each region, by a small reader of its own.

`EventFeedV2` answers a registration at `after_ts` with every version committed later (docs/design/tikv.md, Order of
rows), so one registration per region, up to INITIALIZED, is the complete history. It must never treat a scan as
complete that may lack a transaction: it waits for those that are open and started before `upto_ts`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import cache
from typing import Any, Protocol

import grpc
import grpc.aio
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.errors import Transient
from changefeed.upstream.attempts import Attempts
from changefeed.upstream.tikv.client.channels import kept_out
from changefeed.upstream.tikv.client.leader import PATIENCE, reason
from changefeed.upstream.tikv.client.pd import LocatedRegion, PdClient
from changefeed.upstream.tikv.client.requests import change_data
from changefeed.upstream.tikv.tidb.memcomparable import decode_bytes, encode_bytes
from changefeed.verify.upstream.read_ahead import read_ahead
from changefeed.wire import cdcpb_pb2
from changefeed.wire.thinned import MessageColumns

_REQUEST = 1
CHUNK_BYTES = 8 << 20

_DELETE = int(cdcpb_pb2.Event.Row.DELETE)
_PREWRITE, _COMMITTED = int(cdcpb_pb2.Event.PREWRITE), int(cdcpb_pb2.Event.COMMITTED)
_INITIALIZED = pa.scalar(int(cdcpb_pb2.Event.INITIALIZED), pa.int32())

SCAN_SCHEMA = pa.schema(
    [
        ("commit_ts", pa.uint64()),
        ("start_ts", pa.uint64()),
        ("delete", pa.bool_()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("old_value", pa.binary()),
    ]
)


class VersionSink(Protocol):
    """Takes a history piece by piece; what was added counts once it is kept."""

    async def add(self, versions: pa.Table) -> None:
        """Some versions of one region, SCAN_SCHEMA."""
        ...

    async def keep(self) -> None:
        """The region is read: what was added since the last `keep` or `drop` is all of it."""
        ...

    async def drop(self) -> None:
        """The region could not be read to its end: forget what was added; it comes again."""
        ...


class Collected:
    """Versions in memory, where there are few."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = [SCAN_SCHEMA.empty_table()]

    async def add(self, versions: pa.Table) -> None:
        self._tables.append(versions)

    async def keep(self) -> None:
        pass

    async def drop(self) -> None:
        self._tables = self._tables[:1]

    def table(self) -> pa.Table:
        return pa.concat_tables(self._tables)


class RegionNotReadable(Exception):
    """The region can't be read as it was looked up, or not yet."""


async def read_history(
    pd: PdClient, start: bytes, end: bytes, after_ts: int, upto_ts: int, into: VersionSink, patience: float = PATIENCE
) -> None:
    """Every committed version of the raw `[start, end)` with after_ts < commit_ts <= upto_ts, once, into `into`.

    Raises Transient after `patience` seconds without a region read.
    """
    attempts = Attempts(f"Reading the history of [{start.hex()}, {end.hex()})", patience)
    cursor, last = encode_bytes(start), encode_bytes(end)  # all below `cursor` is read
    while cursor < last:
        try:
            for region in await pd.scan_regions(start, end):
                upper = min(region.end_key, last) if region.end_key else last
                if upper > cursor:
                    await read_region(pd, region, (cursor, upper), (after_ts, upto_ts), into, patience)
                    await into.keep()
                    cursor = upper
                    attempts.progress()
        except (RegionNotReadable, Transient) as why:
            await into.drop()
            await attempts.pause(str(why).rstrip("."), base=0.02)


async def read_region(
    pd: PdClient,
    region: LocatedRegion,
    span: tuple[bytes, bytes],
    bounds: tuple[int, int],
    into: VersionSink,
    patience: float,
) -> None:
    """Add the versions inside `span` (encoded) with a commit ts in `bounds`. Raises RegionNotReadable, Transient."""
    channel = pd.store_channel(await pd.store_address(region.leader_store_id))
    call: Any = channel.stream_stream(
        change_data.METHOD, request_serializer=cdcpb_pb2.ChangeDataRequest.SerializeToString
    )(metadata=change_data.METADATA)
    try:
        await call.write(_request(pd, region, span, bounds[0]))
        async with aclosing(
            read_ahead(_versions(call, region, _VersionChunk(region.id, span, bounds), patience))
        ) as chunks:
            async for versions in chunks:
                await into.add(versions)
    except grpc.aio.AioRpcError as error:
        if refused := kept_out(f"Store {region.leader_store_id}", "TiKV", error):
            raise refused from error
        pd.forget_store(region.leader_store_id)
        raise RegionNotReadable(f"store {region.leader_store_id} does not answer: {reason(error)}") from error
    except TimeoutError as error:
        raise RegionNotReadable(f"region {region.id} is silent") from error
    finally:
        call.cancel()


async def _versions(
    call: Any, region: LocatedRegion, chunk: _VersionChunk, patience: float
) -> AsyncGenerator[pa.Table]:
    """Until the region's scan is complete. Raises RegionNotReadable, TimeoutError."""
    while not chunk.is_last:
        async with asyncio.timeout(patience):
            message = await call.read()
        if not isinstance(message, bytes):
            raise RegionNotReadable(f"the stream of region {region.id} ended")
        chunk.take(message)
        if chunk.is_last or chunk.size >= CHUNK_BYTES:
            yield chunk.versions()


def _request(
    pd: PdClient, region: LocatedRegion, span: tuple[bytes, bytes], after_ts: int
) -> cdcpb_pb2.ChangeDataRequest:
    return change_data.register(pd.cluster_id, _REQUEST, region.id, region.conf_ver, region.version, after_ts, *span)


class _VersionChunk:
    """Versions of one region that were read and not yet handed on."""

    def __init__(self, region_id: int, span: tuple[bytes, bytes], bounds: tuple[int, int]) -> None:
        self.size = 0  # bytes of the messages
        self.is_last = False  # the scan is complete
        self._region_id = region_id
        self._bounds = bounds
        self._start, self._end = (pa.scalar(decode_bytes(bound)[0], pa.binary()) for bound in span)
        self._tables: list[pa.Table] = []

    def take(self, message: bytes) -> None:
        """Raises RegionNotReadable when the region can't be read now."""
        batch = _columns().of([message])
        events = batch.column("events").flatten()
        if events.field("error").null_count < len(events):
            self._refuse(message)
        entries = events.field("entries").field("entries")
        rows = pa.Table.from_struct_array(entries.flatten())
        regions = events.field("region_id").take(pc.list_parent_indices(entries))
        self._add(rows.filter(pc.equal(regions, pa.scalar(self._region_id, pa.uint64()))))
        self.size += len(message)

    def versions(self) -> pa.Table:
        """What was taken since the last call."""
        tables, self._tables, self.size = self._tables, [], 0
        return pa.concat_tables([SCAN_SCHEMA.empty_table(), *tables]).combine_chunks()

    def _add(self, rows: pa.Table) -> None:
        end = pc.index(rows["type"], _INITIALIZED).as_py()
        self.is_last = end >= 0
        rows = rows.slice(0, end) if self.is_last else rows
        self._refuse_open(rows)
        after_ts, upto_ts = (pa.scalar(ts, pa.uint64()) for ts in self._bounds)
        wanted = pc.equal(rows["type"], _COMMITTED)
        for test in (
            pc.greater(rows["commit_ts"], after_ts),
            pc.less_equal(rows["commit_ts"], upto_ts),
            pc.greater_equal(rows["key"], self._start),
            pc.less(rows["key"], self._end),
        ):
            wanted = pc.and_(wanted, test)
        found = rows.filter(wanted)
        old = found["old_value"]
        columns = {
            "delete": pc.equal(found["op_type"], _DELETE),
            "old_value": pc.if_else(pc.greater(pc.binary_length(old), 0), old, pa.scalar(None, old.type)),
        }
        self._tables.append(
            pa.table({name: columns[name] if name in columns else found[name] for name in SCAN_SCHEMA.names})
        )

    def _refuse_open(self, rows: pa.Table) -> None:
        prewrites = rows["start_ts"].filter(pc.equal(rows["type"], _PREWRITE))
        first = pc.min(prewrites).as_py()
        if first is not None and first <= self._bounds[1]:
            raise RegionNotReadable(f"a transaction that began at {first}, before the checkpoint, is still open")

    def _refuse(self, message: bytes) -> None:
        for event in cdcpb_pb2.ChangeDataEvent.FromString(message).events:
            if event.region_id == self._region_id and event.HasField("error"):
                raise RegionNotReadable(f"region {event.region_id} answers {' '.join(str(event.error).split())}")


@cache
def _columns() -> MessageColumns:
    rows = ("start_ts", "commit_ts", "type", "op_type", "key", "value", "old_value")
    fields = {
        "ChangeDataEvent": ("events",),
        "Event": ("region_id", "entries", "error"),
        "Entries": ("entries",),
        "Row": rows,
        "Error": (),
    }
    return MessageColumns(cdcpb_pb2.DESCRIPTOR, "ChangeDataEvent", fields)
