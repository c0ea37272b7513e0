"""What the sink writes: mounted row changes of one table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.sink.records import Records

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Changes:
    """A chunk of an entry's rows, ordered by (commit_ts, start_ts, op, key); one element a row in each member.

    `shown` and `before` have an array for each of `columns`, of the types of `row.cells.arrow_type`, TIMESTAMP
    in UTC. An update of a NOT NULL unique key comes as a delete and an insert, as the sorter splits it.
    """

    table: TableInfo
    columns: tuple[ColumnInfo, ...]  # all of `table.output_columns`
    op: npt.NDArray[np.uint8]  # model.position
    commit_ts: npt.NDArray[np.uint64]
    start_ts: npt.NDArray[np.uint64]
    shown: list[pa.Array]  # of a delete the row that was, of others the new one
    before: list[pa.Array]  # of an update the row that was; null for others

    @classmethod
    def of(cls, records: Records) -> Changes:
        """Return the changes of records that have `old_columns` and `start_ts`."""
        assert records.old_columns is not None, "the mounter was asked for them"
        assert records.start_ts is not None, "of mounted rows"
        commit_ts, start_ts = records.commit_ts.to_numpy(), records.start_ts.to_numpy()
        return cls(records.table, records.shown, records.op, commit_ts, start_ts, records.columns, records.old_columns)

    @property
    def nbytes(self) -> int:
        return sum(int(values.nbytes) for values in self.shown)

    @property
    def starts(self) -> Rows:
        """The first row of each transaction."""
        begins = np.ones(len(self), np.bool_)
        begins[1:] = (self.commit_ts[1:] != self.commit_ts[:-1]) | (self.start_ts[1:] != self.start_ts[:-1])
        return np.flatnonzero(begins)

    def __len__(self) -> int:
        return len(self.op)

    def take(self, rows: Rows) -> Changes:
        at = pa.array(rows)
        return Changes(
            self.table,
            self.columns,
            self.op[rows],
            self.commit_ts[rows],
            self.start_ts[rows],
            [values.take(at) for values in self.shown],
            [values.take(at) for values in self.before],
        )


def whole_transactions(chunks: Iterable[Changes]) -> Iterator[Changes]:
    """The same rows, cut between transactions: the last one of a chunk may go on in the next."""
    rest: Changes | None = None
    for changes in chunks:
        if rest is not None:
            changes = _joined(rest, changes)
        last = int(changes.starts[-1])
        if last:
            yield changes.take(np.arange(last))
        rest = changes.take(np.arange(last, len(changes)))
    if rest is not None:
        yield rest


def _joined(first: Changes, second: Changes) -> Changes:
    def each(left: list[pa.Array], right: list[pa.Array]) -> list[pa.Array]:
        pairs = zip(left, right, strict=True)
        return [pa.concat_arrays([a if a.type == b.type else a.cast(b.type), b]) for a, b in pairs]

    return Changes(
        first.table,
        first.columns,
        np.concatenate([first.op, second.op]),
        np.concatenate([first.commit_ts, second.commit_ts]),
        np.concatenate([first.start_ts, second.start_ts]),
        each(first.shown, second.shown),
        each(first.before, second.before),
    )
