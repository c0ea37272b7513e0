from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed_devcluster.server import DevCluster
from verify_sink import HandSink, Shop, open_shop, write_sink


@pytest.fixture(scope="session")
def shop() -> Iterator[Shop]:
    with DevCluster() as cluster:
        yield open_shop(cluster)


@pytest.fixture(scope="session")
def pristine(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> HandSink:
    return write_sink(tmp_path_factory.mktemp("pristine"), shop)


@pytest.fixture
def sink(pristine: HandSink, tmp_path: Path) -> HandSink:
    """A right sink, to be harmed."""
    return pristine.copy(tmp_path)


@pytest.fixture
def cluster() -> Iterator[DevCluster]:
    with DevCluster() as cluster:
        yield cluster


@pytest.fixture
async def pd(cluster: DevCluster) -> AsyncIterator[PdClient]:
    client = await PdClient.connect([cluster.pd_address])
    yield client
    await client.close()
