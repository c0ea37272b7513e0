"""When a failed attempt is retried: each class of failure has its back-off, and one has a budget.

External failures (the Spark operator, a registry, a webhook, a quota, a node) recover externally: they are retried for
as long as it takes, about ten minutes apart at most. So are crashes, because an exit code can't tell a bug from a
failing node. Only running out of memory has a budget: the limit is in the spec, and someone has to raise it.

Only consecutive failures count: the counts reset once the changefeed has been healthy for `HEALTHY_S`, its spec has
changed, or it was paused. Pure; the jitter is derived, so the same failure always waits the same time.
"""

from __future__ import annotations

import hashlib
from typing import Final

from changefeed.spec.reasons import Policy, Reason

#: Seconds without trouble after which a driver has its full budget again.
HEALTHY_S: Final = 600.0
#: A driver that exits within this many seconds of its start has failed fast.
FAST_S: Final = 60.0

_JITTER = 0.2


#: The classes of failures.
FAILURES: Final = tuple(reason for reason in Reason if reason.policy)


def is_exhausted(failure: Reason, count: int) -> bool:
    """Tell whether the `count`-th failure in a row requires manual intervention."""
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
    assert failure.policy is not None, f"{failure} is not a failure class"
    return failure.policy
