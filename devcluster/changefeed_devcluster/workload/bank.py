"""The bank: money moves between accounts of several tables, and the sum of all balances never changes.

Account 1 of each table is the bank's own and owes what the others were given at the start. So the sum is 0 after every
single transaction, the first one included, and whoever reads a prefix of the history can check it.
"""

from __future__ import annotations

import random
from threading import Event

from ..store.txn import TxnError
from ..tidb.schema import NamedTable, NewColumn
from ..tidb.tidb import Tidb
from ..tidb.transaction import RowMissing, Transaction
from . import RowRate

DATABASE = "bank"
CONSERVED = "balance"
_OWNERS = ("Ada", "O'Brien", 'the "Fox"', "Zoë", "李雷", "a,b", "back\\slash", "line\nbreak", "", None)
_COLUMNS = (
    NewColumn("id", "bigint"),
    NewColumn("owner", "varchar(32)", nullable=True),
    NewColumn("balance", "bigint"),
)


class Bank:
    """A bank whose money moves between accounts.

    `accounts` a table, each given `initial`; `tables` × `regions`; the same `seed` does the same things.
    """

    def __init__(
        self, tidb: Tidb, tables: int = 2, regions: int = 4, accounts: int = 1000, initial: int = 1000, seed: int = 0
    ) -> None:
        if accounts < 4:
            raise ValueError(f"a bank needs at least 4 accounts a table, not {accounts}")
        self._tidb = tidb
        self._names = [f"accounts_{n}" for n in range(tables)]
        self._regions = regions
        self._accounts = accounts
        self._initial = initial
        self._random = random.Random(seed)
        self._open: list[tuple[NamedTable, int]] = []
        self._closed: list[tuple[NamedTable, int]] = []
        self.tables: list[NamedTable] = []

    def create(self) -> bool:
        """Makes the tables that are missing; True if any was."""
        if DATABASE not in self._tidb.databases:
            self._tidb.create_database(DATABASE)
        missing = [name for name in self._names if f"{DATABASE}.{name}" not in self._tidb.tables]
        for name in missing:
            self._tidb.create_table(DATABASE, name, _COLUMNS, regions=self._regions, handles=self._accounts)
        self.tables = [self._tidb.tables[f"{DATABASE}.{name}"] for name in self._names]
        return bool(missing)

    def load(self, stop: Event) -> int:
        """Opens the accounts of tables that have none, one transaction a table; gives the number of rows."""
        rows = 0
        for table in self.tables:
            present = set(self._tidb.snapshot(table, self._tidb.now()))
            if not present and not stop.is_set():
                self._load(table)
                rows += self._accounts
                present = set(range(1, self._accounts + 1))
            for pk in range(2, max(present, default=0) + 1):
                (self._open if pk in present else self._closed).append((table, pk))
        return rows

    def _load(self, table: NamedTable) -> None:
        with self._tidb.begin() as txn:
            txn.insert(table, {"id": 1, "owner": "bank", "balance": -self._initial * (self._accounts - 1)})
            for pk in range(2, self._accounts + 1):
                txn.insert(table, {"id": pk, "owner": self._owner(), "balance": self._initial})

    def run(self, stop: Event, rate: float = 2000.0) -> int:
        """Transactions until `stop`, about `rate` rows a second; gives the number of rows committed."""
        pace = RowRate(rate, stop)
        rows = 0
        while not stop.is_set():
            try:
                written = self.step()
            except TxnError:  # somebody resolved our lock, or holds one: the next transaction is another one anyway
                written = 0
            rows += written
            pace.keep(written or 1)
        return rows

    def step(self) -> int:
        """One random transaction; gives the rows it committed. Raises TxnError, after which nothing is changed."""
        chance = self._random.random()
        if chance < 0.03 and len(self._open) > 3:
            return self._close_account()
        if chance < 0.06 and self._closed:
            return self._open_account()
        return self._transfer(abandon=chance > 0.97, one_phase=0.06 <= chance < 0.16)

    def _transfer(self, abandon: bool, one_phase: bool) -> int:
        (source, source_pk), (target, target_pk) = self._random.sample(self._open, 2)
        amount = self._random.randint(1, 100)
        with self._tidb.begin(one_phase) as txn:
            _add(txn, source, source_pk, -amount)
            _add(txn, target, target_pk, amount)
            if abandon:
                txn.prewrite()
                txn.rollback()
        return 0 if abandon else 2

    def _close_account(self) -> int:
        """Deletes an account; another one gets what it held."""
        gone, heir = self._random.sample(range(len(self._open)), 2)
        (source, source_pk), (target, target_pk) = self._open[gone], self._open[heir]
        with self._tidb.begin() as txn:
            _add(txn, target, target_pk, _balance(txn, source, source_pk))
            txn.delete(source, source_pk)
        self._closed.append(self._open.pop(gone))
        return 2

    def _open_account(self) -> int:
        """Inserts a closed account again, with money of another one."""
        table, pk = self._closed[-1]
        source, source_pk = self._random.choice(self._open)
        amount = self._random.randint(0, 500)
        with self._tidb.begin() as txn:
            txn.insert(table, {"id": pk, "owner": self._owner(), "balance": amount})
            _add(txn, source, source_pk, -amount)
        self._open.append(self._closed.pop())
        return 2

    def _owner(self) -> str | None:
        return self._random.choice(_OWNERS)


def _balance(txn: Transaction, table: NamedTable, pk: int) -> int:
    row = txn.get(table, pk)
    if row is None:
        raise RowMissing(f"account {pk} of {table.name} is open, but has no row")
    return int(row["balance"])


def _add(txn: Transaction, table: NamedTable, pk: int, amount: int) -> None:
    txn.update(table, {"id": pk, "balance": _balance(txn, table, pk) + amount})
