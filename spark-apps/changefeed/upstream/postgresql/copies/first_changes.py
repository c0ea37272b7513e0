"""What rows of a table were before the stream has first changed them, behind the moment as of which it is copied. Pure.

In memory is a row for each key that has changed since, unless its chunk is over.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.model.rows import NO_ROWS
from changefeed.upstream.postgresql.pgoutput.messages import Relation

_KEPT = ["commit_ts", "key", "old_value"]
_NONE = NO_ROWS.select(_KEPT)
_MOST_NEW = 1 << 16  # rows that are looked at together


@dataclass(frozen=True)
class FormerRows:
    """By key what was there; null for what was not. `relations`: as which the stream has described the table since."""

    keys: pa.BinaryArray
    values: pa.BinaryArray
    relations: frozenset[Relation]

    def without(self, keys: pa.BinaryArray, values: pa.BinaryArray) -> tuple[pa.BinaryArray, pa.BinaryArray]:
        """Rows whose keys are not among these."""
        if not len(self.keys):
            return keys, values
        others = pc.invert(pc.is_in(keys, value_set=self.keys))
        return keys.filter(others), values.filter(others)

    def there(self) -> tuple[pa.BinaryArray, pa.BinaryArray]:
        """Keys and values of those that were there."""
        known = self.values.is_valid()
        return self.keys.filter(known), self.values.filter(known)


class FirstChanges:
    """One table's first changes above `after_ts`. What the stream has is added in any order, and may come again."""

    def __init__(self, after_ts: int) -> None:
        self._after_ts = after_ts
        self._first = _NONE
        self._new: list[pa.RecordBatch] = []
        self._relations: set[Relation] = set()

    def add(self, batch: pa.RecordBatch, relation: Relation) -> None:
        """Rows of RAW_SCHEMA, as this relation has them."""
        above = batch.filter(pc.greater(batch["commit_ts"], self._after_ts)).select(_KEPT)
        if above.num_rows:
            self._new.append(above)
            self._relations.add(relation)
            if sum(each.num_rows for each in self._new) > max(_MOST_NEW, self._first.num_rows):
                self._find()

    def of(self, start: bytes, end: bytes) -> FormerRows:
        """Those of keys in `[start, end)`. Those below `start` are forgotten."""
        self._find()
        keys = self._first["key"]
        self._first = self._first.filter(pc.greater_equal(keys, start))
        within = self._first.filter(pc.less(self._first["key"], end))
        return FormerRows(within["key"], within["old_value"], frozenset(self._relations))

    def _find(self) -> None:
        if not self._new:
            return
        columns = [pa.concat_arrays([batch[name] for batch in (self._first, *self._new)]) for name in _KEPT]
        order = np.argsort(columns[0].to_numpy(), kind="stable")
        numbers = columns[1].take(pa.array(order)).dictionary_encode().indices.to_numpy()
        _, first = np.unique(numbers, return_index=True)
        self._first = pa.RecordBatch.from_arrays(columns, schema=_NONE.schema).take(pa.array(order[np.sort(first)]))
        self._new = []
