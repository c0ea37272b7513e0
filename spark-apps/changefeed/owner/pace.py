"""How often a driver does what, and how much at a time. How long a row waits for others before it is written to a file
goes by `spec.mode`: batching costs less.
"""

from __future__ import annotations

from dataclasses import dataclass

from changefeed.owner.pulling.load import SPLIT_BYTES
from changefeed.spec.model import Changefeed
from changefeed.upstream.contract import RENEW_S

_LOW_LATENCY_FLUSH_S = 0.1
_FLUSH_S = 1.0  # of sinks without a flushInterval


@dataclass(frozen=True)
class Pace:
    """Seconds, where nothing else is said."""

    gather_s: float  # until a puller looks at what a store has sent, if that is little
    roll_s: float  # until it is in a segment
    flush_s: float  # until an entry is planned
    metadata_s: float  # between two checkpoints in `metadata`
    safepoint_s: float = RENEW_S  # between two renewals of the hold
    pd_s: float = 0.2  # an answer of PD's is its time for so long
    report_s: float = 0.5  # between two looks whether the resource's status is due
    split_s: float = 5.0  # between two looks for a table that is too much for one puller
    split_bytes: int = SPLIT_BYTES
    plan_bytes: int = 512 << 20
    fold_after: int = 100  # records


def pace_of(changefeed: Changefeed) -> Pace:
    flush_s: float = getattr(changefeed.spec.sink.section, "flush_interval", _FLUSH_S)
    if changefeed.spec.mode == "LowLatency":
        return Pace(gather_s=0.02, roll_s=0.03, flush_s=min(flush_s, _LOW_LATENCY_FLUSH_S), metadata_s=0.2)
    return Pace(gather_s=0.2, roll_s=0.25, flush_s=flush_s, metadata_s=1.0)
