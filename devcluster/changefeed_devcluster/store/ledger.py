"""Every change of the records takes the same way: written to the journal, applied, told to the observers.

Only changes that were checked come here; nothing is refused. Replay applies a journaled change again without telling.
Pessimistic locks are not journaled, like those that TiKV keeps in memory: a restart loses them, and the prewrite mends
that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from changefeed.wire import kvrpcpb_pb2 as kvrpcpb

from ..journal import Journal, JournalRecord
from .mvcc import Mvcc
from .txn import FLUSHED_SIZE, MAX_TS, SHORT_VALUE, ChangeKind, Lock, Op, RowChange, StoreChange, WriteRecord

_MESSAGE_OP = {Op.PUT: kvrpcpb.Put, Op.DELETE: kvrpcpb.Del, Op.LOCK: kvrpcpb.Lock}


class WriteLedger:
    """Call it inside the store's lock. `seq` numbers the changes that made versions."""

    def __init__(self, mvcc: Mvcc, journal: Journal | None) -> None:
        self.seq = 0
        self.observers: list[Callable[[StoreChange], None]] = []
        self._mvcc = mvcc
        self._journal = journal

    def prewrite(self, locks: Sequence[Lock]) -> None:
        """Sets PUT, DELETE and LOCK locks of one transaction; they differ in key, op, values and secondaries only.

        A large transaction's may replace its own earlier ones.
        """
        first = locks[0]
        if self._journal and first.generation:
            self._journal.append(
                JournalRecord.FLUSH,
                kvrpcpb.FlushRequest(
                    mutations=[_mutation(lock.op, lock.key, lock.value) for lock in locks],
                    primary_key=first.primary,
                    start_ts=first.start_ts,
                    min_commit_ts=first.min_commit_ts,
                    generation=first.generation,
                    lock_ttl=first.ttl_ms,
                    context=kvrpcpb.Context(txn_source=first.txn_source),
                ),
            )
        elif self._journal:
            self._journal.append(
                JournalRecord.PREWRITE,
                kvrpcpb.PrewriteRequest(
                    mutations=[_mutation(lock.op, lock.key, lock.value) for lock in locks],
                    primary_lock=first.primary,
                    start_version=first.start_ts,
                    lock_ttl=first.ttl_ms,
                    txn_size=first.txn_size,
                    min_commit_ts=first.min_commit_ts,
                    for_update_ts=first.for_update_ts,
                    use_async_commit=first.async_commit,
                    secondaries=next((lock.secondaries for lock in locks if lock.secondaries), ()),
                    context=kvrpcpb.Context(txn_source=first.txn_source),
                ),
            )
        for lock in locks:
            self._mvcc.locks[lock.key] = lock
        rows = [RowChange(lock.key, lock.op, lock.value, lock.old_value) for lock in locks if lock.writes]
        self._report(ChangeKind.PREWRITE, first.start_ts, 0, first.txn_source, rows, first.large_primary)

    def rewrite(self, lock: Lock) -> None:
        """Tells of a lock that has got another ttl or min_commit_ts: its row comes once more if the lock has its value.

        A long one is not written again with the lock, so a PUT of it is not told.
        """
        if lock.writes and len(lock.value) <= SHORT_VALUE:
            rows = [RowChange(lock.key, lock.op, lock.value, lock.old_value)]
            self._report(ChangeKind.PREWRITE, lock.start_ts, 0, lock.txn_source, rows, lock.large_primary)

    def commit(self, locks: Sequence[Lock], commit_ts: int) -> None:
        """Turns locks of one transaction, none of them pessimistic, into versions."""
        first = locks[0]
        if self._journal:
            keys = [lock.key for lock in locks]
            self._journal.append(
                JournalRecord.COMMIT,
                kvrpcpb.CommitRequest(start_version=first.start_ts, keys=keys, commit_version=commit_ts),
            )
        self._write_commit(locks, commit_ts)
        rows = [RowChange(lock.key, lock.op, lock.short_value) for lock in locks]
        self._report(ChangeKind.COMMIT, first.start_ts, commit_ts, first.txn_source, rows)

    def one_pc(self, rows: Sequence[RowChange], start_ts: int, commit_ts: int, txn_source: int) -> None:
        """Makes versions, instead of pessimistic locks if there are any."""
        if self._journal:
            self._journal.append(
                JournalRecord.ONE_PC,
                kvrpcpb.PrewriteRequest(
                    mutations=[_mutation(row.op, row.key, row.value) for row in rows],
                    start_version=start_ts,
                    min_commit_ts=commit_ts,
                    context=kvrpcpb.Context(txn_source=txn_source),
                ),
            )
        self._write_one_pc(rows, start_ts, commit_ts, txn_source)
        self._report(ChangeKind.ONE_PC, start_ts, commit_ts, txn_source, list(rows))

    def rollback(self, keys: Sequence[bytes], start_ts: int, protects: bool = False) -> None:
        """Removes the transaction's locks on keys, and leaves a rollback record on each.

        That of a primary key, or of a key of a large transaction, is a protected one; without a lock, if `protects`.
        """
        if self._journal:
            self._journal.append(
                JournalRecord.ROLLBACK, kvrpcpb.BatchRollbackRequest(start_version=start_ts, keys=keys)
            )
        self._report(ChangeKind.ROLLBACK, start_ts, 0, 0, self._write_rollback(keys, start_ts, protects))

    def lock(self, lock: Lock) -> None:
        """Sets a pessimistic lock: nobody is told."""
        self._mvcc.locks[lock.key] = lock

    def unlock(self, locks: Iterable[Lock]) -> None:
        """Removes pessimistic locks: no record, and nobody is told."""
        for lock in locks:
            del self._mvcc.locks[lock.key]

    def replay(self, kind: JournalRecord, body: bytes) -> int:
        """Applies a journaled change again, unchecked and unreported; gives the highest ts in it."""
        if kind is JournalRecord.COMMIT:
            commit = kvrpcpb.CommitRequest.FromString(body)
            self._write_commit([self._mvcc.locks[key] for key in commit.keys], commit.commit_version)
            return commit.commit_version
        if kind is JournalRecord.ROLLBACK:
            rollback = kvrpcpb.BatchRollbackRequest.FromString(body)
            self._write_rollback(rollback.keys, rollback.start_version)
            return rollback.start_version
        if kind is JournalRecord.FLUSH:
            return self._flush_again(kvrpcpb.FlushRequest.FromString(body))
        request = kvrpcpb.PrewriteRequest.FromString(body)
        rows = [RowChange(m.key, Op(m.op), m.value, self._mvcc.value_at(m.key, MAX_TS)) for m in request.mutations]
        if kind is JournalRecord.ONE_PC:
            self._write_one_pc(rows, request.start_version, request.min_commit_ts, request.context.txn_source)
            return request.min_commit_ts
        for row in rows:
            self._mvcc.locks[row.key] = _lock_again(row, request)
        return request.start_version

    def _flush_again(self, request: kvrpcpb.FlushRequest) -> int:
        for mutation in request.mutations:
            self._mvcc.locks[mutation.key] = Lock(
                key=mutation.key,
                primary=request.primary_key,
                start_ts=request.start_ts,
                op=Op(mutation.op),
                value=mutation.value,
                old_value=self._mvcc.value_at(mutation.key, request.start_ts),
                ttl_ms=request.lock_ttl,
                txn_size=FLUSHED_SIZE,
                min_commit_ts=request.min_commit_ts,
                txn_source=request.context.txn_source,
                floor=0,
                generation=request.generation,
            )
        return request.start_ts

    def _write_commit(self, locks: Iterable[Lock], commit_ts: int) -> None:
        self.seq += 1
        for lock in locks:
            del self._mvcc.locks[lock.key]
            version = WriteRecord(commit_ts, lock.start_ts, lock.op, lock.value, lock.txn_source, self.seq)
            self._mvcc.append(lock.key, version)

    def _write_one_pc(self, rows: Iterable[RowChange], start_ts: int, commit_ts: int, txn_source: int) -> None:
        self.seq += 1
        for key, op, value, _ in rows:
            if self._mvcc.locks and self._mvcc.own_lock(key, start_ts) is not None:
                del self._mvcc.locks[key]
            self._mvcc.append(key, WriteRecord(commit_ts, start_ts, op, value, txn_source, self.seq))

    def _write_rollback(self, keys: Iterable[bytes], start_ts: int, protects: bool = False) -> list[RowChange]:
        rows = []
        for key in keys:
            lock = self._mvcc.own_lock(key, start_ts)
            protected = protects and not self._mvcc.has_version_at(key, start_ts)
            self._mvcc.rollbacks.setdefault(key, set()).add(start_ts)
            if lock is not None:
                del self._mvcc.locks[key]
                protected = key == lock.primary or lock.generation > 0
            op = lock.op if lock is not None and lock.writes else Op.LOCK
            rows.append(RowChange(key, op, b"p" if protected else b""))
        return rows

    def _report(
        self,
        kind: ChangeKind,
        start_ts: int,
        commit_ts: int,
        txn_source: int,
        rows: list[RowChange],
        large_primary: bytes = b"",
    ) -> None:
        if rows and self.observers:
            change = StoreChange(kind, start_ts, commit_ts, txn_source, rows, large_primary)
            for observer in self.observers:
                observer(change)


def _mutation(op: Op, key: bytes, value: bytes) -> kvrpcpb.Mutation:
    return kvrpcpb.Mutation(op=_MESSAGE_OP[op], key=key, value=value)


def _lock_again(row: RowChange, request: kvrpcpb.PrewriteRequest) -> Lock:
    return Lock(
        key=row.key,
        primary=request.primary_lock,
        start_ts=request.start_version,
        op=row.op,
        value=row.value,
        old_value=row.old_value,
        ttl_ms=request.lock_ttl,
        txn_size=request.txn_size,
        min_commit_ts=request.min_commit_ts,
        txn_source=request.context.txn_source,
        floor=0,
        for_update_ts=request.for_update_ts,
        async_commit=request.use_async_commit,
        secondaries=tuple(request.secondaries) if row.key == request.primary_lock else (),
    )
