from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from changefeed.upstream.tikv.client.pd import PdClient
from upstream_fake import FakeCluster


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    fake = FakeCluster()
    server = await fake.start()
    yield fake
    await server.stop(None)


@pytest.fixture
async def pd(cluster: FakeCluster) -> AsyncIterator[PdClient]:
    client = await PdClient.connect([f"http://{cluster.address}"], deadline=5.0)
    yield client
    await client.close()
