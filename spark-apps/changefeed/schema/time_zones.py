"""Time zones, by rules that come with polars, never from the machine: a file's bytes must not depend on where it is
written (rule 10).
"""

from __future__ import annotations

import polars as pl

from changefeed.errors import InvalidSpec

UTC = "UTC"


def check_time_zone(name: str) -> None:
    """Raises InvalidSpec for a zone that the bundled rules don't know."""
    try:
        pl.Series([0]).cast(pl.Datetime("us", UTC)).dt.convert_time_zone(name)
    except pl.exceptions.ComputeError as error:
        raise InvalidSpec(
            "spec.timeZone", f"{name!r} is not a known time zone", 'Use an IANA name such as "UTC" or "Asia/Shanghai".'
        ) from error
