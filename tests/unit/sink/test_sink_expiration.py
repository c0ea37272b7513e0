"""Which files of a sink have expired: data files and indexes of earlier days, nothing else."""

from __future__ import annotations

import pytest
from changefeed.sink.storage.expiration import is_expired

BEFORE = "2026-11-20"


@pytest.mark.parametrize(
    "path",
    [
        "shop/orders/450/2026-11-19/CDC00000000000000000001.csv",
        "shop/orders/450/2026-11-19/CDC_a-b_00000000000000000001.json.gz",
        "shop/orders/450/77/2025-12-31/CDC000001.parquet",
        "105/450/2026-11-19/CDC000001.csv",
        "shop/orders/450/2026-11-19/meta/CDC.index",
        "shop/2026-11-30/450/2026-11-19/meta/CDC.index",
    ],
)
def test_files_of_earlier_days_have_expired(path: str) -> None:
    assert is_expired(path, BEFORE)


@pytest.mark.parametrize(
    "path",
    [
        "metadata",
        ".changefeed-owner.json",
        "shop/orders/meta/schema_450_0123456789.json",
        "shop/orders/450/2026-11-20/CDC00000000000000000001.csv",
        "shop/orders/450/2026-11-20/meta/CDC.index",
        "shop/2026-11-19/meta/schema_450_0123456789.json",
        "shop/2026-11-19/450/2026-11-20/CDC000001.csv",
        "shop/2026-11-19/450/CDC000001.csv",
        "shop/orders/450/2026-11-19/notes.csv",
        "shop/orders/450/2026-11/CDC000001.csv",
        "2026-11-19/meta/schema_450_0123456789.json",
    ],
)
def test_other_files_stay(path: str) -> None:
    assert not is_expired(path, BEFORE)
