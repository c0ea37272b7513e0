from __future__ import annotations

import pytest
from changefeed.spec.field.quantity import format_duration, format_size, parse_duration, parse_size
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "seconds", "shortest"),
    [
        ("5s", 5.0, "5s"),
        ("100ms", 0.1, "100ms"),
        ("24h", 86400.0, "24h"),
        ("60s", 60.0, "1m"),
        ("1h30m", 5400.0, "90m"),
        ("1.5s", 1.5, "1500ms"),
        ("0s", 0.0, "0ms"),
    ],
)
def test_durations(text: str, seconds: float, shortest: str) -> None:
    assert parse_duration(text) == seconds
    assert format_duration(seconds) == shortest


@pytest.mark.parametrize("text", ["", "5", "s", "5 s", "-5s", "5d", "0.5ms", "5s!", "1e3s", "٥s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size", "shortest"),
    [
        ("64Mi", 64 << 20, "64Mi"),
        ("20Gi", 20 << 30, "20Gi"),
        ("1k", 1000, "1000"),
        ("4096", 4096, "4Ki"),
        ("0", 0, "0"),
    ],
)
def test_sizes(text: str, size: int, shortest: str) -> None:
    assert parse_size(text) == size
    assert format_size(size) == shortest


@pytest.mark.parametrize("text", ["", "Mi", "1.5Mi", "-1", "1MB", "1 Mi", "1mi"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_size(text)


@given(st.integers(0, 10**12))
def test_no_value_changes_on_its_way_through_text(number: int) -> None:
    assert parse_size(format_size(number)) == number
    assert parse_duration(format_duration(number / 1000)) == number / 1000
