"""How much memory a puller needs for one large transaction, and how long it takes: a process of its own, alone.

    bench/large_transaction.py --rows 5000000 --value 380

It has the environment that Spark's Python workers have, which says how memory is kept. The store, its PD and the owner
are stand-ins: all prewrites of the transaction come first, then all its commits, then the resolved-ts. The puller's
segments stand in a folder of the temporary files, which is removed. Prints a line of figures for each number of regions
and writes bench/out/large_transaction.json (docs/design/layouts.md, Benchmark results).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import grpc
import grpc.aio
import numpy as np
from changefeed.eventstore.run_folder import RunFolder
from changefeed.objectstore import Location
from changefeed.puller.task import Limits, PullerTask
from changefeed.spark.settings import LaptopDeployment, worker_environment
from changefeed.upstream.tikv.cluster import TikvCluster
from changefeed.upstream.tikv.tidb.memcomparable import encode_bytes
from changefeed.wire import cdcpb_pb2, owner_pb2
from measured import ROOT, write_report

START_TS, COMMIT_TS, RESOLVED_TS = 100 << 18, 200 << 18, 300 << 18
PREWRITE, COMMIT, INITIALIZED = 1, 2, 5
ROWS_OF_A_MESSAGE = 512
PREFIX = b"t\x80\0\0\0\0\0\0\x09_r"


@dataclass(frozen=True)
class Region:
    id: int
    first: int  # handle
    end: int
    leader_store_id: int = 1
    conf_ver: int = 1
    version: int = 1

    @property
    def start_key(self) -> bytes:
        return encode_bytes(key(self.first))

    @property
    def end_key(self) -> bytes:
        return encode_bytes(key(self.end))


def key(handle: int) -> bytes:
    return PREFIX + handle.to_bytes(8, "big")


class Store:
    """One store with all regions. It begins when they are registered."""

    def __init__(self, regions: list[Region], value: int) -> None:
        self._regions = {region.id: region for region in regions}
        self._value = value
        self._requests: dict[int, int] = {}  # region -> request
        self._registered = asyncio.Event()
        self.began = 0.0

    async def feed(self, requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
        listener = asyncio.create_task(self._listen(requests))
        await self._registered.wait()
        self.began = time.monotonic()
        for region_id, request_id in self._requests.items():
            yield _message(region_id, request_id, cdcpb_pb2.Event.Row(type=INITIALIZED).SerializeToString(), 1)
        for log_type in (PREWRITE, COMMIT):
            for region_id, request_id in self._requests.items():
                for message in self._rows(log_type, self._regions[region_id], request_id):
                    yield message
        while True:
            for region_id, request_id in self._requests.items():
                resolved = cdcpb_pb2.ResolvedTs(regions=[region_id], ts=RESOLVED_TS, request_id=request_id)
                yield cdcpb_pb2.ChangeDataEvent(resolved_ts=resolved).SerializeToString()
            await asyncio.sleep(1.0)
        await listener

    async def _listen(self, requests: AsyncIterator[bytes]) -> None:
        async for body in requests:
            request = cdcpb_pb2.ChangeDataRequest.FromString(body)
            if request.HasField("register"):
                self._requests[request.region_id] = request.request_id
            if len(self._requests) == len(self._regions):
                self._registered.set()

    def _rows(self, log_type: int, region: Region, request_id: int) -> Iterator[bytes]:
        value = np.random.default_rng(1).bytes(self._value) if log_type == PREWRITE else b""
        commit_ts = COMMIT_TS if log_type == COMMIT else 0
        row = cdcpb_pb2.Event.Row(
            start_ts=START_TS, commit_ts=commit_ts, type=log_type, op_type=1, key=key(0), value=value
        ).SerializeToString()
        at = row.index(PREFIX) + len(PREFIX)
        block = np.tile(np.frombuffer(row, np.uint8), (ROWS_OF_A_MESSAGE, 1))
        for first in range(region.first, region.end, ROWS_OF_A_MESSAGE):
            count = min(ROWS_OF_A_MESSAGE, region.end - first)
            block[:count, at : at + 8] = np.arange(first, first + count, dtype=">u8").view(np.uint8).reshape(-1, 8)
            yield _message(region.id, request_id, block[:count].tobytes(), count)


def _message(region_id: int, request_id: int, rows: bytes, count: int) -> bytes:
    """A ChangeDataEvent with one Event of `count` rows of one length."""
    size = len(rows) // count
    entries = b"".join(b"\x0a" + _varint(size) + rows[at : at + size] for at in range(0, len(rows), size))
    named = cdcpb_pb2.Event(region_id=region_id, request_id=request_id).SerializeToString()
    number = cdcpb_pb2.Event.DESCRIPTOR.fields_by_name["entries"].number
    event = named + bytes([number << 3 | 2]) + _varint(len(entries)) + entries
    return b"\x0a" + _varint(len(event)) + event


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


class Pd:
    """What a puller asks PD for."""

    cluster_id = 7

    def __init__(self, regions: list[Region], address: str) -> None:
        self._regions = regions
        self._address = address
        self._channel = grpc.aio.insecure_channel(address)

    async def scan_regions(self, start: bytes, end: bytes) -> list[Region]:
        return [region for region in self._regions if key(region.first) < end and start < key(region.end)]

    async def store_address(self, _store_id: int) -> str:
        return self._address

    def forget_store(self, store_id: int) -> None:
        pass

    def store_channel(self, _address: str) -> grpc.aio.Channel:
        return self._channel

    async def gc_safepoint(self) -> int:
        return 0

    async def tso(self) -> int:
        return 50 << 18  # nothing lags, so nobody looks for locks


class Owner:
    """Subscribes the table, hears every segment at once, and ends when all is resolved."""

    def __init__(self, rows: int) -> None:
        self._commands: asyncio.Queue[owner_pb2.Command | None] = asyncio.Queue()
        asked = owner_pb2.Subscribe(sub_id=1, span_id=1, start_key=key(0), end_key=key(rows), start_ts=10 << 18)
        self._commands.put_nowait(owner_pb2.Command(subscribe=asked))
        self.rows = 0
        self.segments = 0
        self.idle_rss = 0

    def __aiter__(self) -> Owner:
        return self

    async def __anext__(self) -> owner_pb2.Command:
        command = await self._commands.get()
        if command is None:
            raise StopAsyncIteration
        self.idle_rss = self.idle_rss or memory()["VmRSS"]
        return command

    async def write(self, report: owner_pb2.Report) -> None:
        for segment in report.segments:
            self.rows += sum(span.rows for span in segment.spans)
            self.segments += 1
            self._commands.put_nowait(owner_pb2.Command(heard=owner_pb2.Heard(segment=segment.seq)))
        if any(resolved.ts >= RESOLVED_TS for resolved in report.resolved):
            self._commands.put_nowait(None)


def memory() -> dict[str, int]:
    """MiB."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {line[0][:-1]: int(line[1]) >> 10 for line in lines if line[0].startswith(("VmHWM", "VmRSS", "RssAnon"))}


def pull(regions: list[Region], address: str, folder: Path, answers: Any) -> None:
    """The measured process."""

    async def run() -> None:
        owner = Owner(regions[-1].end)
        run_folder = RunFolder(Location(folder.as_uri()), 1, "ab")
        pd: Any = Pd(regions, address)
        task = PullerTask(0, "puller-0-0", TikvCluster(pd).feed, run_folder, Limits())
        peaks: dict[str, int] = {}
        watch = asyncio.create_task(_watch(task, peaks))
        await task.run(owner)  # type: ignore[arg-type]
        watch.cancel()
        cpu_s = round(time.process_time(), 1)
        answers.send({"rows": owner.rows, "segments": owner.segments, "idle_rss_mib": owner.idle_rss, "cpu_s": cpu_s})
        answers.send({"peak_rss_mib": memory()["VmHWM"], **peaks})

    asyncio.run(run())


async def _watch(task: PullerTask, peaks: dict[str, int]) -> None:
    """The most memory while rows came, and from the first that went into a segment on."""
    while True:
        phase = (
            "committing" if task._pipeline.metrics.inflight_bytes or task._pipeline._spans[1].acked_seq else "before"
        )
        for name, size in memory().items():
            if name != "VmHWM":
                peaks[f"{phase}_{name}"] = max(peaks.get(f"{phase}_{name}", 0), size)
        await asyncio.sleep(0.05)


async def measure(rows: int, value: int, count: int) -> dict[str, Any]:
    borders = np.linspace(0, rows, count + 1).astype(int).tolist()
    regions = [Region(11 + n, borders[n], borders[n + 1]) for n in range(count)]
    store = Store(regions, value)
    server = grpc.aio.server()
    handlers = {"EventFeedV2": grpc.stream_stream_rpc_method_handler(store.feed)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("cdcpb.ChangeData", handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    folder = Path(tempfile.mkdtemp(prefix="changefeed-bench-"))
    here, there = multiprocessing.Pipe()
    try:
        puller = multiprocessing.get_context("spawn").Process(
            target=pull, args=(regions, f"127.0.0.1:{port}", folder, there)
        )
        with patch.dict(os.environ, worker_environment(LaptopDeployment("local[2]").settings(folder))):
            puller.start()
        there.close()
        answers = [await asyncio.to_thread(here.recv) for _ in range(2)]
        seconds = time.monotonic() - store.began
        await asyncio.to_thread(puller.join)
    finally:
        await server.stop(0)
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "name": f"large-transaction-{count}-regions",
        "verified": answers[0]["rows"] == rows,
        "sent_rows": rows,
        "bytes": rows * (value + 19),
        "wall_s": round(seconds, 1),
        **answers[0],
        **answers[1],
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rows", type=int, default=5_000_000)
    arguments.add_argument("--value", type=int, default=380, help="bytes of a row's value")
    arguments.add_argument("--regions", type=int, action="append", help="default: 10, then 1")
    arguments.add_argument("--out", type=Path, default=ROOT / "bench" / "out" / "large_transaction.json")
    given = arguments.parse_args()
    runs = []
    for count in given.regions or (10, 1):
        runs.append(asyncio.run(measure(given.rows, given.value, count)))
        sys.stdout.write(json.dumps(runs[-1]) + "\n")
    write_report(given.out, runs)


if __name__ == "__main__":
    main()
