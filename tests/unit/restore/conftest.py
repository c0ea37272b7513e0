from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.tidb import Tidb
from restore_story import ITEMS, PARTS
from verify_story import Story


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def tidb(cluster: DevCluster) -> Tidb:
    tidb = Tidb(cluster)
    tidb.bootstrap()
    return tidb


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return count(1)


@pytest.fixture
def story(cluster: DevCluster, tidb: Tidb, numbers: Iterator[int]) -> Story:
    """It begins before `items` and `parted` are made, and `old` is there."""
    story = Story(cluster, tidb, f"re{next(numbers)}_")
    for name in (story.db, story.too, story.out):
        tidb.create_database(name)
    tidb.create_table(story.db, "old", ITEMS)
    story.insert("old", (1,), price=5)
    story.start_ts = tidb.now()
    tidb.create_table(story.db, "items", ITEMS)
    tidb.create_table(story.db, "parted", ITEMS, partitions=PARTS)
    for name in ("items", "parted"):
        story.insert(name, (1, 2, 3, 11, 12, 21), price=5, note="it's")
    return story
