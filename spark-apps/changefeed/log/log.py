"""The transaction log in an object store: one history however many drivers are running (promise 6).

A shell: it lists, reads, creates and deletes; what records mean stands in `history`. It never overwrites an object,
never tries other bytes at a number whose outcome it does not know, and never deletes what a zombie could create anew.
One caller at a time; every call blocks on the store, tries again what may pass, and raises Unavailable when that
lasts too long (`Patience`): what it was about to do may still happen, and no effect follows.

Why there is one history:

1. *Two drivers create record 58.* Create-if-absent has one winner. The loser reads it, sees another's bytes and is
   Fenced (rule 6), or, while claiming, applies it and tries 59.
2. *The create of 58 times out.* It may land at any later moment, so the same bytes are tried until 58 can be read: then
   it is known whose it is (rule 16).
3. *A driver sleeps just before creating 58, its successor goes on to 200 and folds.* The successor claimed at last + 1
   after applying all records below it, and the sleeper had not created 58: so 58 is the successor's epoch record, or
   that of one between. Those are never deleted, so the sleeper finds 58 taken (rule 5). For the same reason a newer
   epoch always shows at the first number that this driver has not created: `poll_fence` is one read.
4. *A claimant sleeps just before creating its epoch record 58, the live driver goes on to 200 and folds.* 58 was a plan
   and is gone, the create succeeds. But a snapshot that covers 58 was read back before 58 was deleted, and a snapshot
   is deleted only after a newer one was read back: the claimant lists once more and finds one (rule 5). Readers never
   look below a snapshot, so its record means nothing.
5. *A reader lists, then somebody folds.* Records that it goes to read are gone, or are a late claimant's of case 4, and
   then a newer snapshot exists: it lists once more, and starts again. Only what is wrong above a snapshot that is still
   the newest is damage.
6. *A driver dies inside a fold.* Before the snapshot was read back nothing is deleted; after it, left-overs below it
   are ignored by readers and deleted by the next fold.

Record 1 is kept as well: a first driver that sleeps before creating it meets it instead of a free number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pydantic import ValidationError

from changefeed.errors import AlreadyExists, Fenced, NeedsHuman, NotFound
from changefeed.log.history import apply, check_claim
from changefeed.log.records import EpochRecord, Record, decode_record, encode_record
from changefeed.log.state import State, restore, snapshot
from changefeed.objectstore import ObjectStore
from changefeed.objectstore.patience import Patience

T = TypeVar("T")

LOG = "log"  # the prefix of its objects below a changefeed's state
_NAME = re.compile(r"(snapshot-)?(\d{20})\.json")
_NEVER_DELETED = frozenset({"start", "epoch", "closed"})


@dataclass(frozen=True)
class _Listing:
    records: tuple[int, ...]  # ascending
    snapshots: tuple[int, ...]  # ascending; each covers all records <= it

    @property
    def newest_record(self) -> int:
        return self.records[-1] if self.records else 0

    @property
    def newest_snapshot(self) -> int:
        return self.snapshots[-1] if self.snapshots else 0


class Log:
    """The records below LOG in `store`. `state` is what it has read and appended so far."""

    def __init__(self, store: ObjectStore, sleep: Callable[[float], None] | None = None) -> None:
        self.store = store
        self.patience = Patience(sleep=sleep)  # as at start; a run has more
        self._kept: set[int] = set()  # numbers known to be of kinds that are never deleted
        self._folded = 0  # number of the newest snapshot known
        self.state = State()

    @property
    def tail(self) -> int:
        """Records since the newest snapshot: what a recovery reads one by one, and so when to fold."""
        return self.state.n - self._folded

    def read(self) -> State:
        """The newest snapshot with all records after it; `State()` when there is no log.

        Raises NeedsHuman for a gap, and for a record or snapshot that this version can't read.
        """
        while True:
            listing = self._list()
            state, damage = self._replay_or_damage(listing)
            if self._list().newest_snapshot > listing.newest_snapshot:
                continue  # what was read may have been folded away, or created anew by a late claimant
            if damage is not None:
                raise damage
            self.state, self._folded = state, listing.newest_snapshot
            return state

    def append(self, record: Record) -> None:
        """Make `record` the next one.

        Raises Fenced when another's is, and NeedsHuman, with nothing written, when it can't follow `state`.
        """
        state = apply(self.state, record)
        self._create_record(record)
        self._remember(record)
        self.state = state

    def claim_epoch(self, make_record: Callable[[State], EpochRecord]) -> State:
        """Take the changefeed over: append the epoch record that `make_record` gives for the newest state (rule 6).

        Raises Fenced when the resource is closed, when its attempt is not above the newest recorded one, and when this
        driver slept through a fold (rule 5); Superseded when another resource has taken over.
        """
        while True:
            before = self.read()
            record = make_record(before)
            check_claim(before, record.uid, record.attempt, self._where)
            state = apply(before, record)
            try:
                self._create_record(record)
            except Fenced:
                continue
            if (covering := self._list().newest_snapshot) >= record.n:
                raise Fenced(
                    f"Epoch record {record.n} came too late: the log is already folded up to {covering}.",
                    "Leave the changefeed to the newer driver, or start again.",
                )
            self._remember(record)
            self.state = state
            return state

    def poll_fence(self) -> None:
        """Raises Fenced when another driver has appended after the newest record known here."""
        if (stored := self._get(self._record_path(self.state.n + 1))) is not None:
            raise self._fenced(self.state.n + 1, stored)

    def fold(self, state: State) -> None:
        """Write `state` as a snapshot, then delete the records and snapshots below it.

        Raises NeedsHuman when a different snapshot of that number exists; nothing is deleted then.
        """
        body = snapshot(state)
        stored = self._create(self._snapshot_path(state.n), body)
        if stored is None:
            return  # a newer fold has already deleted it
        if stored != body and restore(stored) != state:
            raise NeedsHuman(
                f"Snapshot {state.n} of the log at {self._where} contradicts the records up to it.",
                "Keep the log unchanged for examination, and start a new changefeed.",
            )
        self._folded = max(self._folded, state.n)
        listing = self._list()
        for n in listing.records:
            if n < state.n and not self._is_kept(n):
                self._delete(self._record_path(n))
        for n in listing.snapshots:
            if n < state.n:
                self._delete(self._snapshot_path(n))

    @property
    def _where(self) -> str:
        return f"{self.store.uri.rstrip('/')}/{LOG}"

    def _record_path(self, n: int) -> str:
        return f"{LOG}/{n:020}.json"

    def _snapshot_path(self, n: int) -> str:
        return f"{LOG}/snapshot-{n:020}.json"

    def _list(self) -> _Listing:
        records: list[int] = []
        snapshots: list[int] = []
        for path, _ in self._retry(lambda: self.store.list(LOG)):
            if match := _NAME.fullmatch(path.removeprefix(f"{LOG}/")):
                (snapshots if match[1] else records).append(int(match[2]))
        return _Listing(tuple(sorted(records)), tuple(sorted(snapshots)))

    def _replay_or_damage(self, listing: _Listing) -> tuple[State, NeedsHuman | None]:
        """What the objects of a listing say, or why they can't be a log."""
        try:
            state, complete = self._replay(listing.newest_snapshot)
        except NeedsHuman as error:
            return State(), error
        if complete and state.n >= listing.newest_record:
            return state, None
        return state, NeedsHuman(
            f"The log at {self._where} has a gap after record {state.n}.",
            "Restore the missing object from the store's versions, or start a new changefeed.",
        )

    def _replay(self, covered: int) -> tuple[State, bool]:
        """Snapshot `covered` (0: none) with every record after it, and whether that snapshot was still there."""
        state = State()
        if covered:
            body = self._get(self._snapshot_path(covered))
            if body is None:
                return state, False
            state = restore(body)
            if state.n != covered:
                raise NeedsHuman(
                    f"Snapshot {covered} of the log at {self._where} says that it is {state.n}.",
                    "Keep the log unchanged for examination, and start a new changefeed.",
                )
        while (body := self._get(self._record_path(state.n + 1))) is not None:
            record = self._decode(state.n + 1, body)
            state = apply(state, record)
            self._remember(record)
        return state, True

    def _decode(self, n: int, body: bytes) -> Record:
        try:
            return decode_record(body)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "record"
            raise NeedsHuman(
                f"Record {n} of the log at {self._where} can't be read: {where}: {first['msg']}.",
                "Use the version of the product that wrote it, or a newer one.",
            ) from error

    def _create_record(self, record: Record) -> None:
        body, path = encode_record(record), self._record_path(record.n)
        try:
            self._retry(lambda: self.store.create(path, body))
        except AlreadyExists:
            if (stored := self._get(path)) != body:
                raise self._fenced(record.n, stored) from None
            self.patience.found_late()  # nobody else writes these bytes

    def _create(self, path: str, body: bytes) -> bytes | None:
        """The winner's bytes at `path` once they are known (rule 16); None: taken when tried, deleted since."""
        try:
            self._retry(lambda: self.store.create(path, body))
        except AlreadyExists:
            return self._get(path)
        return body

    def _retry(self, call: Callable[[], T]) -> T:
        return self.patience.call(f"The log at {self._where}", call)

    def _get(self, path: str) -> bytes | None:
        try:
            return self._retry(lambda: self.store.get(path)).body
        except NotFound:
            return None

    def _delete(self, path: str) -> None:
        self._retry(lambda: self.store.delete(path))

    def _remember(self, record: Record) -> None:
        if record.kind in _NEVER_DELETED:
            self._kept.add(record.n)

    def _is_kept(self, n: int) -> bool:
        """Reads a record only if this run has not seen its kind: epochs below the first snapshot, left-overs."""
        if n not in self._kept:
            body = self._get(self._record_path(n))
            if body is not None:
                self._remember(self._decode(n, body))
        return n in self._kept

    def _fenced(self, n: int, stored: bytes | None) -> Fenced:
        winner = "has been written and folded away"
        if stored is not None:
            said = json.loads(stored)
            winner = f"is a {said.get('kind')} of epoch {said.get('epoch')}, run {said.get('nonce')}"
        return Fenced(
            f"Record {n} of the log at {self._where} {winner}, not of this driver.",
            "Leave the changefeed to the newer driver.",
        )
