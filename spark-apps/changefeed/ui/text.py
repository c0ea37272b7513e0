"""Formats times, durations and numbers for the page, and redacts secrets."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60))
_HIDDEN = "***"
#: Everything up to the last @ of a URI: a password may contain an unencoded @ or slash.
_USER_INFO = re.compile(r"(?<=://)[^\s\"'<>`]*@")
_PARAMETER = re.compile(
    r"([?&;][^=&;\s]*(?:secret|passw|token|signature|sig|credential|key)[^=&;\s]*=)[^&;\s\"'<>`]+", re.IGNORECASE
)
_SPOKEN = re.compile(r"\b((?:bearer|basic)\s+|(?:password|passwd|secret|token)\s*[=:]\s*)[^\s,;\"'<>`]+", re.IGNORECASE)


def redact(text: str) -> str:
    """Mask anything that looks like a credential: user info in URIs, values whose names suggest a secret."""
    text = _USER_INFO.sub(f"{_HIDDEN}@", text)
    text = _PARAMETER.sub(rf"\1{_HIDDEN}", text)
    return _SPOKEN.sub(rf"\1{_HIDDEN}", text)


def moment(ms: int) -> str:
    """UTC, to the second; `ms` since 1970."""
    return _datetime(ms).strftime("%Y-%m-%d %H:%M:%S UTC")


def iso(ms: int) -> str:
    """Machine-readable, for the `datetime` attribute of <time>."""
    return _datetime(ms).strftime("%Y-%m-%dT%H:%M:%SZ")


def duration(seconds: float) -> str:
    """Short, at most two units: "0.4 s", "12 s", "3 min 20 s", "2 d 3 h"."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    rest, said = round(seconds), list[str]()
    for unit, length in (*_UNITS, ("s", 1)):
        count, rest = divmod(rest, length)
        if count or said:
            said.append(f"{count} {unit}" if count else "")
        if len(said) == 2:
            break
    return " ".join(filter(None, said))


def ago(ms: int, now_ms: int) -> str:
    """A time in the future, from a clock that is ahead, is "just now"."""
    seconds = (now_ms - ms) / 1000
    return "just now" if seconds < 1 else f"{duration(seconds)} ago"


def count(number: float) -> str:
    """Grouped by thousands."""
    return f"{number:,.0f}"


def size(number: float) -> str:
    """Bytes, in powers of ten."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def _datetime(ms: int) -> datetime:
    """Clamps to the range that datetime supports."""
    return datetime.fromtimestamp(min(max(ms, 0), 253_402_300_799_000) / 1000, UTC)
