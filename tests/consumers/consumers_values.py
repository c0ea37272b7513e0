"""Values as readers have them: dates and times that mean the same, and how a page shows a value."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

_SHOWN = 24


def moment(base: str, value: Any) -> Any:
    """Return a date or time as a clock without zone; a zone's is UTC's. What has no such value stays a text."""
    if isinstance(value, str):
        return _parsed(base, value)
    if isinstance(value, datetime):
        value = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return value.date() if base == "date" and value.time() == time() else value
    if isinstance(value, time):
        return timedelta(hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond)
    return value


def _parsed(base: str, text: str) -> Any:
    try:
        if base == "time":
            sign, clock = (-1, text[1:]) if text.startswith("-") else (1, text)
            hours, minutes, seconds = clock.split(":")
            whole = timedelta(hours=int(hours), minutes=int(minutes), seconds=int(seconds.partition(".")[0]))
            return sign * (whole + timedelta(microseconds=int(seconds.partition(".")[2].ljust(6, "0") or 0)))
        return date.fromisoformat(text) if base == "date" else datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        return text  # a date with a part of 0


def shown(value: Any) -> str:
    """In backticks, or NULL."""
    if value is None:
        return "NULL"
    if isinstance(value, float):
        return f"`{value!r}`, a double"
    if isinstance(value, datetime):
        value = str(value.replace(tzinfo=None))
    text = value if isinstance(value, str) else repr(value) if isinstance(value, bytes) else str(value)
    text = text.encode("unicode_escape").decode().replace("\\\\", "\\") if isinstance(value, str) else text
    text = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
    return f"`{escaped(text)}`" if "`" not in text and text.strip() else f"“{escaped(text)}”"


def escaped(text: str) -> str:
    return (
        text.replace("|", "\\|").replace("<", "&lt;") if "<" in text and "`" not in text else text.replace("|", "\\|")
    )
