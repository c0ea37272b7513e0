"""The source and the sink without Spark: how work is shared out, what travels, and what is reported to the owner."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from changefeed.model.position import Position
from changefeed.model.record import FileCommitted, PlanEntry, Work, WorkEntry
from changefeed.spark import owner_client, sink, source
from changefeed.spark.sink import FilesWritten, FileWriter, sink_for
from changefeed.spark.source import EntriesPartition, PlanReader, pack, source_for
from changefeed.wire import owner_pb2 as pb
from changefeed.wire.owner import OwnerAddress
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle

OWNER = OwnerAddress("127.0.0.1:1", 3, "ab", "the-token", b"the-certificate")


class FakeClient:
    """OwnerClient that is asked nothing over the network."""

    work: Work
    done: list[pb.Done]
    closed = 0

    def __init__(self, _: OwnerAddress) -> None:
        pass

    def latest(self) -> int:
        return 9

    def plan(self, record: int) -> Work:
        return self.work.model_copy(update={"record": record})

    def commit(self, done: pb.Done) -> None:
        self.done.append(done)

    def close(self) -> None:
        type(self).closed += 1

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> type[FakeClient]:
    FakeClient.work, FakeClient.done, FakeClient.closed = _work(), [], 0
    for module in (source, sink, owner_client):
        monkeypatch.setattr(module, "OwnerClient", FakeClient)
    return FakeClient


def _entry(number: int, estimate: int, info: str = "i") -> WorkEntry:
    entry = PlanEntry.model_validate(
        {
            "entry": number,
            "dispatcher": 1,
            "table_id": 1,
            "from": Position.end_of(1),
            "to": Position.end_of(2),
            "path": f"{number}.csv",
            "directory": "d",
            "index": number + 1,
            "date": "",
            "table_version": 1,
            "table_info": info,
            "estimate": estimate,
            "reason": "size",
        }
    )
    return WorkEntry(plan_entry=entry, segments=())


def _work(*entries: WorkEntry) -> Work:
    infos = {entry.plan_entry.table_info: {"name": entry.plan_entry.table_info} for entry in entries}
    return Work(record=9, epoch=3, nonce="ab", pd_ms=1, codec="c", config={}, entries=entries, table_infos=infos)


def _sizes(groups: list[list[WorkEntry]]) -> list[int]:
    return [sum(max(entry.plan_entry.estimate, 1) for entry in group) for group in groups]


@given(st.lists(st.integers(0, 1000), max_size=30), st.integers(1, 8))
def test_pack_gives_every_entry_once_and_balances(estimates: list[int], partitions: int) -> None:
    groups = pack([_entry(number, estimate) for number, estimate in enumerate(estimates)], partitions)
    assert sorted(e.plan_entry.entry for group in groups for e in group) == list(range(len(estimates)))
    assert len(groups) == min(partitions, len(estimates))
    assert all(groups)
    if groups:
        # No group is ahead of the least by more than one entry: the last it was given.
        sizes = _sizes(groups)
        assert max(sizes) - min(sizes) <= max(1, *estimates)


def test_pack_is_the_same_in_any_order() -> None:
    entries = [_entry(0, 5), _entry(1, 5), _entry(2, 9)]
    assert pack(entries, 2) == pack(entries[::-1], 2)


def test_partitions_carry_their_share_and_no_more(client: type[FakeClient]) -> None:
    client.work = _work(_entry(0, 10, "a"), _entry(1, 10, "b"))
    reader = PlanReader(OWNER, "file:///state", 2)
    assert reader.latestOffset() == {"record": 9}
    shares = []
    for partition in reader.partitions({"record": 0}, {"record": 8}):
        assert isinstance(partition, EntriesPartition)
        shares.append(Work.model_validate_json(pickle.loads(pickle.dumps(partition)).work))
    assert [(share.record, [e.plan_entry.path for e in share.entries]) for share in shares] == [
        (8, ["0.csv"]),
        (8, ["1.csv"]),
    ]
    assert [list(share.table_infos) for share in shares] == [["a"], ["b"]]


def test_rule_20_a_committed_plan_has_no_partitions(client: type[FakeClient]) -> None:
    assert PlanReader(OWNER, "file:///state", 2).partitions({"record": 0}, {"record": 8}) == []


def test_reader_travels_without_its_client_and_closes_the_one_it_has(client: type[FakeClient]) -> None:
    reader = PlanReader(OWNER, "file:///state", 2)
    reader.latestOffset()
    kept = reader._client
    for _ in range(3):
        travelled = cloudpickle.loads(cloudpickle.dumps(reader))
        assert travelled._client is None
        assert travelled._owner == OWNER
        travelled.stop()
    assert reader._client is kept
    assert client.closed == 0
    reader.stop()
    assert client.closed == 1


def test_classes_travel_with_the_owners_address() -> None:
    for made in (source_for(OWNER, "file:///state", 2), sink_for(OWNER, "file:///lake")):
        travelled: Any = cloudpickle.loads(cloudpickle.dumps(made))
        assert travelled.name() == made.name()
        instance = travelled({})
        inside = instance.streamWriter(None, False) if made.name() == sink.NAME else instance.streamReader(None)
        assert inside._owner == OWNER


def _file(entry: int) -> FileCommitted:
    return FileCommitted(entry=entry, rows=2, raw_rows=3, filtered_rows=1, bytes=4, hash="h")


def test_rule_20_commit_reports_by_plan_record_and_nonce(client: type[FakeClient]) -> None:
    messages = [
        FilesWritten(8, "ab", (_file(0), _file(2)), {"sort": 0.5}),
        None,
        FilesWritten(0, "ab", (), {}),
        FilesWritten(8, "ab", (_file(1),), {}),
    ]
    FileWriter(OWNER, "file:///lake").commit(messages, batchId=77)
    assert [(done.record, done.nonce, [f.entry for f in done.files]) for done in client.done] == [
        (8, "ab", [0, 2]),
        (8, "ab", [1]),
    ]
    first = client.done[0].files[0]
    assert (first.rows, first.raw_rows, first.filtered_rows, first.bytes, first.hash) == (2, 3, 1, 4, "h")
    (metric,) = client.done[0].metrics
    assert (metric.name, metric.label, metric.value) == ("changefeed_pipeline_cpu_seconds_total", "sort", 0.5)
    assert client.closed == 1
