"""What to do about a region's error event: a table as a pure function (docs/design/tikv.md, Error events).

An ignored error event would leave a silent stream and a resolved-ts stuck forever, so the function is total: it retries
what it does not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from changefeed.errors import ChangefeedError, InvalidSpec, ProtocolViolation, Unavailable
from changefeed.upstream.tikv.feed.stopped_stores import BUSY, CONGESTED
from changefeed.wire import cdcpb_pb2

_MAX_BUSY_SECONDS = 600.0
_FIRST_BACKOFF = 0.05
_LAST_BACKOFF = 2.0


@dataclass(frozen=True)
class Wait:
    """The store takes no registration for now, whatever region it is of: see upstream/tikv/feed/congestion.

    `seconds`: that it asks to wait, 0 for none. `reason`: see upstream/tikv/feed/stopped_stores.
    """

    seconds: float
    reason: str


@dataclass(frozen=True)
class Relocate:
    """Ask PD which regions stand there now."""


@dataclass(frozen=True)
class Leader:
    """Register the region again at the store that leads it now."""

    store_id: int


@dataclass(frozen=True)
class Fatal:
    """Trying again can't help."""

    error: ChangefeedError


Reaction = Wait | Relocate | Leader | Fatal


def reaction(error: cdcpb_pb2.Error) -> Reaction:
    """One reaction to every error event, known or not."""
    if error.HasField("cluster_id_mismatch"):
        mismatch = error.cluster_id_mismatch
        return Fatal(
            InvalidSpec(
                "upstream.pdAddresses",
                f"the stores belong to cluster {mismatch.current}, PD said {mismatch.request}",
                "Check that all addresses are of one cluster.",
            )
        )
    if error.HasField("compatibility"):
        needed = error.compatibility.required_version
        return Fatal(Unavailable(f"A TiKV store asks for a client of version {needed}.", "Upgrade the changefeed."))
    if error.HasField("duplicate_request"):
        region = error.duplicate_request.region_id
        return Fatal(
            ProtocolViolation(f"Region {region} was registered twice under one request.", "Report this as a defect.")
        )
    if error.HasField("not_leader"):
        store = error.not_leader.leader.store_id
        return Leader(store) if store else Relocate()
    if error.HasField("region_not_found") or error.HasField("epoch_not_match"):
        return Relocate()
    if error.HasField("server_is_busy"):
        return Wait(min(error.server_is_busy.backoff_ms / 1000, _MAX_BUSY_SECONDS), BUSY)
    if error.HasField("congested"):
        return Wait(0.0, CONGESTED)
    return Relocate()  # whatever a newer server may say


def backoff(attempt: int, rng: Random) -> float:
    """Seconds before try `attempt` (1, 2, ...): 50 ms doubled up to 2 s, of which a random half is taken off."""
    whole: float = min(_FIRST_BACKOFF * 2 ** min(attempt - 1, 16), _LAST_BACKOFF)
    return whole * (0.5 + rng.random() / 2)
