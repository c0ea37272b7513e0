"""The words of Percolator: mutations, locks, versions, changes, and every way a transaction call can fail.

Plain values only; `store.py` holds the rules. Keys are raw everywhere (docs/design/tikv.md, Transactions).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple

MAX_TS = (1 << 64) - 1
SHORT_VALUE = 255
"""A value of up to so many bytes stands in the lock and in the commit record itself: there the change feed shows it."""
FLUSHED_SIZE = (1 << 64) - 1
"""The size of a large (pipelined) transaction, which nobody knows before its end."""


class Op(IntEnum):
    """What a mutation asks for; the numbers are those of kvrpcpb.Op."""

    PUT = 0
    DELETE = 1
    LOCK = 2
    INSERT = 4
    PESSIMISTIC = 5
    CHECK_NOT_EXISTS = 6


class PessimisticCheck(IntEnum):
    """What a pessimistic prewrite wants checked of a key; the numbers are those of PessimisticAction."""

    SKIP = 0
    LOCKED = 1
    CONSTRAINT = 2


class Assertion(IntEnum):
    """What the client believes of a key before its mutation; the numbers are those of kvrpcpb.Assertion."""

    NONE = 0
    EXIST = 1
    NOT_EXIST = 2


class Mutation(NamedTuple):
    """One key of a prewrite. `value` is empty unless op is PUT or INSERT; `check` counts with a for_update_ts only."""

    op: Op
    key: bytes
    value: bytes = b""
    check: PessimisticCheck = PessimisticCheck.SKIP
    assertion: Assertion = Assertion.NONE


@dataclass(slots=True)
class Lock:
    """A locked key. `op` is PUT, DELETE, LOCK or PESSIMISTIC; `old_value` what the key held before, None if nothing.

    `floor` is the resolved-ts told to anybody when the lock was written: a commit at or below it would break that
    promise, and is refused. `for_update_ts` is above 0 in pessimistic transactions. With `async_commit` the transaction
    is committed as soon as every key is locked; the primary's lock then names the other keys in `secondaries`.
    `generation` is above 0 in large (pipelined) transactions: that of the flush which wrote the lock.
    """

    key: bytes
    primary: bytes
    start_ts: int
    op: Op
    value: bytes
    old_value: bytes | None
    ttl_ms: int
    txn_size: int
    min_commit_ts: int
    txn_source: int
    floor: int
    for_update_ts: int = 0
    async_commit: bool = False
    secondaries: tuple[bytes, ...] = ()
    generation: int = 0

    @property
    def writes(self) -> bool:
        """Tell whether its commit changes the key's value: what change data is made of."""
        return self.op is Op.PUT or self.op is Op.DELETE

    @property
    def short_value(self) -> bytes:
        """The value if it is a short one."""
        return self.value if len(self.value) <= SHORT_VALUE else b""

    @property
    def large_primary(self) -> bytes:
        """The primary of a large transaction."""
        return self.primary if self.generation else b""

    def blocks_read_at(self, ts: int) -> bool:
        """The reader and lock conflict rule of snapshot isolation (docs/design/tikv.md, Snapshot reads)."""
        if not self.writes or self.start_ts > ts or self.min_commit_ts > ts:
            return False
        return not (ts == MAX_TS and self.key == self.primary and not self.async_commit)

    def expired(self, current_ts: int) -> bool:
        """True once its time to live has passed, by the oracle's physical time (docs/design/tikv.md, Transactions)."""
        return (self.start_ts >> 18) + self.ttl_ms < (current_ts >> 18)


class WriteRecord(NamedTuple):
    """A write record: `op` is PUT, DELETE or LOCK. `seq` numbers the change that made it, in order of application."""

    commit_ts: int
    start_ts: int
    op: Op
    value: bytes
    txn_source: int
    seq: int


class ChangeKind(Enum):
    """What happened to the keys of a change."""

    PREWRITE = 1
    COMMIT = 2
    ROLLBACK = 3
    ONE_PC = 4


class RowChange(NamedTuple):
    """One key of a change. `op`: PUT, DELETE; LOCK in a COMMIT or ONE_PC of a key that was only locked, and in a
    ROLLBACK that met no PUT or DELETE lock of its own.

    COMMIT has a short value only, ROLLBACK the value `p` if its record is a protected one; neither has an old value.
    """

    key: bytes
    op: Op
    value: bytes = b""
    old_value: bytes | None = None


class StoreChange(NamedTuple):
    """What one call changed, reported inside the store's lock. `commit_ts` is 0 for PREWRITE and ROLLBACK.

    `large_primary`: the primary key, in a PREWRITE of a large (pipelined) transaction.
    """

    kind: ChangeKind
    start_ts: int
    commit_ts: int
    txn_source: int
    rows: list[RowChange]
    large_primary: bytes = b""

    def is_empty(self, row: RowChange) -> bool:
        """Tell whether nothing but that there is one is told of a row: its key was only locked, and is committed."""
        return row.op is Op.LOCK and self.kind is not ChangeKind.ROLLBACK

    def told_key(self, row: RowChange) -> bytes:
        return b"" if self.is_empty(row) else row.key


class TxnStatusAction(IntEnum):
    """What check_txn_status did; the numbers are those of kvrpcpb.Action."""

    NO_ACTION = 0
    TTL_EXPIRE_ROLLBACK = 1
    LOCK_NOT_EXIST_ROLLBACK = 2
    MIN_COMMIT_TS_PUSHED = 3
    TTL_EXPIRE_PESSIMISTIC_ROLLBACK = 4
    LOCK_NOT_EXIST_DO_NOTHING = 5


class TxnStatus(NamedTuple):
    """`ttl_ms` > 0: alive, `lock` is its primary lock. `commit_ts` > 0: committed. Both 0: rolled back."""

    action: TxnStatusAction
    ttl_ms: int = 0
    commit_ts: int = 0
    lock: Lock | None = None


class Secondaries(NamedTuple):
    """What check_secondary_locks found: all `locks`, or none of them and the commit ts, 0 when rolled back."""

    locks: list[Lock]
    commit_ts: int = 0


class ConflictReason(IntEnum):
    """The numbers are those of kvrpcpb.WriteConflict.Reason."""

    OPTIMISTIC = 1
    PESSIMISTIC_RETRY = 2
    SELF_ROLLED_BACK = 3
    LAZY_UNIQUENESS_CHECK = 5


class TxnError(Exception):
    """A call was refused; nothing was changed."""


class KeyIsLocked(TxnError):
    """Other transactions hold `locks`: wait, or resolve them."""

    def __init__(self, locks: Sequence[Lock]) -> None:
        self.locks = tuple(locks)
        lock = locks[0]
        super().__init__(f"key {lock.key.hex()} is locked by the transaction of start ts {lock.start_ts}")

    @property
    def lock(self) -> Lock:
        return self.locks[0]


class WriteConflict(TxnError):
    """A newer version than start_ts exists: start the transaction again."""

    def __init__(
        self,
        key: bytes,
        primary: bytes,
        start_ts: int,
        conflict_start_ts: int,
        conflict_commit_ts: int,
        reason: ConflictReason = ConflictReason.OPTIMISTIC,
    ) -> None:
        self.key = key
        self.primary = primary
        self.start_ts = start_ts
        self.conflict_start_ts = conflict_start_ts
        self.conflict_commit_ts = conflict_commit_ts
        self.reason = reason
        super().__init__(
            f"write conflict on key {key.hex()}: start ts {start_ts}, "
            f"version {conflict_start_ts} committed at {conflict_commit_ts} ({reason.name.lower()})"
        )


class AlreadyRolledBack(WriteConflict):
    """A prewrite came after the rollback of its own transaction."""

    def __init__(self, key: bytes, primary: bytes, start_ts: int) -> None:
        super().__init__(key, primary, start_ts, start_ts, start_ts, ConflictReason.SELF_ROLLED_BACK)


class AlreadyExist(TxnError):
    """An INSERT or CHECK_NOT_EXISTS found a live value."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        super().__init__(f"key {key.hex()} already exists")


class AlreadyCommitted(TxnError):
    """A rollback came after the commit."""

    def __init__(self, key: bytes, start_ts: int, commit_ts: int) -> None:
        self.key = key
        self.start_ts = start_ts
        self.commit_ts = commit_ts
        super().__init__(f"transaction {start_ts} has committed key {key.hex()} at {commit_ts}")


class TxnLockNotFound(TxnError):
    """A commit found neither its lock nor its write record: the transaction was rolled back, or never prewritten."""

    def __init__(self, key: bytes, start_ts: int) -> None:
        self.key = key
        self.start_ts = start_ts
        super().__init__(f"transaction {start_ts} has no lock on key {key.hex()}")


class TxnNotFound(TxnError):
    """The primary key has neither a lock nor a record of the transaction."""

    def __init__(self, primary: bytes, start_ts: int) -> None:
        self.primary = primary
        self.start_ts = start_ts
        super().__init__(f"transaction {start_ts} is not known at its primary key {primary.hex()}")


class PrimaryMismatch(TxnError):
    """The key asked about is not its transaction's primary; `lock` names the right one."""

    def __init__(self, lock: Lock) -> None:
        self.lock = lock
        super().__init__(f"key {lock.key.hex()} is not the primary of transaction {lock.start_ts}")


class CommitTsExpired(TxnError):
    """The commit ts is below what the lock allows: take a new one from the TSO and commit again."""

    def __init__(self, key: bytes, start_ts: int, commit_ts: int, min_commit_ts: int) -> None:
        self.key = key
        self.start_ts = start_ts
        self.commit_ts = commit_ts
        self.min_commit_ts = min_commit_ts
        super().__init__(f"commit ts {commit_ts} of key {key.hex()} is below the lock's minimum {min_commit_ts}")


class AssertionFailed(TxnError):
    """The key is not what the client believed: its data and its indexes disagree."""

    def __init__(self, key: bytes, start_ts: int, assertion: Assertion, existing: WriteRecord | None) -> None:
        self.key = key
        self.start_ts = start_ts
        self.assertion = assertion
        self.existing = existing
        super().__init__(f"key {key.hex()} fails the assertion {assertion.name} of transaction {start_ts}")


class PessimisticLockNotFound(TxnError):
    """A prewrite relies on a pessimistic lock that is gone, and others have used the key since."""

    def __init__(self, key: bytes, start_ts: int) -> None:
        super().__init__(f"transaction {start_ts} has no pessimistic lock on key {key.hex()}")


class PessimisticLockRolledBack(TxnError):
    """A pessimistic lock was wanted after the rollback of its own transaction."""

    def __init__(self, key: bytes, start_ts: int) -> None:
        super().__init__(f"transaction {start_ts} is rolled back on key {key.hex()}, it can't be locked")


class LockTypeNotMatch(TxnError):
    """A pessimistic lock was wanted where the transaction has prewritten already."""

    def __init__(self, lock: Lock) -> None:
        super().__init__(f"transaction {lock.start_ts} has prewritten key {lock.key.hex()}: {lock.op.name}")
