"""Maintains a changefeed that has no driver: holds its history while it is stopped, and closes its log.

`hold` only reads the log, so it is harmless beside a driver. `close` takes over the changefeed like a driver, with its
own epoch: any driver still running is fenced before the log is closed (rules 5, 6).
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from changefeed.errors import ChangefeedError, Fenced, NeedsHuman, Refused, Unavailable
from changefeed.eventstore.run_folder import RunFolder
from changefeed.log.history import is_of_another
from changefeed.log.log import Log
from changefeed.log.records import ClosedRecord, EpochRecord, StartRecord
from changefeed.log.state import State
from changefeed.objectstore import Location
from changefeed.objectstore.open import Store, open_store
from changefeed.owner import locations
from changefeed.owner.preparation.records import epoch_record, start_record
from changefeed.spec.model import Changefeed
from changefeed.upstream import choice
from changefeed.upstream.contract import HeldUntil, Upstream

PD_DEADLINE_S = 10.0
_DELETED = "it was deleted"


@dataclass(frozen=True)
class NothingToHold:
    why: str


async def hold(changefeed: Changefeed, secrets_dir: Path | None = None) -> HeldUntil | NothingToHold:
    """Keep what a later driver must pull from GC, for another spec.upstream.safepointTtl (rule 14).

    Raises NeedsHuman when some of it may be gone already, Unavailable.
    """
    log = _log(changefeed, secrets_dir)
    state = await asyncio.to_thread(log.read)
    ts, why = _to_hold(changefeed, state)
    if ts is None:
        return NothingToHold(why)
    upstream = await connect(changefeed, secrets_dir, state)
    try:
        history = locations.lease_of(changefeed, upstream)
        try:
            await history.hold(ts)
        except NeedsHuman:
            if (await asyncio.to_thread(log.read)).n == state.n:
                raise
            return NothingToHold("a driver is running and keeps renewing it")
        why = _over(changefeed, await asyncio.to_thread(log.read))
        if why == _DELETED:  # meanwhile: nobody would remove it any more
            await history.remove()
        if why:
            return NothingToHold(why)
    finally:
        await upstream.close()
    assert history.held is not None, "hold() has returned"
    return history.held


async def close(changefeed: Changefeed, secrets_dir: Path | None = None, location: Location | None = None) -> bool:
    """Append `closed`, after which no driver of the resource can do anything; then let the upstream's GC go on. For a
    deletion.

    Gives False when it was closed before; the rest is done all the same, so it may be repeated until it succeeds. When
    another resource drives the changefeed (history.py, 10), everything is left to that one.
    The log stays, the event store is deleted. `location`: of its state, opened otherwise than by the changefeed's own
    credentials.
    Raises InvalidSpec, Refused (PD lets nobody in with that Secret) and Conflict (a driver runs on this machine) before
    anything is written; Unavailable and NeedsHuman (another cluster's PD) after all but the hold is removed.
    """
    location = location or locations.state_location(changefeed, secrets_dir)
    store = open_store(location.uri, locations.STATE_FIELD, location.secret)
    state = await asyncio.to_thread(Log(store).read)
    if _is_left_to_another(state, changefeed.metadata.uid):
        return False
    async with AsyncExitStack() as stack:
        upstream = await _reach(changefeed, secrets_dir, state)
        if not isinstance(upstream, ChangefeedError):
            stack.push_async_callback(upstream.close)
        store.hold()
        stack.callback(store.release)
        closed_now = await asyncio.to_thread(_append_closed, changefeed, store)
        if closed_now is None:
            return False
        await asyncio.to_thread(_delete_events, store)
        state = await asyncio.to_thread(Log(store).read)
        if is_of_another(state, changefeed.metadata.uid):
            return closed_now  # what is held by now is held for that one
        if isinstance(upstream, ChangefeedError):
            raise upstream
        await locations.lease_of(changefeed, upstream).remove()
    return closed_now


def _to_hold(changefeed: Changefeed, state: State) -> tuple[int | None, str]:
    if why := _over(changefeed, state):
        return None, why
    if state.finished:
        return None, "it is finished"
    if state.n == 0:
        return changefeed.spec.start_ts, "it has not started and has no startTs"
    return state.checkpoint_ts, ""


def _over(changefeed: Changefeed, state: State) -> str:
    """Why no driver of this resource can come any more; "" when one can."""
    uid = changefeed.metadata.uid
    if uid in state.superseded:
        return "another Changefeed with its spec.state.id has taken over"
    return _DELETED if state.closed and not is_of_another(state, uid) else ""


def _is_left_to_another(state: State, uid: str) -> bool:
    """Another resource drives it, which has taken over, or was there first."""
    return uid in state.superseded or (is_of_another(state, uid) and not state.closed)


def _append_closed(changefeed: Changefeed, store: Store) -> bool | None:
    """Whether it is closed now; False: it was before. None: it is left to another."""
    log, nonce, uid = Log(store), secrets.token_hex(8), changefeed.metadata.uid
    while not (state := log.read()).closed or is_of_another(state, uid):
        if _is_left_to_another(state, uid):
            return None
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
    spec = changefeed.spec
    return start_record(changefeed, nonce, spec.start_ts or 0, spec.upstream.cluster_id or 0)


def _closing_epoch(changefeed: Changefeed, before: State) -> EpochRecord:
    """Its attempt is above any that was counted of its resource, or 0 where nobody counts."""
    counted = 0 if is_of_another(before, changefeed.metadata.uid) else before.epoch.attempt
    attempt = counted + 1 if counted else 0
    return epoch_record(changefeed, before, secrets.token_hex(8), attempt)


def _delete_events(store: Store) -> None:
    """Delete the event stores of all drivers before the closing epoch (rule 21)."""
    state = Log(store).read()
    RunFolder(store.location, state.epoch.number, state.epoch.nonce).delete_lower_epochs()


def _log(changefeed: Changefeed, secrets_dir: Path | None) -> Log:
    location: Location = locations.state_location(changefeed, secrets_dir)
    return Log(open_store(location.uri, locations.STATE_FIELD, location.secret))


async def connect(changefeed: Changefeed, secrets_dir: Path | None, state: State) -> Upstream:
    """Raises NeedsHuman when PD is of another cluster than the changefeed: the history there is not the one wanted."""
    cluster_id = state.cluster_id or changefeed.spec.upstream.cluster_id or 0
    return await choice.access_of(changefeed, secrets_dir).of_cluster(cluster_id).connect(PD_DEADLINE_S)


async def _reach(changefeed: Changefeed, secrets_dir: Path | None, state: State) -> Upstream | ChangefeedError:
    """The error: why PD can't be asked, whatever Secret is given. The cluster may be gone for good.

    Raises InvalidSpec, Refused.
    """
    try:
        return await connect(changefeed, secrets_dir, state)
    except Refused:
        raise
    except (Unavailable, NeedsHuman) as error:
        return error
