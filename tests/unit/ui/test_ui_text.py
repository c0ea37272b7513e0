"""Times and spans of time as people read them; what must not be read."""

from __future__ import annotations

import pytest
from changefeed.ui.text import ago, duration, moment, redact, size


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mysql://root:pa55@db:4000/", "mysql://***@db:4000/"),
        ("mysql://root:p@55/w@db:4000", "mysql://***@db:4000"),
        ("mysql://root@db:4000", "mysql://***@db:4000"),
        ("can't reach https://user:pass@store/x: 503.", "can't reach https://***@store/x: 503."),
        (
            "s3://b/x?endpoint=http://s:9000&secret-access-key=abc",
            "s3://b/x?endpoint=http://s:9000&secret-access-key=***",
        ),
        ("s3://b/x?access_key_id=AK&region=eu", "s3://b/x?access_key_id=***&region=eu"),
        ("https://b/x?X-Amz-Signature=00ff&y=1", "https://b/x?X-Amz-Signature=***&y=1"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("password=geheim, then", "password=***, then"),
        ("kafka://a:9092,b:9092/topic?protocol=avro", "kafka://a:9092,b:9092/topic?protocol=avro"),
        ("file:///data/lake/orders", "file:///data/lake/orders"),
        ("checkpoint 470621062737690627", "checkpoint 470621062737690627"),
    ],
)
def test_what_lets_somebody_in_is_not_shown(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert redact(shown) == shown


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-3, "0.0 s"),
        (0.04, "0.0 s"),
        (2.46, "2.5 s"),
        (12.4, "12 s"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (3_600, "1 h"),
        (7_265, "2 h 1 min"),
        (183_600, "2 d 3 h"),
    ],
)
def test_a_span_of_time_has_two_units_at_most(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_moments_are_absolute_and_relative() -> None:
    ms = 1_795_802_400_000
    assert moment(ms) == "2026-11-27 18:00:00 UTC"
    assert ago(ms, ms + 12_000) == "12 s ago"
    assert ago(ms + 500, ms) == "just now"
    assert moment(1 << 62).startswith("9999-")


def test_sizes_have_a_unit() -> None:
    assert [size(999), size(1_500), size(2e9), size(3e15)] == ["999 B", "1.5 kB", "2.0 GB", "3000.0 TB"]
