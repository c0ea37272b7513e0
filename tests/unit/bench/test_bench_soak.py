"""When a soak fails: a limit that is passed, a count that goes on growing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest
from soak import Sample, judged, picture

CALM = Sample(
    second=0.0,
    event_store_bytes=1e6,
    held_spans=0.0,
    driver_rss=200 << 20,
    jvm_rss=500 << 20,
    puller_rss=300 << 20,
    total_rss=1400 << 20,
    descriptors=400,
    threads=200,
    processes=9,
    state_files=150,
    resolved_lag_s=1.0,
    checkpoint_lag_s=3.0,
    driver_cpu_s=0.0,
    rows=0.0,
)


def samples(change: Callable[[int], dict[str, Any]] = lambda number: {}) -> list[Sample]:
    return [replace(CALM, **({"second": 5.0 * number} | change(number))) for number in range(90)]


def test_a_calm_one_is_fine_and_so_is_one_that_warms_up() -> None:
    assert judged(samples()) == []
    assert (
        judged(samples(lambda number: {"jvm_rss": min(number, 30) * (20 << 20), "threads": min(number * 9, 250)})) == []
    )
    assert judged(samples(lambda number: {"descriptors": 400 + 200 * (number % 2)})) == []


@pytest.mark.parametrize("name", ["event_store_bytes", "puller_rss", "total_rss"])
def test_a_limit_is_passed_once(name: str) -> None:
    (said,) = judged(samples(lambda number: {name: 7 << 30} if number == 50 else {}))
    assert said.startswith(f"{name} was 7,516,192,768, above its limit of ")


@pytest.mark.parametrize(
    ("name", "each"), [("threads", 3), ("descriptors", 4), ("state_files", 20), ("driver_rss", 3 << 20)]
)
def test_a_count_goes_on_growing(name: str, each: int) -> None:
    (said,) = judged(samples(lambda number: {name: getattr(CALM, name) + number * each}))
    assert said.startswith(f"{name} grows: ")


def test_the_picture_has_a_point_for_each_sample_and_a_mark_for_each_harm() -> None:
    drawn = ElementTree.fromstring(picture(samples(), [7.0, 8.0], "A <soak>"))
    lines = [each for each in drawn if each.tag.endswith("polyline")]
    assert {len(line.attrib["points"].split()) for line in lines} == {90}
    flat = [line for line in lines if len({point.split(",")[1] for point in line.attrib["points"].split()}) == 1]
    assert len(flat) == len(lines), "nothing changes in it"
    assert len([each for each in drawn if each.attrib.get("stroke") == "#57606a"]) == 2
