"""The upstream's side of the comparison: an incremental scan of each region, read by a small reader of its own.

`EventFeedV2` answers a registration at `after_ts` with every version committed later (facts, tikv-wire 2.6), so one
registration a region up to INITIALIZED is the whole history. Live events, locks and resolved-ts are ignored.
"""

from __future__ import annotations

from collections.abc import AsyncIterable

import grpc
import grpc.aio
import pyarrow as pa
import pyarrow.compute as pc

from changefeed import errors
from changefeed.model.memcomparable import encode_bytes
from changefeed.upstream.pd import PdClient, Region
from changefeed.wire import cdcpb_pb2, metapb_pb2

_FEED = "/cdcpb.ChangeData/EventFeedV2"
_VERSION = "8.5.0"
_ATTEMPTS = 20
_REQUEST = 1

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


async def read_history(pd: PdClient, start: bytes, end: bytes, after_ts: int, upto_ts: int) -> pa.Table:
    """Every committed version of `[start, end)` with after_ts < commit_ts <= upto_ts, in no order (SCAN_SCHEMA).

    Raises Transient when the regions do not hold still for long enough.
    """
    tables: list[pa.Table] = []
    cursor = encode_bytes(start)
    for _ in range(_ATTEMPTS):
        regions = [r for r in await pd.scan_regions(start, end) if r.end_key == b"" or r.end_key > cursor]
        for region in regions:
            read = await _read_region(pd, region, cursor, encode_bytes(end), after_ts)
            if read is None:
                break  # the region has changed: look again from here
            tables.append(read)
            cursor = region.end_key
        else:
            table = pa.concat_tables([SCAN_SCHEMA.empty_table(), *tables])
            kept = pc.and_(pc.greater(table["commit_ts"], after_ts), pc.less_equal(table["commit_ts"], upto_ts))
            return table.filter(kept)
    raise errors.Transient(f"The regions of {start.hex()} changed {_ATTEMPTS} times while they were read.")


async def _read_region(pd: PdClient, region: Region, start: bytes, end: bytes, after_ts: int) -> pa.Table | None:
    """The committed versions of the region inside `[start, end)` (encoded); None when it is not there any more."""
    channel = pd.store_channel(await pd.store_address(region.leader_store_id))
    first = max(start, region.start_key)
    last = min(end, region.end_key) if region.end_key else end
    request = cdcpb_pb2.ChangeDataRequest(
        header=cdcpb_pb2.Header(cluster_id=pd.cluster_id, ticdc_version=_VERSION),
        region_id=region.id,
        region_epoch=metapb_pb2.RegionEpoch(conf_ver=region.conf_ver, version=region.version),
        checkpoint_ts=after_ts,
        start_key=first,
        end_key=last,
        request_id=_REQUEST,
        register=cdcpb_pb2.ChangeDataRequest.Register(),
    )
    call = channel.stream_stream(
        _FEED,
        request_serializer=cdcpb_pb2.ChangeDataRequest.SerializeToString,
        response_deserializer=cdcpb_pb2.ChangeDataEvent.FromString,
    )(metadata=(("features", "stream-multiplexing"),))
    try:
        await call.write(request)
        return await _until_initialized(call, region.id)
    except grpc.aio.AioRpcError:
        pd.forget_store(region.leader_store_id)
        return None
    finally:
        call.cancel()


async def _until_initialized(call: AsyncIterable[cdcpb_pb2.ChangeDataEvent], region_id: int) -> pa.Table | None:
    batches: list[pa.RecordBatch] = []
    async for message in call:
        for event in message.events:
            if event.region_id != region_id:
                continue
            if event.HasField("error"):
                return None
            batches.append(_committed(event.entries.entries))
            if any(row.type == cdcpb_pb2.Event.INITIALIZED for row in event.entries.entries):
                return pa.Table.from_batches(batches, SCAN_SCHEMA)
    return None


def _committed(entries: object) -> pa.RecordBatch:
    # Row by row on purpose: this is the oracle, and shares nothing with the columnar reader that it checks.
    rows = [row for row in entries if row.type == cdcpb_pb2.Event.COMMITTED]  # type: ignore[attr-defined]
    return pa.record_batch(
        [
            pa.array([row.commit_ts for row in rows], pa.uint64()),
            pa.array([row.start_ts for row in rows], pa.uint64()),
            pa.array([row.op_type == cdcpb_pb2.Event.Row.DELETE for row in rows], pa.bool_()),
            pa.array([row.key for row in rows], pa.binary()),
            pa.array([row.value for row in rows], pa.binary()),
            pa.array([row.old_value or None for row in rows], pa.binary()),
        ],
        schema=SCAN_SCHEMA,
    )
