"""`changefeed adopt`: hands an existing sink and its log to a Changefeed with a spec.state.id.

See docs/design/rules.md, Rule 7.

The log is the only record of what is in the sink, so it moves along with it, and with it the checkpoint and every
index: nothing is lost or written twice. Without the log nothing can be adopted.

1. Nothing is changed until it is clear what will happen: `look` only reads.
2. *The old driver is alive, or comes back later.* An epoch that belongs to no resource is claimed in the old log,
   followed by `closed`: a driver still running finds that at its next record, one started later finds the log closed.
3. *It dies halfway.* The hold at PD is set first and the claim in the sink is changed last. A Changefeed started in
   between finds the sink owned (`check_free` comes before its first record). Every step can be repeated.
4. *Someone else adopts at the same time.* The claim is changed by compare-and-swap: only one succeeds.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from changefeed.errors import InvalidSpec, NeedsHuman
from changefeed.eventstore.run_folder import RunFolder
from changefeed.log.log import LOG, Log
from changefeed.log.records import ClosedRecord, EpochRecord
from changefeed.log.state import State
from changefeed.objectstore.local import LocalStore
from changefeed.objectstore.once import create_bytes
from changefeed.objectstore.open import Store, open_store
from changefeed.owner import locations
from changefeed.owner.alive import Alive
from changefeed.owner.preparation.checks import check_same
from changefeed.owner.preparation.records import next_epoch
from changefeed.sink.storage.claim import check_newest
from changefeed.sink.storage.claim_object import ClaimObject, hand_over, read_claim
from changefeed.sink.storage.location import SINK_FIELD, generation_folder, sink_location
from changefeed.spec.model import Changefeed
from changefeed.upstream import choice

_PD_DEADLINE_S = 10.0
_FIRST = f"{LOG}/{1:020}.json"


@dataclass(frozen=True)
class Adoption:
    """What is taken over, from whom, and where to. `steps`: what is done, a sentence each."""

    owner: str  # namespace/name of the resource that drove it last
    uid: str  # its uid
    from_uri: str  # where its log is
    to_uri: str  # where it will be
    sink_uri: str
    checkpoint_ts: int
    steps: tuple[str, ...]


async def adopt(changefeed: Changefeed, secrets_dir: Path | None = None, confirmed: bool = False) -> Adoption:
    """What is to be done, and done when it is `confirmed`.

    Raises InvalidSpec, NeedsHuman (there is nothing that this resource could go on from), Conflict (a driver runs),
    SnapshotLostByGC, Unavailable.
    """
    check_adoptable(changefeed)
    upstream = await choice.access_of(changefeed, secrets_dir).connect(_PD_DEADLINE_S)
    try:
        with ExitStack() as held:
            plan = await asyncio.to_thread(
                _look, changefeed, secrets_dir, upstream.cluster_id, await upstream.now_ms(), held
            )
            if confirmed:
                await locations.lease_of(changefeed, upstream).hold(plan.state.checkpoint_ts)
                await asyncio.to_thread(_carry_out, plan)
    finally:
        await upstream.close()
    return _told(plan)


def check_adoptable(changefeed: Changefeed) -> None:
    """Raises InvalidSpec when nothing can be handed to this changefeed."""
    if changefeed.spec.sink.storage is None:
        raise InvalidSpec(
            f"spec.sink.{changefeed.spec.sink.kind}",
            "only a storage sink records its owner",
            "Give a new Changefeed the spec.state.id of the old one.",
        )
    if not changefeed.spec.state.id:
        raise InvalidSpec(
            "spec.state.id",
            "missing: without it, the location of the state depends on a uid that the resource does not have yet",
            "Choose a permanent id.",
        )


@dataclass(frozen=True)
class _Plan:
    sink: Store
    old: Store
    new: Store  # the same as `old` when the state has this id already
    state: State
    claim: ClaimObject
    superseded: tuple[str, ...]


def _look(changefeed: Changefeed, secrets_dir: Path | None, cluster_id: int, pd_ms: int, held: ExitStack) -> _Plan:
    """Only reads; on this machine it holds the state and the sink against drivers."""
    of_state, of_sink = locations.state_location(changefeed, secrets_dir), sink_location(changefeed, secrets_dir)
    new = open_store(of_state.uri, locations.STATE_FIELD, of_state.secret)
    sink = open_store(of_sink.uri, SINK_FIELD, of_sink.secret)
    claim = read_claim(sink)
    old = new if claim.state_uri == new.uri else open_store(claim.state_uri, secret=of_state.secret)
    for store in {id(store): store for store in (sink, old, new)}.values():
        held.callback(store.release)
        store.hold()
    state = Log(old).read()
    if state.n == 0 or state.uid != claim.uid:
        raise NeedsHuman(
            f"The log of {sink.uri} is not at {old.uri}, where its claim says it is.",
            "Without the log it is unknown what the files contain: start a new changefeed with an empty sink.",
        )
    if not isinstance(old, LocalStore) and not state.closed:
        Alive(old, f"adopt-{secrets.token_hex(4)}").check(pd_ms)
    if changefeed.metadata.uid == state.epoch.uid and old is new and not state.closed:
        raise NeedsHuman(
            f"Changefeed {changefeed.name} has the state at {new.uri} already.", "There is nothing to adopt."
        )
    check_same(changefeed, state, cluster_id)
    check_newest(state, old.uri, generation_folder(sink, state.generation))
    if old is not new:
        found = Log(new).read()
        if found.n > state.n or (found.n and new.get(_FIRST).body != old.get(_FIRST).body):
            raise NeedsHuman(
                f"There is a log of another changefeed at {new.uri} already.", "Choose another spec.state.id."
            )
    owner = state.epoch.uid
    return _Plan(sink, old, new, state, claim, () if owner == changefeed.metadata.uid else (owner,))


def _carry_out(plan: _Plan) -> None:
    _close(plan)
    if plan.old is plan.new:
        return
    # Snapshots first: a copy that ends in the middle is the beginning of the log, and can be gone on with.
    for path in sorted((path for path, _ in plan.old.list(LOG)), key=lambda path: ("snapshot" not in path, path)):
        create_bytes(plan.new, path, plan.old.get(path).body)
    for generation in range(1, plan.state.generation + 1):
        hand_over(generation_folder(plan.sink, generation), plan.claim, plan.new.uri, generation)
    # A cache of drivers that can't come back; the next one pulls again from the checkpoint.
    epoch = Log(plan.old).read().epoch
    RunFolder(plan.old.location, epoch.number, epoch.nonce).delete_lower_epochs()


def _close(plan: _Plan) -> None:
    """Whoever drove it last is superseded for good; whoever it had superseded before may come back."""
    log, nonce = Log(plan.old), secrets.token_hex(8)
    state = log.read()
    if state.closed and state.released:
        return  # it was done before

    def epoch(before: State) -> EpochRecord:
        nobody = {**before.epoch.config.get("metadata", {}), "uid": f"adopt-{nonce}"}
        return next_epoch(before, nonce, 0, {**before.epoch.config, "metadata": nobody})

    state = log.claim_epoch(epoch)
    log.append(ClosedRecord(n=state.n + 1, epoch=state.epoch.number, nonce=nonce, superseded=plan.superseded))


def _told(plan: _Plan) -> Adoption:
    epoch, state = plan.state.epoch, plan.state
    steps = [
        f"Hold the upstream's history after {state.checkpoint_ts}.",
        f"End the log at {plan.old.uri}: no driver of {epoch.name}, uid {epoch.uid}, can go on there.",
    ]
    if plan.old is not plan.new:
        steps.append(f"Copy the log to {plan.new.uri}.")
        steps.append(f"Change the owner in {plan.sink.uri} to the state at {plan.new.uri}.")
    return Adoption(epoch.name, epoch.uid, plan.old.uri, plan.new.uri, plan.sink.uri, state.checkpoint_ts, tuple(steps))
