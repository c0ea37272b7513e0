"""sysbench's tables: many rows fast, each a function of its table, its id and the seed."""

from __future__ import annotations

import random
from functools import partial
from itertools import accumulate, pairwise
from threading import Event

import numpy as np
import numpy.typing as npt

from ..frozen import Columns, FrozenHistory, RowSource
from ..store.txn import TxnError
from ..tidb.schema import NamedTable, NewColumn
from ..tidb.tidb import Tidb
from . import RowRate

DATABASE = "sbtest"
_COLUMNS = (
    NewColumn("id", "bigint"),
    NewColumn("k", "int", default=0),
    NewColumn("c", "char(120)", default=""),
    NewColumn("pad", "char(60)", default=""),
)
_GROUP = 11
_FOUR_DIGITS = np.array([b"%04d" % n for n in range(10_000)], "S4").view("<u4")
_BLOCK = 1000  # rows that are made from one seed
_HOT_SHARE = 0.5  # of all transactions


class Sysbench:
    """Sysbench's tables, and what is written to them.

    `tables` × `regions`, `rows` a table.

    `hot`: so many tables have half of the transactions; of the others the busiest has a hundred times as many as the
    quietest, evenly by orders of magnitude. 0: all tables have as many.
    """

    def __init__(
        self,
        tidb: Tidb,
        tables: int = 1,
        regions: int = 4,
        rows: int = 100_000,
        batch: int = 5000,
        seed: int = 0,
        hot: int = 0,
    ) -> None:
        self._tidb = tidb
        self._names = [f"sbtest{n + 1}" for n in range(tables)]
        self._regions = regions
        self._rows = rows
        self._batch = max(batch // _BLOCK, 1) * _BLOCK
        self._seed = seed
        self._shares = list(accumulate(_shares(tables, hot)))
        self._last: dict[str, int] = {}
        self.tables: list[NamedTable] = []

    def create(self) -> bool:
        """Makes the tables that are missing; True if any was."""
        if DATABASE not in self._tidb.databases:
            self._tidb.create_database(DATABASE)
        missing = [name for name in self._names if f"{DATABASE}.{name}" not in self._tidb.tables]
        for name in missing:
            self._tidb.create_table(DATABASE, name, _COLUMNS, regions=self._regions, handles=self._rows)
        self.tables = [self._tidb.tables[f"{DATABASE}.{name}"] for name in self._names]
        return bool(missing)

    def load(self, stop: Event) -> int:
        """Fills each table up to `rows`, `batch` rows a transaction; gives the number of rows written."""
        written = 0
        for number, table in enumerate(self.tables):
            last = self._tidb.last_handle(table)
            while last < self._rows and not stop.is_set():
                count = min(self._batch, self._rows - last)
                self._tidb.bulk_insert(table, *rows(self._seed, number, last + 1, count, self._rows))
                last += count
                written += count
            self._last[table.name] = last
        return written

    def freeze(self, frozen: FrozenHistory) -> int:
        """Instead of `load`: the same rows as a frozen history. Gives the number of rows."""
        runs: list[tuple[int, int, int, RowSource]] = []
        for number, table in enumerate(self.tables):
            ids = [column.id for column in table.info.columns if column.name != table.pk]
            borders = [1 + n * self._rows // self._regions for n in range(self._regions + 1)]
            source = partial(_frozen_rows, self._seed, number, self._rows, ids)
            runs += [(table.id, low, high - 1, source) for low, high in pairwise(borders) if low < high]
            self._last[table.name] = self._rows
        self._tidb.raise_to(frozen.add(runs, self._tidb.now()))
        return self._rows * len(self.tables)

    def run(self, stop: Event, rate: float = 2000.0) -> int:
        """Transactions of one insert and two updates until `stop`; gives the rows written. Rate 0 does nothing."""
        if rate <= 0:
            return 0
        pace = RowRate(rate, stop)
        chosen = random.Random(self._seed)
        written = 0
        while not stop.is_set():
            try:
                written += self._step(chosen)
            except TxnError:  # somebody holds a lock on the row: the next transaction takes another one
                pace.keep(1)
            else:
                pace.keep(3)
        return written

    def _step(self, chosen: random.Random) -> int:
        [table] = chosen.choices(self.tables, cum_weights=self._shares)
        last = self._last[table.name]
        with self._tidb.begin() as txn:
            txn.insert(table, {"id": last + 1, "k": chosen.randint(1, self._rows), "c": _text(chosen, 10), "pad": ""})
            if last > 1:
                first, second = chosen.sample(range(1, last + 1), 2)
                txn.update(table, {"id": first, "k": chosen.randint(1, self._rows)})
                txn.update(table, {"id": second, "c": _text(chosen, 10), "pad": _text(chosen, 5)})
        self._last[table.name] = last + 1
        return 3 if last > 1 else 1


def _shares(tables: int, hot: int) -> list[float]:
    """Return the share of the transactions that each table has."""
    cold = tables - hot
    if not (hot and cold):
        return [1.0] * tables
    weights = [100 ** (n / cold) for n in range(cold)]
    return [_HOT_SHARE / hot] * hot + [(1 - _HOT_SHARE) * weight / sum(weights) for weight in weights]


def rows(
    seed: int, table: int, first: int, count: int, largest_k: int
) -> tuple[npt.NDArray[np.int64], list[tuple[str, npt.NDArray[np.int64] | npt.NDArray[np.uint8]]]]:
    """Ids and columns of rows first..first+count-1, as `Tidb.bulk_insert` takes them."""
    ids = np.arange(first, first + count, dtype=np.int64)
    blocks = range((first - 1) // _BLOCK, (first + count - 2) // _BLOCK + 1)
    made = [_block(seed, table, block, largest_k) for block in blocks]
    skipped = (first - 1) % _BLOCK
    inside = slice(skipped, skipped + count)
    k, c, pad = (np.concatenate(parts)[inside] for parts in zip(*made, strict=True))
    return ids, [("k", k), ("c", c), ("pad", pad)]


def _frozen_rows(seed: int, table: int, largest_k: int, ids: list[int], first: int, count: int) -> Columns:
    _, columns = rows(seed, table, first, count, largest_k)
    return [(column_id, array) for column_id, (_, array) in zip(ids, columns, strict=True)]


def _block(
    seed: int, table: int, block: int, largest_k: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    generator = np.random.default_rng([seed, table, block])
    k = generator.integers(1, largest_k + 1, _BLOCK, np.int64)
    return k, _digits(generator, 10), _digits(generator, 5)


def _digits(generator: np.random.Generator, groups: int) -> npt.NDArray[np.uint8]:
    """`groups` groups of 11 digits with dashes between them, one row of bytes a text."""
    fours = generator.integers(0, len(_FOUR_DIGITS), (_BLOCK, groups * (_GROUP + 1) // 4), np.uint16)
    texts: npt.NDArray[np.uint8] = _FOUR_DIGITS[fours].view(np.uint8)
    texts[:, _GROUP :: _GROUP + 1] = ord("-")
    return texts[:, :-1]


def _text(chosen: random.Random, groups: int) -> str:
    return "-".join(f"{chosen.randrange(10**_GROUP):0{_GROUP}d}" for _ in range(groups))
