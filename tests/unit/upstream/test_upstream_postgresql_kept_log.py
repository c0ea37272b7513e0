"""What a slot keeps of the WAL, and when it would lose it."""

from __future__ import annotations

from typing import Any

import pytest
from changefeed.model.tso import compose
from changefeed.upstream.contract import KeptLog
from changefeed.upstream.postgresql.slot.kept_log import kept_log, why_lost

NOW_MS, MINUTE_MS = 1_800_000_000_000, 60_000
SLOT: dict[str, Any] = {
    "slot_name": "s", "wal_status": "reserved", "active": True, "kept": 600, "safe_wal_size": None, "idle_ms": None,
    "idle_timeout_ms": 0, "now_ms": NOW_MS,
}  # fmt: skip
HELD_TS = compose(NOW_MS - 10 * MINUTE_MS)


def test_without_a_bound_nothing_is_lost() -> None:
    assert kept_log(SLOT, HELD_TS) == KeptLog(600, "reserved")


def test_the_time_that_is_left_is_of_the_rate_since_what_is_held() -> None:
    kept = kept_log(SLOT | {"safe_wal_size": 1200}, HELD_TS)
    assert (kept.most_bytes, kept.gone_ms, kept.warning) == (1800, NOW_MS + 20 * MINUTE_MS, "")


@pytest.mark.parametrize(
    ("other", "warns"),
    [
        ({"safe_wal_size": 600}, False),
        ({"safe_wal_size": 599}, True),
        ({"safe_wal_size": -5, "wal_status": "unreserved"}, True),
        ({"kept": None, "safe_wal_size": 10}, False),
    ],
    ids=["half", "more", "all", "new"],
)
def test_more_than_half_of_what_is_allowed_is_a_warning(other: dict[str, Any], warns: bool) -> None:
    assert ("max_slot_wal_keep_size" in kept_log(SLOT | other, HELD_TS).warning) is warns


@pytest.mark.parametrize(
    ("other", "gone_ms", "warns"),
    [
        ({"active": True}, None, False),
        ({}, NOW_MS + 6 * MINUTE_MS, False),
        ({"idle_ms": 6 * MINUTE_MS}, NOW_MS + 4 * MINUTE_MS, True),
        ({"safe_wal_size": 60}, NOW_MS + MINUTE_MS, True),
    ],
    ids=["read", "idle", "for long", "WAL first"],
)
def test_an_idle_slot_is_given_up(other: dict[str, Any], gone_ms: int | None, warns: bool) -> None:
    idle = {"active": False, "idle_ms": 4 * MINUTE_MS, "idle_timeout_ms": 10 * MINUTE_MS}
    kept = kept_log(SLOT | idle | other, HELD_TS)
    assert (kept.gone_ms, bool(kept.warning)) == (gone_ms, warns)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({}, ""),
        ({"wal_status": "lost"}, "its WAL is removed"),
        ({"invalidation_reason": "idle_timeout", "wal_status": "lost"}, "longer than idle_replication_slot_timeout"),
        ({"invalidation_reason": "of a later release"}, "of a later release"),
        ({"conflicting": True}, "rows of catalogs"),
    ],
)
def test_why_it_is_lost_is_said(other: dict[str, Any], said: str) -> None:
    why = why_lost(SLOT | other)
    assert said in why
    assert bool(why) is bool(said)
