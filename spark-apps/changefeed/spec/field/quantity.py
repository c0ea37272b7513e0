"""Durations ("5s", "1h30m") and sizes ("64Mi") as the resource writes them.

Text and number must convert to and fro without loss: the effective config is compared byte by byte.
"""

from __future__ import annotations

import re
from fractions import Fraction

_SECONDS = {"ms": Fraction(1, 1000), "s": Fraction(1), "m": Fraction(60), "h": Fraction(3600)}
#: For Python and RE2.
DURATION_PATTERN = (
    r"(?:[0-9]+ms|[0-9]+(?:\.[0-9]{1,3})?s|[0-9]+(?:\.[0-9]{1,4})?m|[0-9]+(?:\.[0-9]{1,5})?h)+"  # whole milliseconds
)
SIZE_PATTERN = "[0-9]+(?:Ki|Mi|Gi|Ti|k|M|G|T)?"
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")

_BYTES = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SIZE = re.compile(r"([0-9]+)(Ki|Mi|Gi|Ti|k|M|G|T)?")


def parse_duration(text: str) -> float:
    """Seconds, of whole milliseconds.

    Raises ValueError when `text` is not a duration with a unit, or has a fraction of a millisecond.
    """
    if not re.fullmatch(DURATION_PATTERN, text):
        raise ValueError(text)
    parts = (Fraction(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(text))
    return float(sum(parts, Fraction()))


def format_duration(seconds: float) -> str:
    """The shortest text with one unit: 86400.0 -> "24h", 1.5 -> "1500ms"."""
    milliseconds = round(seconds * 1000)
    for unit in ("h", "m", "s"):
        each = int(_SECONDS[unit] * 1000)
        if milliseconds and milliseconds % each == 0:
            return f"{milliseconds // each}{unit}"
    return f"{milliseconds}ms"


def parse_size(text: str) -> int:
    """Bytes, of a Kubernetes quantity: "64Mi", "20G", "4096".

    Raises ValueError when `text` is not a whole number with a known unit.
    """
    match = _SIZE.fullmatch(text)
    if not match:
        raise ValueError(text)
    return int(match[1]) * _BYTES.get(match[2] or "", 1)


def format_size(size: int) -> str:
    """The shortest exact text with a binary unit: 67108864 -> "64Mi"."""
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        if size and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return str(size)
