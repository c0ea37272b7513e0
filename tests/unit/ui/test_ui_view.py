"""What is shown of a changefeed, by who has told of it."""

from __future__ import annotations

from typing import Any

import pytest
from changefeed.spec.driver_status import DriverError, DriverStatus
from changefeed.ui.resource import of_resource
from changefeed.ui.view import (
    CHANGEFEEDS_SHOWN,
    ChangefeedView,
    lag_of,
    of_driver,
    overview,
    unanswered,
    with_driver,
)
from ui_page import NOW_MS, status, ts


def resource(**changes: Any) -> dict[str, Any]:
    told = {
        "state": "Warning",
        "message": "The sink can't be written. Look at it.",
        "checkpointTs": str(ts(30)),
        "checkpointTime": "2026-11-27T17:59:30Z",
        "resolvedTs": str(ts(1)),
        "tables": 7,
        "rows": 1_000,
        "attempt": 4,
        "epoch": 5,
        "lastError": {"class": "StoreAway", "message": "It is away. Look at it.", "time": "2026-11-27T17:58:00Z"},
        "conditions": [
            {
                "type": "Ready",
                "status": "False",
                "reason": "SinkUnavailable",
                "message": "No.",
                "lastTransitionTime": "2026-11-27T17:00:00Z",
            }
        ],
    }
    spec = {"upstream": {"pdAddresses": ["http://pd:2379"]}, "sink": {"storage": {"uri": "s3://lake/orders"}}}
    return {"metadata": {"namespace": "shop", "name": "orders"}, "spec": spec, "status": told | changes}


def test_a_drivers_word_comes_back_as_it_was_said() -> None:
    told = status(3)
    assert DriverStatus.model_validate_json(told.model_dump_json(by_alias=True)) == told


def test_a_newer_drivers_word_is_read_as_far_as_it_is_known() -> None:
    newer = {
        "namespace": "shop",
        "name": "orders",
        "v": 9,
        "mood": {"good": True},
        "tables": [{"name": "a", "color": 1}],
    }
    shown = of_driver(DriverStatus.model_validate(newer))
    assert [table.name for table in shown.tables] == ["a"]
    assert (shown.lag, shown.tone) == (None, "off")


def test_a_drivers_word_is_shown_by_pds_clock() -> None:
    shown = of_driver(status())
    assert (shown.state, shown.tone, shown.lag, shown.table_count) == ("Normal", "good", 2.5, 2)
    assert [(table.name, lag_of(NOW_MS, table.written_ts)) for table in shown.tables] == [
        ("shop.t2", 2.0),
        ("shop.t1", 1.0),
    ]
    assert shown.transactions == status().transactions
    assert shown.failure is not None
    assert (shown.failure.kind, shown.failure.next_step) == ("StoreAway", "Look at it.")


def test_a_resources_status_is_shown_without_its_driver() -> None:
    shown = of_resource(resource(), NOW_MS)
    assert (shown.state, shown.tone, shown.lag, shown.table_count) == ("Warning", "warn", 30.0, 7)
    assert shown.failure is not None
    assert shown.failure.message == "It is away. Look at it."
    assert dict(shown.facts)["Sink"] == "storage s3://lake/orders"
    assert [(each.type, each.reason) for each in shown.conditions] == [("Ready", "SinkUnavailable")]
    assert (shown.tables, shown.lags, shown.is_live) == ((), (), False)


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"metadata": None, "spec": [], "status": "no"},
        {"metadata": {"name": 5}, "spec": {"sink": None, "upstream": 1, "filter": {"rules": 3}}},
        {"spec": {"sink": {"storage": None}}, "status": {"conditions": ["x", {"type": None}], "tables": "many"}},
        {"status": {"checkpointTs": "-5", "resolvedTs": "9" * 40, "lastError": {"time": "yesterday"}}},
    ],
)
def test_whatever_a_resource_holds_it_is_shown(broken: dict[str, Any]) -> None:
    shown = of_resource(broken, NOW_MS)
    assert (shown.checkpoint_ts, shown.tone) == (0, "off")


def test_a_driver_adds_what_only_it_knows_and_the_resources_words_stay() -> None:
    shown = with_driver(of_resource(resource(), NOW_MS), status())
    assert (shown.state, shown.message) == ("Warning", "The sink can't be written. Look at it.")
    assert (shown.lag, len(shown.tables), len(shown.lags), shown.is_live) == (2.5, 2, 2, True)
    facts = dict(shown.facts)
    assert (facts["Sink"], facts["Driver"]) == ("storage s3://lake/orders", "attempt 4, epoch 5")


def test_of_two_errors_the_one_that_lasts_is_shown_then_the_newer() -> None:
    over = DriverError(kind="StoreAway", message="now", at_ms=NOW_MS, over=True)
    known = of_resource(resource(), NOW_MS)
    lasting = with_driver(known, status(last_error=over)).failure
    assert lasting is not None
    assert lasting.message == "It is away. Look at it."
    newer = with_driver(known, status(last_error=over.model_copy(update={"over": False}))).failure
    assert newer is not None
    assert newer.message == "now"


def test_a_driver_that_has_fallen_silent_is_said_to_be() -> None:
    shown = unanswered(of_driver(status()), "No driver answers at h:1.", NOW_MS + 60_000)
    assert (shown.tone, shown.lag) == ("bad", 62.5)
    assert shown.notes == ("No driver answers at h:1. The page shows the driver's last report.",)


def test_the_worst_come_first_and_a_thousand_are_cut_off() -> None:
    def one(name: str, state: str, seconds: int) -> ChangefeedView:
        return ChangefeedView("shop", name, state, NOW_MS, checkpoint_ts=ts(seconds))

    few = overview([one("a", "Normal", 1), one("b", "Failed", 1), one("c", "Stopped", 900), one("d", "Normal", 9)])
    assert [each.name for each in few.changefeeds] == ["b", "c", "d", "a"]
    many = overview(one(f"n{number}", "Normal", number) for number in range(1_000))
    assert (len(many.changefeeds), many.total) == (CHANGEFEEDS_SHOWN, 1_000)
    assert many.changefeeds[0].name == "n999"
