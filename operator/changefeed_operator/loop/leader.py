"""Leader election by a Lease.

`Election` is the pure part: what it has seen of the Lease, what it would write, whether it may act now. `Leadership` is
the shell. Other operators' clocks are never trusted: a Lease has expired once it has not changed for its whole duration
by the local clock. A leader stops acting `RENEW_DEADLINE` after the start of its last successful renewal, well before
another one may take the Lease; requests still in flight then do no harm, because writes carry preconditions.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog
from changefeed.errors import ChangefeedError, Fenced
from changefeed.kube.client import Kube, Manifest
from changefeed.kube.kind import LEASE

#: Seconds after which an unchanged Lease may be taken over.
LEASE_DURATION = 15.0

#: Seconds without a renewal after which a leader stops acting.
RENEW_DEADLINE = 10.0

#: Seconds between checks of the Lease.
RETRY_PERIOD = 2.0

#: Seconds that one request about the Lease may take.
LEASE_REQUEST = 4.0

_LEASE_TYPE = {"apiVersion": LEASE.api_version, "kind": LEASE.kind}

log = structlog.get_logger(__name__)


@dataclass
class Election:
    """The state of one candidate; `now` is a monotonic clock, in seconds."""

    identity: str
    lease_duration: float = LEASE_DURATION
    renew_deadline: float = RENEW_DEADLINE
    _seen: tuple[Any, ...] = ()
    _seen_at: float = 0.0
    _renewed_at: float | None = None

    def see(self, spec: Manifest, now: float) -> None:
        """Note the Lease's current spec; {} if there is no Lease."""
        record = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions"))
        if record != self._seen:
            self._seen, self._seen_at = record, now

    def proposal(self, spec: Manifest, now: float, wall: datetime) -> Manifest | None:
        """The spec to write over the one just seen, to renew or take over the Lease; None if another one holds it."""
        holder = spec.get("holderIdentity")
        stamp = wall.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if holder == self.identity:
            return {**spec, "renewTime": stamp, "leaseDurationSeconds": round(self.lease_duration)}
        runs_out = self._seen_at + max(self.lease_duration, float(spec.get("leaseDurationSeconds") or 0))
        if holder and now < runs_out:
            return None
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": round(self.lease_duration),
            "acquireTime": stamp,
            "renewTime": stamp,
            "leaseTransitions": int(spec.get("leaseTransitions") or 0) + bool(spec),
        }

    def won(self, sent_at: float) -> None:
        """The proposal that was sent at `sent_at` was accepted."""
        self._renewed_at = sent_at

    def lost(self) -> None:
        """Another candidate holds the Lease, or it was released."""
        self._renewed_at = None

    def holds(self, now: float) -> bool:
        """Tell whether it may act now."""
        return self._renewed_at is not None and now < self._renewed_at + self.renew_deadline


class Leadership:
    """Acquires, renews and releases one Lease. `kube` is its own client, so it never queues behind other requests."""

    def __init__(
        self, kube: Kube, namespace: str, name: str, identity: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._clock = clock
        self.election = Election(identity)
        #: When the API server last answered about the Lease.
        self.answered_at = clock()

    def holds(self) -> bool:
        """Tell whether this operator may write now."""
        return self.election.holds(self._clock())

    async def acquire(self) -> None:
        """Return once this operator leads."""
        holder = ""
        while not self.holds():
            seen = await self._step()
            if not self.holds():
                if seen and seen != holder:
                    log.info("standby", leader=seen, lease=self._name)
                    holder = seen
                await asyncio.sleep(RETRY_PERIOD * (0.8 + 0.4 * random.random()))

    async def keep(self) -> None:
        """Renew forever; raises Fenced as soon as this operator may no longer act."""
        while self.holds():
            await asyncio.sleep(RETRY_PERIOD)
            await self._step()
        raise Fenced(
            f"Lost the Lease {self._namespace}/{self._name}.",
            "This process exits; another operator takes over, or this one after it restarts.",
        )

    async def release(self) -> None:
        """Release the Lease, so that a standby takes it at its next check; if this fails, it has to wait for expiry."""
        if not self.holds():
            return
        self.election.lost()
        try:
            async with asyncio.timeout(LEASE_REQUEST):
                lease = await self._kube.get(LEASE, self._namespace, self._name)
                if lease and lease["spec"].get("holderIdentity") == self.election.identity:
                    lease["spec"] = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                    await self._kube.replace(LEASE, lease)
        except (ChangefeedError, TimeoutError) as e:
            log.warning("lease not released", error=str(e), lease=self._name)

    async def _step(self) -> str:
        """Check the Lease once, and acquire or renew it if possible; returns its holder, "" if unknown."""
        try:
            async with asyncio.timeout(LEASE_REQUEST):
                return await self._look()
        except (ChangefeedError, TimeoutError) as e:
            log.warning("lease request failed", error=str(e) or type(e).__name__, lease=self._name)
            return ""

    async def _look(self) -> str:
        lease = await self._kube.get(LEASE, self._namespace, self._name)
        now = self.answered_at = self._clock()
        spec: Manifest = (lease or {}).get("spec") or {}
        self.election.see(spec, now)
        proposed = self.election.proposal(spec, now, datetime.now(UTC))
        if proposed is None:
            self.election.lost()
            return str(spec["holderIdentity"])
        if lease is None:
            metadata = {"namespace": self._namespace, "name": self._name}
            await self._kube.create(
                LEASE, {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": proposed}
            )
        else:
            await self._kube.replace(LEASE, {**lease, **_LEASE_TYPE, "spec": proposed})
        self.election.won(now)
        return self.election.identity
