"""A changefeed whose PD's address leads to another cluster now: nobody may hold, or let go of, history there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from changefeed.errors import NeedsHuman
from changefeed.log.log import Log
from changefeed.log.records import StartRecord
from changefeed.objectstore.local import LocalStore
from changefeed.owner import locations
from changefeed.owner.closing.undriven import close, hold
from changefeed.spec.model import Changefeed
from changefeed.spec.parse import from_effective
from changefeed_devcluster.pd.safepoints import GC_WORKER
from changefeed_devcluster.server import DevCluster


@pytest.fixture(scope="module")
def other() -> Iterator[DevCluster]:
    with DevCluster(stores=1) as cluster:
        yield cluster


def _changefeed(folder: Path, pd_address: str, **upstream: str) -> Changefeed:
    spec = {
        "upstream": {"pdAddresses": [f"http://{pd_address}"], **upstream},
        "startTs": "7",
        "state": {"uri": (folder / "state").as_uri()},
        "sink": {"storage": {"uri": (folder / "lake").as_uri(), "protocol": "csv"}},
    }
    head = {"apiVersion": "changefeed.dev/v1alpha1", "kind": "Changefeed", "metadata": {"name": "test"}}
    return from_effective({**head, "spec": spec})


@pytest.mark.parametrize("by", ["the log", "the resource"])
async def test_hold_and_close_do_nothing_at_another_cluster(other: DevCluster, tmp_path: Path, by: str) -> None:
    """What is held there is not what the changefeed needs, and nobody would notice."""
    pinned = {"clusterId": "5"} if by == "the resource" else {}
    changefeed = _changefeed(tmp_path, other.pd_address, **pinned)
    if by == "the log":
        folder = Path(locations.state_location(changefeed).uri.removeprefix("file://"))
        start = StartRecord(n=1, epoch=0, nonce="a", start_ts=7, cluster_id=5, uid="local")
        Log(LocalStore(folder)).append(start)
    for command in (hold, close):
        with pytest.raises(NeedsHuman, match=f"belongs to cluster {other.cluster_id}, not to 5"):
            await command(changefeed)
    assert [each.service_id for each in other.safepoints.living(int(time.time()))] == [GC_WORKER]
