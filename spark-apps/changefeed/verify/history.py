"""The upstream's side of the comparison: an incremental scan of each region, read by a small reader of its own.

`EventFeedV2` answers a registration at `after_ts` with every version committed later (facts, tikv-wire 2.6), so one
registration a region up to INITIALIZED is the whole history. It must never take a scan for whole that may lack a
transaction: one that is open and began before `upto_ts` is waited for.
"""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pyarrow as pa

from changefeed.errors import Transient
from changefeed.model.memcomparable import encode_bytes
from changefeed.upstream.attempts import Attempts
from changefeed.upstream.pd import PATIENCE, PdClient, Region, reason
from changefeed.wire import cdcpb_pb2, kvrpcpb_pb2, metapb_pb2

_FEED = "/cdcpb.ChangeData/EventFeedV2"
_VERSION = "8.5.0"
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


class _NotNow(Exception):
    """The region can't be read as it was looked up, or not yet."""


async def read_history(
    pd: PdClient, start: bytes, end: bytes, after_ts: int, upto_ts: int, patience: float = PATIENCE
) -> pa.Table:
    """Every committed version of the raw `[start, end)` with after_ts < commit_ts <= upto_ts, SCAN_SCHEMA.

    Raises Transient after `patience` seconds without a region read.
    """
    attempts = Attempts(f"Reading the history of [{start.hex()}, {end.hex()})", patience)
    tables = [SCAN_SCHEMA.empty_table()]
    cursor, last = encode_bytes(start), encode_bytes(end)  # all below `cursor` is read
    while cursor < last:
        try:
            for region in await pd.scan_regions(start, end):
                upper = min(region.end_key, last) if region.end_key else last
                if upper > cursor:
                    tables.append(await _read_region(pd, region, cursor, upper, after_ts, upto_ts, patience))
                    cursor = upper
                    attempts.progress()
        except (_NotNow, Transient) as why:
            await attempts.pause(str(why).rstrip("."), base=0.02)
    return pa.concat_tables(tables)


async def _read_region(
    pd: PdClient, region: Region, start: bytes, end: bytes, after_ts: int, upto_ts: int, patience: float
) -> pa.Table:
    """The region's versions inside `[start, end)` (encoded). Raises _NotNow, Transient."""
    channel = pd.store_channel(await pd.store_address(region.leader_store_id))
    call = channel.stream_stream(
        _FEED,
        request_serializer=cdcpb_pb2.ChangeDataRequest.SerializeToString,
        response_deserializer=cdcpb_pb2.ChangeDataEvent.FromString,
    )(metadata=(("features", "stream-multiplexing"),))
    request = cdcpb_pb2.ChangeDataRequest(
        header=cdcpb_pb2.Header(cluster_id=pd.cluster_id, ticdc_version=_VERSION),
        region_id=region.id,
        region_epoch=metapb_pb2.RegionEpoch(conf_ver=region.conf_ver, version=region.version),
        checkpoint_ts=after_ts,
        start_key=start,
        end_key=end,
        request_id=_REQUEST,
        extra_op=kvrpcpb_pb2.ReadOldValue,
        register=cdcpb_pb2.ChangeDataRequest.Register(),
    )
    batches: list[pa.RecordBatch] = []
    try:
        await call.write(request)
        while True:
            async with asyncio.timeout(patience):
                message = await call.read()
            if not isinstance(message, cdcpb_pb2.ChangeDataEvent):
                raise _NotNow(f"the stream of region {region.id} ended")
            for event in message.events:
                if event.region_id == region.id and _take(event, start, end, after_ts, upto_ts, batches):
                    return pa.Table.from_batches(batches, SCAN_SCHEMA)
    except grpc.aio.AioRpcError as error:
        pd.forget_store(region.leader_store_id)
        raise _NotNow(f"store {region.leader_store_id} does not answer: {reason(error)}") from error
    except TimeoutError as error:
        raise _NotNow(f"region {region.id} is silent") from error
    finally:
        call.cancel()


def _take(
    event: cdcpb_pb2.Event, start: bytes, end: bytes, after_ts: int, upto_ts: int, batches: list[pa.RecordBatch]
) -> bool:
    """Add an event's committed rows to `batches`; True: the scan is complete. Raises _NotNow."""
    if event.HasField("error"):
        raise _NotNow(f"region {event.region_id} answers {' '.join(str(event.error).split())}")
    # Row by row on purpose: this is the oracle, and shares nothing with the columnar reader that it checks.
    found: list[cdcpb_pb2.Event.Row] = []
    for row in event.entries.entries:
        if row.type == cdcpb_pb2.Event.INITIALIZED:
            batches.append(_batch(found))
            return True
        if row.type == cdcpb_pb2.Event.PREWRITE and row.start_ts <= upto_ts:
            raise _NotNow(f"a transaction that began at {row.start_ts}, before the checkpoint, is still open")
        committed = row.type == cdcpb_pb2.Event.COMMITTED and after_ts < row.commit_ts <= upto_ts
        if committed and start <= encode_bytes(row.key) < end:
            found.append(row)
    batches.append(_batch(found))
    return False


def _batch(rows: list[cdcpb_pb2.Event.Row]) -> pa.RecordBatch:
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
