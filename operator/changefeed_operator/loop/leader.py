"""Which of several operators acts: the holder of a Lease.

`Election` is the pure part: what it has seen of the Lease, what it would write, whether it may act now. `Leadership` is
the shell. Somebody else's clock is never read: a lease has run out when it has not changed for its whole duration as
measured here. A leader stops acting `RENEW_DEADLINE` after the start of its last good renewal, well before another
one may take the Lease; what it has sent by then can do no harm, because writes carry preconditions.
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

#: Seconds after which an unchanged Lease may be taken.
LEASE_DURATION = 15.0

#: Seconds after which a leader that could not renew stops acting.
RENEW_DEADLINE = 10.0

#: Seconds between two looks at the Lease.
RETRY_PERIOD = 2.0

#: Seconds that one request about the Lease may take.
LEASE_REQUEST = 4.0

_LEASE_TYPE = {"apiVersion": LEASE.api_version, "kind": LEASE.kind}

log = structlog.get_logger(__name__)


@dataclass
class Election:
    """What one candidate knows; `now` is a clock that never goes back, in seconds."""

    identity: str
    lease_duration: float = LEASE_DURATION
    renew_deadline: float = RENEW_DEADLINE
    _seen: tuple[Any, ...] = ()
    _seen_at: float = 0.0
    _renewed_at: float | None = None

    def see(self, spec: Manifest, now: float) -> None:
        """This is the Lease's spec as it stands; {} for none."""
        record = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions"))
        if record != self._seen:
            self._seen, self._seen_at = record, now

    def proposal(self, spec: Manifest, now: float, wall: datetime) -> Manifest | None:
        """The spec to write over the one just seen: mine to renew, free or run out to take; None: another's."""
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
        """Another one holds the Lease, or it was given back."""
        self._renewed_at = None

    def holds(self, now: float) -> bool:
        """Whether it may act now."""
        return self._renewed_at is not None and now < self._renewed_at + self.renew_deadline


class Leadership:
    """Takes, keeps and gives back one Lease. `kube` is its own client, so that it never waits behind other requests."""

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
        """Whether this operator may write now."""
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
        """Renew for ever; raises Fenced as soon as this operator must not act any more."""
        while self.holds():
            await asyncio.sleep(RETRY_PERIOD)
            await self._step()
        raise Fenced(
            f"The Lease {self._namespace}/{self._name} is not held any more.",
            "This process ends; another operator goes on, or this one after its restart.",
        )

    async def release(self) -> None:
        """Give the Lease back, so that a standby takes it at its next look; a failure costs only its duration."""
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
            log.warning("lease not given back", error=str(e), lease=self._name)

    async def _step(self) -> str:
        """Look at the Lease once and write what is right; gives its holder, "" for unknown."""
        try:
            async with asyncio.timeout(LEASE_REQUEST):
                return await self._look()
        except (ChangefeedError, TimeoutError) as e:
            log.warning("lease not had", error=str(e) or type(e).__name__, lease=self._name)
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
