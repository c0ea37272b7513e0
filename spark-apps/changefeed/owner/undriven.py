"""What is done for a changefeed that no driver runs: its history is held while it stands still, its log is closed.

`hold` only reads the log, so it is harmless beside a driver. `close` takes the changefeed over like a driver, with an
epoch of its own: whoever drives it still is fenced before the log is closed (rules 5, 6).
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from pathlib import Path

from changefeed.errors import Fenced, NeedsHuman
from changefeed.eventstore.house import House
from changefeed.model.record import ClosedRecord, EpochRecord, StartRecord
from changefeed.objectstore import Place
from changefeed.objectstore.open import Store, open_store
from changefeed.owner import places
from changefeed.owner.history import State
from changefeed.owner.log import Log
from changefeed.owner.prepare import epoch_record
from changefeed.spec.model import Changefeed
from changefeed.upstream.pd import PdClient
from changefeed.upstream.safepoint import Safepoint, service_id

_PD_DEADLINE_S = 10.0


@dataclass(frozen=True)
class Held:
    """`ts`: history after it is kept readable until `seconds` from now; None: there is nothing to hold, `why`."""

    ts: int | None
    seconds: int
    why: str = ""


async def hold(changefeed: Changefeed, secrets_dir: Path | None = None) -> Held:
    """Keep what a later driver must pull from GC, for another spec.upstream.safepointTtl (rule 14).

    Raises NeedsHuman when some of it may be gone already, Unavailable.
    """
    log = _log(changefeed, secrets_dir)
    state = await asyncio.to_thread(log.read)
    ts, why = _to_hold(changefeed, state)
    seconds = int(changefeed.spec.upstream.safepoint_ttl)
    if ts is None:
        return Held(None, seconds, why)
    pd = await _connect(changefeed)
    try:
        safepoint = _safepoint(changefeed, pd)
        try:
            await safepoint.hold(ts)
        except NeedsHuman:
            if (await asyncio.to_thread(log.read)).n == state.n:
                raise
            return Held(None, seconds, "a driver runs, and holds it further on")
        if (await asyncio.to_thread(log.read)).closed:  # meanwhile: nobody would remove it any more
            await safepoint.remove()
            return Held(None, seconds, "it was deleted")
    finally:
        await pd.close()
    return Held(ts, seconds)


async def close(changefeed: Changefeed, secrets_dir: Path | None = None) -> bool:
    """Append `closed`, after which no driver can do anything; then let the upstream's GC go on. For a deletion.

    Gives False when it was closed before; the rest is done all the same, so it may be repeated until it succeeds.
    The log stays, the event store is deleted. Raises Conflict (a driver runs on this machine), Unavailable.
    """
    place = places.state_place(changefeed, secrets_dir)
    store = open_store(place.uri, places.STATE_FIELD, place.secret)
    store.hold()
    try:
        closed_now = await asyncio.to_thread(_append_closed, changefeed, store)
        pd = await _connect(changefeed)
        try:
            await _safepoint(changefeed, pd).remove()
        finally:
            await pd.close()
        await asyncio.to_thread(_delete_events, store)
    finally:
        store.release()
    return closed_now


def _to_hold(changefeed: Changefeed, state: State) -> tuple[int | None, str]:
    if state.closed:
        return None, "it was deleted"
    if state.finished:
        return None, "it is finished"
    if state.n == 0:
        return changefeed.spec.start_ts, "it has not started, and has no startTs"
    return state.checkpoint_ts, ""


def _append_closed(changefeed: Changefeed, store: Store) -> bool:
    log, nonce = Log(store, places.LOG), secrets.token_hex(8)
    while not (state := log.read()).closed:
        try:
            if state.n == 0:
                # A driver of it that comes late must find it closed, too.
                log.append(_start_record(changefeed, nonce))
            state = log.claim_epoch(lambda before: _closing_epoch(changefeed, before))
            log.append(ClosedRecord(n=state.n + 1, epoch=state.epoch.number, nonce=state.epoch.nonce))
        except Fenced:
            continue  # somebody was faster: a driver, which is taken over in turn, or another `close`
        return True
    return False


def _start_record(changefeed: Changefeed, nonce: str) -> StartRecord:
    spec, uid = changefeed.spec, changefeed.metadata.uid
    return StartRecord(
        n=1, epoch=0, nonce=nonce, start_ts=spec.start_ts or 0, cluster_id=spec.upstream.cluster_id or 0, uid=uid
    )


def _closing_epoch(changefeed: Changefeed, before: State) -> EpochRecord:
    """Its attempt is above any that was counted, or 0 where nobody counts."""
    attempt = before.epoch.attempt + 1 if before.epoch.attempt else 0
    return epoch_record(changefeed, before, secrets.token_hex(8), attempt)


def _delete_events(store: Store) -> None:
    """Of all drivers before the closing epoch (rule 21)."""
    state = Log(store, places.LOG).read()
    House(store.place, state.epoch.number, state.epoch.nonce).delete_lower_epochs()


def _log(changefeed: Changefeed, secrets_dir: Path | None) -> Log:
    place: Place = places.state_place(changefeed, secrets_dir)
    return Log(open_store(place.uri, places.STATE_FIELD, place.secret), places.LOG)


async def _connect(changefeed: Changefeed) -> PdClient:
    return await PdClient.connect(changefeed.spec.upstream.pd_addresses, _PD_DEADLINE_S)


def _safepoint(changefeed: Changefeed, pd: PdClient) -> Safepoint:
    metadata = changefeed.metadata
    holder = service_id(metadata.namespace, metadata.name, metadata.uid)
    return Safepoint(pd, holder, int(changefeed.spec.upstream.safepoint_ttl))
