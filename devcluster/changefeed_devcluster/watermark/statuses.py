"""What stores know of large transactions that have their primary key elsewhere, as it is proposed.

A store asks for all its ranges together, once in a while: each other store gets at most one request of it, so with N
stores the one of a primary key answers at most N a round, however many ranges the transaction has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from ..store.store import MvccStore
from ..store.txn import TxnNotFound
from .advancer import LargeTransactionStatus, WatermarkAdvancer
from .gate import VersionGate

ROUND_SECONDS = 1.0


class Statuses:
    """What stores have heard of large transactions.

    `leader_of`: the store that leads the region of a key. `requests`: how many each store has got from others.

    `reads`: those of stale reads, which can't wait for a round.
    """

    def __init__(
        self,
        store: MvccStore,
        leader_of: Callable[[bytes], int],
        gate: VersionGate,
        clock: Callable[[], float],
        round_s: float = ROUND_SECONDS,
    ) -> None:
        self._store = store
        self._leader_of = leader_of
        self._gate = gate
        self._clock = clock
        self._round_s = round_s
        self._asked = -round_s
        self._known: dict[int, dict[int, LargeTransactionStatus]] = {}  # by store, then by start ts
        self.requests: Counter[int] = Counter()
        self.reads: Counter[int] = Counter()

    @property
    def is_due(self) -> bool:
        """Tell whether it is time for a round."""
        return self._clock() - self._asked >= self._round_s

    def ask(self, advancers: Mapping[int, Iterable[WatermarkAdvancer]]) -> None:
        """A round, if one is due: every store for its advancers, which learn what it hears."""
        if not self.is_due:
            return
        self._asked = self._clock()
        self._known = {store_id: self._round(store_id, tuple(own)) for store_id, own in advancers.items()}

    def _round(self, store_id: int, advancers: tuple[WatermarkAdvancer, ...]) -> dict[int, LargeTransactionStatus]:
        """Return what the store knows afterwards: of no transaction but those that its ranges wait for."""
        wanted = {start_ts: large.primary for own in advancers for start_ts, large in own.large.items()}
        before = self._known.get(store_id, {})
        known = {start_ts: before[start_ts] for start_ts in wanted.keys() & before.keys()}
        asked = set()
        for start_ts, primary in wanted.items():
            leader = self._leader_of(primary)
            if (start_ts in known and known[start_ts].is_final) or not self._gate.is_new(leader):
                continue
            known[start_ts] = self._answer(primary, start_ts)
            asked.add(leader)
        self.requests.update(asked - {store_id})
        for advancer in advancers:
            advancer.learn(known)
        return known

    def read(self, store_id: int, start_ts: int, primary: bytes, ts: int) -> LargeTransactionStatus:
        """Return what a reader at `ts` on a store has to know: whether the transaction is committed at or below it."""
        known = self._known.get(store_id, {}).get(start_ts, LargeTransactionStatus())
        if known.is_final or known.min_commit_ts > ts:
            return known
        leader = self._leader_of(primary)
        if leader != store_id:
            self.reads[leader] += 1
        return self._answer(primary, start_ts)

    def _answer(self, primary: bytes, start_ts: int) -> LargeTransactionStatus:
        """Ask the primary's store. It decides nothing: the transaction may still be about to lock its primary."""
        try:
            found = self._store.check_txn_status(primary, start_ts, current_ts=0)
        except TxnNotFound:
            return LargeTransactionStatus()
        if found.lock is not None:
            return LargeTransactionStatus(min_commit_ts=found.lock.min_commit_ts)
        return (
            LargeTransactionStatus(commit_ts=found.commit_ts)
            if found.commit_ts
            else LargeTransactionStatus(is_rolled_back=True)
        )
