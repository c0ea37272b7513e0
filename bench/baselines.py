"""What a run is compared with: a client that only reads the same stream, and `cat` of the same bytes.

As a program: `baselines.py PD START_TS TARGET_TS` reads all change data in between and prints what that took.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from typing import Any

from changefeed.upstream.tikv.client.pd import LocatedRegion, PdClient
from changefeed.wire import cdcpb_pb2, kvrpcpb_pb2, metapb_pb2

_RESOLVED_TAG = cdcpb_pb2.ChangeDataEvent.DESCRIPTOR.fields_by_name["resolved_ts"].number << 3 | 2


def receive(pd: str, start_ts: str, target_ts: str, rows: int) -> dict[str, float]:
    """What reading the events takes in a process of its own, with the product's gRPC client; its start is left out."""
    command = [sys.executable, __file__, pd, start_ts, target_ts]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    return _figures(rows, **json.loads(said))


def cat(files: Sequence[Path], copy: Path, rows: int) -> dict[str, float]:
    """Return what writing the same bytes takes."""
    before, began = getrusage(RUSAGE_CHILDREN), time.monotonic()
    with copy.open("wb") as out:
        subprocess.run(["cat", *files], check=True, stdout=out)
    seconds, after = time.monotonic() - began, getrusage(RUSAGE_CHILDREN)
    copy.unlink()
    return _figures(rows, seconds, after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime)


def _figures(rows: int, seconds: float, user: float, kernel: float) -> dict[str, float]:
    return {
        "rows_per_s": round(rows / seconds),
        "cpu_s_per_mrow": round((user + kernel) / rows * 1e6, 3),
        "kernel": round(kernel / rows * 1e6, 3),
    }


async def _read_all(address: str, start_ts: int, target_ts: int) -> dict[str, float]:
    """Until every region is resolved; the seconds that it took."""
    pd = await PdClient.connect([address])
    by_store: dict[int, list[LocatedRegion]] = defaultdict(list)
    for region in await pd.scan_regions(b"", b""):
        by_store[region.leader_store_id].append(region)
    before, began = getrusage(RUSAGE_SELF), time.monotonic()
    try:
        await asyncio.gather(
            *(_read_store(pd, store, regions, start_ts, target_ts) for store, regions in by_store.items())
        )
    finally:
        await pd.close()
    seconds, after = time.monotonic() - began, getrusage(RUSAGE_SELF)
    return {
        "seconds": seconds,
        "user": after.ru_utime - before.ru_utime,
        "kernel": after.ru_stime - before.ru_stime,
    }


async def _read_store(pd: PdClient, store: int, regions: list[LocatedRegion], start_ts: int, target_ts: int) -> None:
    channel = pd.store_channel(await pd.store_address(store))
    call: Any = channel.stream_stream(
        "/cdcpb.ChangeData/EventFeedV2", request_serializer=cdcpb_pb2.ChangeDataRequest.SerializeToString
    )(metadata=(("features", "stream-multiplexing"),))
    for region in regions:
        await call.write(_registration(pd, region, start_ts))
    open_regions = {region.id for region in regions}
    while open_regions:
        message = await call.read()
        if not isinstance(message, bytes):
            raise SystemExit(f"store {store} ended its stream with {len(open_regions)} regions unread")
        if message[0] == _RESOLVED_TAG:
            resolved = cdcpb_pb2.ChangeDataEvent.FromString(message).resolved_ts
            if resolved.ts >= target_ts:
                open_regions.difference_update(resolved.regions)
    call.cancel()


def _registration(pd: PdClient, region: LocatedRegion, start_ts: int) -> cdcpb_pb2.ChangeDataRequest:
    return cdcpb_pb2.ChangeDataRequest(
        header=cdcpb_pb2.Header(cluster_id=pd.cluster_id, ticdc_version="8.5.0"),
        region_id=region.id,
        region_epoch=metapb_pb2.RegionEpoch(conf_ver=region.conf_ver, version=region.version),
        checkpoint_ts=start_ts,
        start_key=region.start_key,
        end_key=region.end_key,
        request_id=1,
        extra_op=kvrpcpb_pb2.ReadOldValue,
        register=cdcpb_pb2.ChangeDataRequest.Register(),
    )


def main() -> None:
    pd, start_ts, target_ts = sys.argv[1:]
    sys.stdout.write(json.dumps(asyncio.run(_read_all(pd, int(start_ts), int(target_ts)))))


if __name__ == "__main__":
    main()
