"""Time zones, by rules that come with polars, never from the machine: a file's bytes must not depend on where it is
written (rule 10).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
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


def shown_in(time_zone: str, utc_us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Say what the clocks of the zone show at points in time. Both in us since 1970, one of them by these clocks."""
    shown = pl.Series(utc_us).cast(pl.Datetime("us", UTC)).dt.convert_time_zone(time_zone)
    local: npt.NDArray[np.int64] = shown.dt.replace_time_zone(None).to_physical().to_numpy()
    return local
