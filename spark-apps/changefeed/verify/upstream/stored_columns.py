"""Which columns rows' values hold: a sign whether the definition that they are read by is the one that wrote them.

No definition is taken on trust: an id that none in force knows, or a NOT NULL column that is missing, tells that
another one wrote the row. It reads nothing but the ids at a value's beginning (docs/design/tidb.md, Row format v2),
many at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.schema.table_info import TableInfo, parse_table_info
from changefeed.upstream.binary_view import BinaryView, Ints
from changefeed.verify.upstream.definitions import State

_VERSION = 128  # of values that begin with their columns' ids; the older format is not looked at
_HEADER = 6  # version, flags, number of values, number of NULLs
_LARGE = 1
_SHAPE = 0xFFFF_FFFF_01_00  # what decides where the ids stand: the flag for large rows, and both numbers


@dataclass(frozen=True)
class Sign:
    commit_ts: int
    key: bytes
    what: str

    def __str__(self) -> str:
        return f"the row of commit ts {self.commit_ts}, key {self.key.hex()}, {self.what}"


@dataclass(frozen=True)
class StoredColumns:
    """`known`: the ids that a value may have; `needed`: those that each has."""

    known: frozenset[int]
    needed: frozenset[int]

    @classmethod
    def of(cls, info: TableInfo, from_ts: int, states: Sequence[State]) -> StoredColumns:
        """`info`: a definition that begins at `from_ts`; `states`: in force since then, and the one before.

        A session may be one state behind, so that one's columns are known too, and public columns are in all values.
        """
        ends = [*(ts for ts, _ in states[1:]), from_ts + 1]
        own = [raw for (_, raw), end in zip(states, ends, strict=False) if end > from_ts]
        needed = [_needed(parse_table_info(raw, info.schema_name)) for raw in own]
        return cls(
            known=frozenset(int(column["id"]) for _, raw in states for column in raw.get("cols") or ()),
            needed=frozenset.intersection(*needed) if needed else frozenset(),
        )

    def first_sign(self, versions: pa.Table) -> Sign | None:
        """In the values that rows have afterwards; versions: history.SCAN_SCHEMA."""
        if pc.any(versions["delete"]).as_py():
            versions = versions.filter(pc.invert(versions["delete"]))
        begin = 0
        for values in versions["value"].chunks:
            if len(values) and (found := _first(values, self.known, self.needed)) is not None:
                row, what = begin + found[0], found[1]
                return Sign(versions["commit_ts"][row].as_py(), versions["key"][row].as_py(), what)
            begin += len(values)
        return None


def _needed(info: TableInfo) -> frozenset[int]:
    """Return the ids of columns that are NOT NULL and not in the key."""
    in_key = {column.id for column, _ in info.common_handle}
    in_key |= {info.handle_column.id} if info.handle_column is not None else set()
    return frozenset(column.id for column in info.output_columns if not column.nullable) - in_key


def _first(values: pa.BinaryArray, known: frozenset[int], needed: frozenset[int]) -> tuple[int, str] | None:
    view = BinaryView(values)
    length = view.ends - view.starts
    rows = np.flatnonzero(length >= _HEADER)
    heads = view.read(view.starts[rows], _HEADER)
    is_v2 = heads & np.uint64(0xFF) == _VERSION
    rows, shapes = rows[is_v2], heads[is_v2] & np.uint64(_SHAPE)
    found = (_first_of_shape(view, rows[shapes == shape], int(shape), known, needed) for shape in np.unique(shapes))
    return min((each for each in found if each is not None), default=None)


def _first_of_shape(
    view: BinaryView, rows: Ints, shape: int, known: frozenset[int], needed: frozenset[int]
) -> tuple[int, str] | None:
    values, width = (shape >> 16 & 0xFFFF), 4 if shape >> 8 & _LARGE else 1
    count = values + (shape >> 32)
    rows = rows[view.starts[rows] + _HEADER + count * width <= view.ends[rows]]  # others the decoder refuses
    if not len(rows):
        return None
    block = view.blocks(view.starts[rows] + _HEADER, count * width)
    ids = np.ascontiguousarray(block).view(f"<u{width}") if count else np.zeros((len(rows), 0), np.uint8)
    if (ids == ids[0]).all():
        ids = ids[:1]
    is_strange = ~_are_in(ids, known)
    lacks = _are_in(ids[:, :values], needed).sum(axis=1) < len(needed)  # an id stands once in a row
    bad = is_strange.any(axis=1) | lacks
    if not bad.any():
        return None
    row = int(bad.argmax())
    if is_strange[row].any():
        return int(rows[row]), f"has column id {ids[row][is_strange[row]][0]}, which no definition in force then knows"
    missing = min(needed - {*ids[row][:values].tolist()})
    return int(rows[row]), f"lacks column id {missing}, which is NOT NULL in each definition in force then"


def _are_in(ids: npt.NDArray[np.unsignedinteger], some: frozenset[int]) -> npt.NDArray[np.bool_]:
    if ids.itemsize > 1:
        return np.isin(ids, [*some])
    table = np.zeros(1 << 8, np.bool_)
    table[[id_ for id_ in some if id_ < len(table)]] = True
    found: npt.NDArray[np.bool_] = table[ids]
    return found
