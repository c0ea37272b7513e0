"""A development cluster with two tables, and a changefeed of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.tidb import Tidb
from owner_home import COLUMNS, Home


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(stores=1) as running:
        yield running


@pytest.fixture(scope="module")
def tidb(cluster: DevCluster) -> Tidb:
    made_tidb = Tidb(cluster)
    made_tidb.bootstrap()
    made_tidb.create_database("shop")
    made_tidb.create_table("shop", "orders", COLUMNS)
    made_tidb.create_table("shop", "items", COLUMNS)
    return made_tidb


@pytest.fixture
async def pd(cluster: DevCluster) -> AsyncIterator[PdClient]:
    client = await PdClient.connect([cluster.pd_address])
    yield client
    await client.close()


@pytest.fixture
def home(tmp_path: Path, cluster: DevCluster, tidb: Tidb, pd: PdClient) -> Home:
    return Home(tmp_path, cluster, pd)
