"""spec.sink.storage.fileExpirationDays: a run deletes what has expired, and what needs all files says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from changefeed.objectstore.open import open_store
from changefeed.owner.planning import expiration
from changefeed.reading.failures import NotVerifiable
from changefeed.restore.source import NotRestorable, RestoreSource
from changefeed.upstream.tikv.access import TikvAccess
from changefeed.verify.storage.report import StoredSink, verify
from integration_inprocess import World, new_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as made:
        yield made


def data_files(world: World) -> list[Path]:
    return [path for path in world.lake.rglob("CDC*") if path.is_file()]


async def test_expired_files_are_deleted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = {"uri": world.lake.as_uri(), "protocol": "csv", "csv": {"includeCommitTs": True}, "fileExpirationDays": 1}
    world.insert(range(1, 11))
    run = world.run(sink={"storage": storage})
    await run.until(lambda: world.ids() == list(range(1, 11)), "all rows are in files")
    await run.drained()
    assert world.records("expire") == [], "a file of today has expired"
    kept = {path for path in world.lake.rglob("*") if path.is_file()} - set(data_files(world))

    monkeypatch.setattr(expiration, "DAY_MS", -expiration.DAY_MS)  # as if the checkpoint were two days later
    run = world.run(sink={"storage": storage})
    await run.until(lambda: not data_files(world), "expired files are deleted")
    await run.drained()
    assert {path for path in world.lake.rglob("*") if path.is_file()} == kept
    (record,) = world.records("expire")

    expired = f"from before {record['before']} have expired"
    with pytest.raises(NotVerifiable, match=expired):
        await verify(StoredSink(world.lake.as_uri()), TikvAccess((f"http://{world.cluster.pd_address}",)))
    with pytest.raises(NotRestorable, match=expired):
        RestoreSource(open_store(world.lake.as_uri()))
