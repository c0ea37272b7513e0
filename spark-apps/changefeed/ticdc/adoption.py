"""`changefeed adopt --ticdc`: continues a changefeed in a folder that TiCDC wrote (docs/design/rules.md, Rule 7).

TiCDC has no log, so it is unknown what the files hold above its checkpoint. The changefeed starts at the checkpoint, in
directories of its own (`folder`). What TiCDC wrote above it is delivered a second time (sink-files.md).

1. *TiCDC is still writing.* Then `metadata` or the files change while they are being inspected. A TiCDC that is started
   later can't be detected; preventing that is up to whoever adopts.
2. *It dies halfway.* History is held first. Then the start record is written, which makes a driver start at the
   checkpoint; the sink is claimed last. A driver started in between finds the sink unclaimed and is refused. In the
   opposite order it would start at the current time.
3. *Two adopt at the same time.* With the same state, one of them wins record 1; otherwise one wins the claim.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from changefeed.errors import Conflict, InvalidSpec, NeedsHuman
from changefeed.log.log import Log
from changefeed.log.records import StartRecord
from changefeed.log.state import State
from changefeed.objectstore.open import Store, open_store
from changefeed.owner import locations
from changefeed.owner.adoption import check_adoptable
from changefeed.owner.preparation.checks import check_same
from changefeed.owner.preparation.prepare import select
from changefeed.owner.preparation.records import start_record
from changefeed.sink.storage.claim_object import is_mine, take
from changefeed.sink.storage.layout import Layout
from changefeed.sink.storage.location import SINK_FIELD, sink_location
from changefeed.sink.storage.metadata import published
from changefeed.spec.model import Changefeed
from changefeed.spec.parse import effective
from changefeed.ticdc.folder import check_fits
from changefeed.upstream import choice
from changefeed.upstream.contract import HistoryLease, Upstream

_PD_DEADLINE_S = 10.0
_LOOK_HOLD_S = 600
WATCHED_S = 5.0  # TiCDC writes `metadata` every 2 s


@dataclass(frozen=True)
class Takeover:
    """What is taken over, and where the changefeed begins. `steps`: what is done, a sentence each."""

    sink_uri: str
    to_uri: str  # where the log will be
    checkpoint_ts: int  # TiCDC's, as its `metadata` says
    start_ts: int
    tables: int  # that have files
    files: int  # with data
    steps: tuple[str, ...]


async def adopt_ticdc(changefeed: Changefeed, secrets_dir: Path | None = None, confirmed: bool = False) -> Takeover:
    """What is to be done, and done when it is `confirmed`.

    Raises InvalidSpec, NeedsHuman (nothing to go on with, or a folder of another layout), Conflict (TiCDC writes),
    SnapshotLostByGC, Unavailable.
    """
    check_adoptable(changefeed)
    if changefeed.spec.initial_copy:
        raise InvalidSpec(
            "spec.initialCopy",
            "a folder that TiCDC wrote is continued with changes only, without a copy",
            "Leave it out.",
        )
    upstream = await choice.access_of(changefeed, secrets_dir).connect(_PD_DEADLINE_S)
    try:
        with ExitStack() as held:
            state_store, sink = await asyncio.to_thread(_open, changefeed, secrets_dir, held)
            log = Log(state_store)
            state = await asyncio.to_thread(_begun, changefeed, log, state_store.uri, sink)
            check_same(changefeed, state, upstream.cluster_id)
            paths = await _unchanging(sink)
            checkpoint_ts = await asyncio.to_thread(published, sink)
            start_ts = await _start_ts(changefeed, state, sink, checkpoint_ts, upstream)
            safepoint = _safepoint(changefeed, upstream, confirmed)
            await safepoint.hold(start_ts)
            try:
                files, tables = await check_still(changefeed, upstream, start_ts, sink, paths)
            finally:
                if not confirmed:
                    await safepoint.remove()
            if confirmed:
                record = start_record(changefeed, secrets.token_hex(8), start_ts, upstream.cluster_id, adopted=True)
                await asyncio.to_thread(_carry_out, log, record, state_store.uri, sink)
            steps = _steps(sink, state_store, checkpoint_ts, start_ts)
            return Takeover(sink.uri, state_store.uri, checkpoint_ts, start_ts, tables, files, steps)
    finally:
        await upstream.close()


def _open(changefeed: Changefeed, secrets_dir: Path | None, held: ExitStack) -> tuple[Store, Store]:
    """State and sink; on this machine they are held against drivers."""
    of_state, of_sink = locations.state_location(changefeed, secrets_dir), sink_location(changefeed, secrets_dir)
    state_store = open_store(of_state.uri, locations.STATE_FIELD, of_state.secret)
    sink = open_store(of_sink.uri, SINK_FIELD, of_sink.secret)
    for store in (state_store, sink):
        held.callback(store.release)
        store.hold()
    return state_store, sink


def _begun(changefeed: Changefeed, log: Log, uri: str, sink: Store) -> State:
    """What the log says: nothing, or what an adoption that died has left."""
    state = log.read()
    is_begun = state.n == 1 and state.adopted and state.uid == changefeed.identity
    if is_mine(sink, changefeed.identity, uri) and not is_begun:
        raise NeedsHuman(f"Changefeed {changefeed.name} has {sink.uri} already.", "There is nothing to adopt.")
    if state.n and not is_begun:
        raise NeedsHuman(f"There is a log of another changefeed at {uri} already.", "Choose another spec.state.id.")
    return state


async def _unchanging(sink: Store) -> list[str]:
    """All paths of the sink. Raises Conflict when somebody writes there."""
    before = await asyncio.to_thread(seen_files, sink)
    await asyncio.sleep(WATCHED_S)
    now = await asyncio.to_thread(seen_files, sink)
    if now != before:
        changed = min(path for path, _ in set(now.items()) ^ set(before.items()))
        raise Conflict(
            f"Something is writing to {sink.uri}: {changed} has changed within {WATCHED_S:.0f} s.",
            "Pause TiCDC's changefeed, wait until its `metadata` stands still, then try again.",
        )
    return list(now)


def seen_files(sink: Store) -> dict[str, int]:
    """Sizes by path, and what `metadata` says."""
    return {**dict(sink.list()), "metadata": published(sink)}


async def _start_ts(changefeed: Changefeed, state: State, sink: Store, checkpoint_ts: int, upstream: Upstream) -> int:
    if checkpoint_ts == 0:
        raise NeedsHuman(
            f"{sink.uri} has no `metadata` with a checkpoint: nothing there is complete.",
            "Check spec.sink.storage.uri: it must be TiCDC's sink-uri. An empty folder does not need to be adopted.",
        )
    if state.n and state.start_ts < checkpoint_ts:
        raise NeedsHuman(
            f"An adoption at {state.start_ts} was begun earlier, but TiCDC has since advanced to {checkpoint_ts}.",
            "Choose another spec.state.id and start over.",
        )
    wanted = state.start_ts if state.n else changefeed.spec.start_ts
    start_ts = checkpoint_ts if wanted is None else wanted
    if start_ts < checkpoint_ts:
        raise InvalidSpec(
            "spec.startTs",
            f'"{start_ts}" is below "{checkpoint_ts}", up to which TiCDC has written everything',
            "Leave it out, or give TiCDC's own checkpoint, which may be slightly above the one in `metadata`.",
        )
    if start_ts > (now := await upstream.now()):
        raise InvalidSpec(
            "spec.startTs", f'"{start_ts}" is in the future: the upstream is at "{now}"', "Give TiCDC's checkpoint."
        )
    return start_ts


def _safepoint(changefeed: Changefeed, upstream: Upstream, confirmed: bool) -> HistoryLease:
    """The changefeed's, which stays; who only looks has one of his own."""
    if confirmed:
        return locations.lease_of(changefeed, upstream)
    return upstream.history_lease(f"changefeed-adopt-{secrets.token_hex(6)}", _LOOK_HOLD_S)


async def check_still(
    changefeed: Changefeed, upstream: Upstream, start_ts: int, sink: Store, paths: list[str]
) -> tuple[int, int]:
    schema = await upstream.schema(start_ts)
    tables = {table.id: table for table in select(changefeed, schema, start_ts).values()}
    layout = Layout.of(effective(changefeed)["spec"]["sink"]["storage"])
    return check_fits(sink.uri, paths, layout, start_ts, tables.values())


def _carry_out(log: Log, record: StartRecord, state_uri: str, sink: Store) -> None:
    if log.state.n == 0:
        log.append(record)
    take(sink, record.uid, state_uri)


def _steps(sink: Store, state_store: Store, checkpoint_ts: int, start_ts: int) -> tuple[str, ...]:
    steps = [
        f"Hold the upstream's history after {start_ts}.",
        f"Begin a log at {state_store.uri}: the changefeed starts at {start_ts}.",
        f"Make {sink.uri} its own.",
    ]
    if start_ts > checkpoint_ts:
        steps.append(
            f"Write nothing up to {start_ts}, though `metadata` says {checkpoint_ts}: where TiCDC's own checkpoint is "
            "lower, changes will be missing."
        )
    return tuple(steps)
