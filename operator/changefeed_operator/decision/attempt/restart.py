"""When an attempt that failed is followed by another: a back-off for each class of failure, and for one a budget.

What comes from outside (the Spark operator, a registry, a webhook, a quota, a node) heals outside: it is tried for as
long as it takes, ten minutes apart at most. So is a crash, because no exit code tells a bug from a node that breaks.
Lacking memory alone has a budget: the limit stands in the spec, and nobody but a person raises it.

Counts are of a row: they start anew once the changefeed was healthy for `HEALTHY_S`, its spec changed, or it was
paused. Pure; the jitter is derived, so that the same failure always waits the same time.
"""

from __future__ import annotations

import hashlib
from typing import Final

from changefeed.spec.reasons import Policy, Reason

#: A driver that has run this long without trouble has earned a full budget, seconds.
HEALTHY_S: Final = 600.0
#: A driver that ends within this many seconds of its start has failed fast.
FAST_S: Final = 60.0

_JITTER = 0.2


#: The classes of failures.
FAILURES: Final = tuple(reason for reason in Reason if reason.policy)


def is_exhausted(failure: Reason, count: int) -> bool:
    """Whether the `count`-th failure in a row needs a person."""
    budget = _policy(failure).budget
    return budget is not None and count > budget


def wait_s(failure: Reason, count: int, seed: str) -> float:
    """Seconds from the `count`-th failure in a row (from 1) to the next attempt, give or take a fifth by `seed`."""
    policy = _policy(failure)
    wait = min(policy.first_s * 2.0 ** min(count - 1, 32), policy.most_s)
    hashed = hashlib.sha256(f"{seed}/{failure}/{count}".encode()).digest()
    spread = int.from_bytes(hashed[:8]) / (1 << 64)  # 0..1
    return wait * (1 - _JITTER + 2 * _JITTER * spread)


def _policy(failure: Reason) -> Policy:
    assert failure.policy is not None, f"{failure} is no class of failures"
    return failure.policy
