"""When an attempt that failed is followed by another: a back-off for each class of failure, and for one a budget.

What comes from outside (the Spark operator, a registry, a webhook, a quota, a node) heals outside: it is tried for as
long as it takes, ten minutes apart at most. So is a crash, because no exit code tells a bug from a node that breaks.
Lacking memory alone has a budget: the limit stands in the spec, and nobody but a person raises it.

Counts are of a row: they start anew once the changefeed was healthy for `HEALTHY_S`, its spec changed, or it was
paused. Pure; the jitter is derived, so that the same failure always waits the same time.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

#: A driver that has run this long without trouble has earned a full budget, seconds.
HEALTHY_S: Final = 600.0
#: A driver that ends within this many seconds of its start has failed fast.
FAST_S: Final = 60.0

_JITTER = 0.2


class Failure(StrEnum):
    """Why an attempt ended that nobody asked to end."""

    SUBMISSION = "Submission"  # the Spark operator did not get as far as a driver pod
    DRIVER_START = "DriverStart"  # the driver pod did not get as far as a running driver
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_PULL = "ImagePull"
    FAST_FAIL = "FastFail"  # the driver ended within a minute
    CRASH = "Crash"
    HUNG = "Hung"  # the driver did not answer its liveness probe, and the kubelet killed it
    OOM = "OutOfMemory"
    UNAVAILABLE = "Unavailable"  # upstream or sink, past the driver's deadline
    FENCED = "Fenced"  # another driver has taken the changefeed over
    LOST = "Lost"  # somebody took the application or its driver away: a drained node, kubectl delete
    STUCK = "Stuck"  # the SparkApplication is in a state that it does not leave


@dataclass(frozen=True)
class Policy:
    """`budget`: failures in a row after which a person is needed; None: never. Waits double from `first_s`."""

    budget: int | None
    first_s: float
    most_s: float


POLICIES: Final = {
    Failure.SUBMISSION: Policy(None, 10, 300),
    Failure.DRIVER_START: Policy(None, 10, 300),
    Failure.UNSCHEDULABLE: Policy(None, 60, 600),
    Failure.IMAGE_PULL: Policy(None, 60, 600),
    Failure.FAST_FAIL: Policy(None, 10, 600),
    Failure.CRASH: Policy(None, 5, 600),
    Failure.HUNG: Policy(None, 5, 300),
    Failure.OOM: Policy(4, 10, 300),
    Failure.UNAVAILABLE: Policy(None, 10, 300),
    Failure.FENCED: Policy(None, 10, 300),
    Failure.LOST: Policy(None, 1, 60),
    Failure.STUCK: Policy(None, 5, 300),
}


def is_exhausted(failure: Failure, count: int) -> bool:
    """Whether the `count`-th failure in a row needs a person."""
    budget = POLICIES[failure].budget
    return budget is not None and count > budget


def wait_s(failure: Failure, count: int, seed: str) -> float:
    """Seconds from the `count`-th failure in a row (from 1) to the next attempt, give or take a fifth by `seed`."""
    policy = POLICIES[failure]
    wait = min(policy.first_s * 2.0 ** min(count - 1, 32), policy.most_s)
    hashed = hashlib.sha256(f"{seed}/{failure}/{count}".encode()).digest()
    spread = int.from_bytes(hashed[:8]) / (1 << 64)  # 0..1
    return wait * (1 - _JITTER + 2 * _JITTER * spread)
