"""The pages: what somebody named stays text, what lets somebody in is not on them, and none grows without bound."""

from __future__ import annotations

import pytest
from changefeed.ui.pages import changefeed_page, failure_page, overview_page
from changefeed.ui.resource import of_resource
from changefeed.ui.view import ChangefeedView, Overview, of_driver, overview, with_driver
from ui_page import NOW_MS, Seen, status

NASTY = """<script>alert(1)</script>'"><img src=x onerror=alert(2)>{{ 1234 * 4321 }}"""
SECRET = "hunter2"
URI = f"mysql://root:{SECRET}@db:4000/?password={SECRET}"


def page_of(one: ChangefeedView) -> str:
    return changefeed_page(one, "here", NOW_MS)


def _everywhere(text: str, name: str) -> list[str]:
    """All pages, with `text` wherever somebody's text can be. `name`: of a resource and its namespace."""
    error = {"class": text, "message": text, "time": "2026-11-27T17:00:00Z", "nextRetryTime": "2026-11-27T19:00:00Z"}
    condition = dict.fromkeys(("type", "status", "reason", "message"), text)
    resource = {
        "metadata": {"namespace": name, "name": name},
        "spec": {
            "upstream": {"pdAddresses": [text]},
            "filter": {"rules": [text]},
            "sink": {text: {"uri": text}},
        },
        "status": {
            "state": text,
            "message": text,
            "checkpointTs": "470617531319320577",
            "lastError": error,
            "conditions": [condition],
            "lastDdl": {"statement": text, "time": text},
            "initialCopy": text,
            "eventStoreMode": text,
            "attempt": text,
            "epoch": text,
            "hold": {"until": text},
            "restarts": {"total": text},
        },
    }
    known = of_resource(resource, NOW_MS)
    live = of_driver(status(text=text, state=text))
    return [
        overview_page(overview([known, live], [text]), text, NOW_MS),
        changefeed_page(known, text, NOW_MS),
        changefeed_page(live, text, NOW_MS),
        changefeed_page(with_driver(known, status(text=text)), text, NOW_MS),
        failure_page(text, text, text, text, NOW_MS),
    ]


@pytest.mark.parametrize("page", _everywhere(NASTY, NASTY))
def test_a_table_named_script_is_text(page: str) -> None:
    seen = Seen(page)
    assert [script["src"] for script in seen.all("script")] == ["/assets/refresh.js"]
    assert seen.all("img") == []
    assert "5332114" not in seen.text
    assert NASTY in seen.text
    for _, attributes in seen.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        assert not (attributes.get("href") or "").startswith("javascript:")


@pytest.mark.parametrize("page", _everywhere(URI, "orders"))
def test_no_secret_is_shown_wherever_it_stands(page: str) -> None:
    assert SECRET not in page
    assert "mysql://***@db:4000/?password=***" in Seen(page).text


def test_what_a_slot_keeps_is_shown_and_no_expiry() -> None:
    hold = {"ts": "470617531319320577", "until": "2026-11-28T17:00:00Z", "keptBytes": 25 << 19, "walStatus": "extended"}
    resource = {"metadata": {"namespace": "shop", "name": "orders"}, "spec": {}, "status": {"hold": hold}}
    text = Seen(changefeed_page(of_resource(resource, NOW_MS), "", NOW_MS)).text
    assert "12.5 MiB, extended" in text
    assert "2026-11-28" not in text


def test_a_thousand_tables_are_a_page_of_bounded_size() -> None:
    page = page_of(of_driver(status(1_000)))
    seen = Seen(page)
    assert "100 of 1,000 tables, furthest behind first" in seen.text
    assert "shop.t1000" in seen.texts
    assert "shop.t901" in seen.texts
    assert "shop.t900" not in seen.texts
    assert len(page) < 100_000


def test_a_changefeed_is_shown_with_all_that_its_driver_tells() -> None:
    seen = Seen(page_of(of_driver(status())))
    for words in (
        "shop/orders Normal",
        "Last error : StoreAway No answer. Next: Look at it.",
        "Lag 2.5 s",
        "2026-11-27 17:59:57 UTC (2.5 s ago)",
        "upstream and pullers: 0.5 s planner: 0.5 s pipeline and sink: 1.5 s",
        "2026-11-27 18:00:30 UTC 0",
        "shop.t1 470",
        "shop.t2 2.0 s 0.5 s",
        "puller 5 2 1.5 kB 3 B",
        "Sink s3://lake/orders",
    ):
        assert words.replace(" : ", ": ") in seen.text.replace(" : ", ": "), words
    assert len(seen.all("polygon")) == 3


def test_what_is_not_known_is_not_shown_as_nought() -> None:
    unknown = ChangefeedView("shop", "orders", "Pending", NOW_MS, notes=("No driver answers at h:1.",))
    seen = Seen(page_of(unknown))
    assert "not known yet" in seen.text
    assert "No driver answers at h:1." in seen.texts
    assert not seen.all("svg")
    assert "0.0 s" not in seen.text
    assert "No changefeeds to show." in Seen(overview_page(Overview((), 0), "here", NOW_MS)).texts


def test_every_state_is_told_in_words_too_and_every_link_leads_to_its_changefeed() -> None:
    states = ("Normal", "Warning", "Failed", "Stopped", "Finished", "Pending")
    seen = Seen(
        overview_page(overview(ChangefeedView("a b", state, state, NOW_MS) for state in states), "here", NOW_MS)
    )
    assert set(states) <= set(seen.texts)
    links = [link["href"] for link in seen.all("a")]
    assert sorted(links) == sorted(["/", *(f"/changefeeds/a%20b/{state}" for state in states)])


def test_without_scripts_the_page_loads_itself_anew() -> None:
    seen = Seen(page_of(of_driver(status())))
    assert {"http-equiv": "refresh", "content": "10"} in seen.all("meta")
