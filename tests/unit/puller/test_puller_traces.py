"""What a real TiKV sent, through decoder and matcher: each row right, once, and after none that it is late for.

The traces' README says what a client must make of a stream. A trace may be read in any chunks: where a client registers
a region again, it has read what came before.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import golden
import pytest
from changefeed.errors import Transient
from changefeed.upstream.tikv.feed.reaction import reaction
from changefeed.upstream.tikv.matching import matcher, spilled
from changefeed.upstream.tikv.matching.decode import decode
from changefeed.upstream.tikv.matching.region_events import RegionEvents, Registration
from changefeed.upstream.tikv.tidb.memcomparable import decode_bytes
from changefeed.wire import cdcpb_pb2
from puller_memory_scratch import MemoryFile

TRACES = sorted((golden.CORPUS / "traces").glob("*.json"))
OPS = ("delete", "update", "insert")
_FOLLOWED = ("request_id", "region_id", "checkpoint_ts", "start_key", "end_key")


def messages(path: Path) -> list[bytes]:
    """Each is behind its length, a varint."""
    content = path.read_bytes()
    content = gzip.decompress(content) if path.suffix == ".gz" else content
    found, at = [], 0
    while at < len(content):
        size, shift = 0, 0
        while content[at] & 128:
            size, shift, at = size | (content[at] & 127) << shift, shift + 7, at + 1
        size, at = size | content[at] << shift, at + 1
        found.append(content[at : at + size])
        at += size
    return found


def shown(value: bytes) -> Any:
    """As the JSON shows it."""
    return value.hex() if len(value) <= 2000 else {"len": len(value), "sha256": hashlib.sha256(value).hexdigest()}


class Named(RegionEvents):
    """Registrations have the request ids of the trace."""

    request_id = 0

    def _free_request(self, region_id: int) -> int:
        assert (self.request_id, region_id) not in self._by_name
        return self.request_id


class Client:
    """One stream's reader, and what it may make of each registration."""

    def __init__(self, trace: Any) -> None:
        self.trace = trace
        self.events = Named(MemoryFile)
        self.asked: dict[int, Any] = {}  # by subscription, one for each registration
        self.alive: dict[int, Registration] = {}
        self.got: dict[int, list[tuple[Any, ...]]] = {}
        self.resolved: dict[int, int] = {}  # as it was told

    def register(self, asked: Any) -> None:
        sub_id = len(self.asked)
        self.events.request_id = asked["request_id"]
        checkpoint_ts = int(asked["checkpoint_ts"])
        self.alive[sub_id] = self.events.register(sub_id, sub_id, asked["region_id"], checkpoint_ts)
        self.asked[sub_id], self.got[sub_id], self.resolved[sub_id] = asked, [], checkpoint_ts

    def read(self, chunk: list[bytes]) -> None:
        outcome = self.events.process(chunk)
        for part in (outcome.data, *outcome.more):
            for sub_id, batch in part:
                for row in batch.to_pylist():
                    assert row["commit_ts"] > self.resolved[sub_id], "at or below resolved-ts"
                    self.got[sub_id].append(_told(row))
        failed = {failure.registration.sub_id: failure.error for failure in outcome.failed}
        assert all(isinstance(error, cdcpb_pb2.Error | Transient) for error in failed.values()), failed
        unclear = {sub_id for sub_id, error in failed.items() if isinstance(error, Transient)}
        self.alive = {sub_id: registration for sub_id, registration in self.alive.items() if sub_id not in unclear}
        for message in chunk:
            self._resolve(cdcpb_pb2.ChangeDataEvent.FromString(message))
        for sub_id in failed:
            self.alive.pop(sub_id, None)

    def _resolve(self, event: cdcpb_pb2.ChangeDataEvent) -> None:
        told = event.resolved_ts
        for sub_id, registration in self.alive.items():
            if told.request_id in (0, registration.request_id) and registration.region_id in told.regions:
                self.resolved[sub_id] = max(self.resolved[sub_id], told.ts)

    def check(self) -> None:
        for sub_id, asked in self.asked.items():
            wanted = [_wanted(row) for row in self.trace["rows"] if _concerns(row, asked)]
            got = self.got[sub_id]
            assert len(set(map(str, got))) == len(got), "twice"
            assert [row for row in got if row not in wanted] == []
            assert [
                row for row in wanted if row is not None and row[0] <= self.resolved[sub_id] and row not in got
            ] == []


def _told(row: dict[str, Any]) -> tuple[Any, ...]:
    old = None if row["old_value"] is None else shown(row["old_value"])
    return (
        row["commit_ts"],
        row["start_ts"],
        row["key"].hex(),
        OPS[row["op"]],
        shown(row["value"]),
        old,
        row["txn_source"],
    )


def _wanted(row: Any) -> tuple[Any, ...] | None:
    """None: it changes nothing. The wire can't tell an empty old value from none."""
    old = row["old_value"] or None
    op = "delete" if row["op"] == "DELETE" else "update" if old else "insert"
    if op == "delete" and old is None:
        return None
    value = "" if row["value"] is None else row["value"]
    return int(row["commit_ts"]), int(row["start_ts"]), row["key"], op, value, old, row["txn_source"]


def _concerns(row: Any, asked: Any) -> bool:
    start, end = (decode_bytes(bytes.fromhex(asked[name]))[0] if asked[name] else b"" for name in _FOLLOWED[3:])
    key, source = bytes.fromhex(row["key"]), row["txn_source"]
    is_in = start <= key and (not end or key < end) and int(row["commit_ts"]) > int(asked["checkpoint_ts"])
    return is_in and source < 256 and not (source and asked.get("filter_loop"))


def _chunkings(borders: list[int], count: int) -> Iterator[list[int]]:
    """Where chunks begin, and the end: each message alone, as few chunks as there can be, and some others."""
    yield list(range(count + 1))
    yield borders
    for seed in range(3):
        rng = random.Random(seed)
        yield sorted({*borders, *(at for at in range(count) if rng.random() < 0.3)})


@pytest.mark.parametrize("spill_bytes", [matcher.SPILL_BYTES, 0], ids=["in memory", "spilled"])
@pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.stem, marks=pytest.mark.golden("trace")) for path in TRACES]
)
def test_what_a_real_store_sent_gives_its_rows(path: Path, spill_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "SPILL_BYTES", spill_bytes)
    monkeypatch.setattr(spilled, "BATCH_BYTES", 200)
    trace = json.loads(path.read_text())
    for stream in trace["streams"]:
        sent = messages(path.with_name(stream["file"]))
        assert len(sent) == stream["messages"]
        # Some are only there for their refusals, which say what was wrong and not what was asked.
        mine = [asked for asked in trace["registrations"] if asked["stream"] == stream["stream"]]
        followed = [asked for asked in mine if all(name in asked for name in _FOLLOWED)]
        borders = sorted({0, *(asked["after_messages"] for asked in followed), len(sent)})
        for edges in _chunkings(borders, len(sent)):
            client = Client(trace)
            for begin, end in pairwise(edges):
                for asked in followed:
                    if asked["after_messages"] == begin:
                        client.register(asked)
                client.read(sent[begin:end])
            client.check()


@pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.stem, marks=pytest.mark.golden("trace")) for path in TRACES]
)
def test_each_error_that_a_real_store_sent_is_read_and_reacted_to(path: Path) -> None:
    for stream in json.loads(path.read_text())["streams"]:
        sent = messages(path.with_name(stream["file"]))
        events = [event for message in sent for event in cdcpb_pb2.ChangeDataEvent.FromString(message).events]
        wanted = [(e.request_id, e.region_id, e.error) for e in events if e.WhichOneof("event") == "error"]
        found = decode(sent).errors
        assert [(event.request_id, event.region_id, event.error) for event in found] == wanted
        for event in found:
            assert event.error.ListFields()
            reaction(event.error)
