"""Row format v1, still found in clusters created before TiDB 4.0: pairs of column id and value.

See docs/design/tidb.md, Row format v1.

All rows of a batch advance one pair at a time. A value that format v2 encodes differently, such as a variable-length
integer, is rewritten as an eight-byte word, so that one decoder (`row.cells`) reads both formats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from changefeed.schema import table_info as ti
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo
from changefeed.upstream.binary_view import BadCell, BinaryView, Ints, Mask, Words
from changefeed.upstream.tikv.row.cells import NULL
from changefeed.upstream.tikv.row.decimals import decimal_size
from changefeed.upstream.tikv.row.json_binary import BadJson, json_size
from changefeed.upstream.tikv.row.located import Located, Slots

EMPTY, FIRST = 0, 8  # first bytes: of a row without columns, and of any other one

_NULL, _COMPACT, _INT, _UINT, _FLOAT, _DECIMAL, _DURATION, _VARINT, _UVARINT, _JSON, _VECTOR = (
    *(0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20),
)
_SIGN = np.uint64(1 << 63)
_WORD = 8
_MOST_BYTES = 10  # of an integer of variable length

_ANY, _WORDS = -1, 0  # beside these a form is the flag of the only kind of value that a column has
_FORMS = {
    SqlType.DECIMAL: _DECIMAL,
    SqlType.FLOAT: _FLOAT,
    SqlType.DOUBLE: _FLOAT,
    SqlType.JSON: _JSON,
    SqlType.VECTOR: _VECTOR,
}
_FORM_OF_FLAG = dict.fromkeys((_INT, _UINT, _DURATION, _VARINT, _UVARINT), _WORDS)


def locate(view: BinaryView, rows: Ints, columns: Sequence[ColumnInfo], cells: Located) -> Words:
    """Notes in `cells` where `rows`, all in format v1, have the values of `columns`.

    Gives the words that were written anew. They are meant to stand behind the view's data, and `cells` says so. Raises
    BadCell with the row.
    """
    walk = _Walk(view, columns, cells)
    length = view.ends[rows] - view.starts[rows]
    has_columns = (length > 1) | (view.read(view.starts[rows], 1) != EMPTY)
    rows = rows[has_columns]
    at = view.starts[rows]
    while len(rows):
        at = walk.pair(rows, at)
        open_ = at < view.ends[rows]
        rows, at = rows[open_], at[open_]
    return walk.words


class _Walk:
    def __init__(self, view: BinaryView, columns: Sequence[ColumnInfo], cells: Located) -> None:
        self._view = view
        self._cells = cells
        self._slots = Slots([column.id for column in columns])
        self._forms = np.array([*(_form(column) for column in columns), _ANY])
        self._words: list[Words] = []
        self._next_word = len(view.data)

    @property
    def words(self) -> Words:
        return np.concatenate([np.zeros(0, np.uint64), *self._words])

    def pair(self, rows: Ints, at: Ints) -> Ints:
        """Where the next pair of each row begins."""
        self._inside(rows, at + 1)
        self._refuse(rows, self._view.read(at, 1) != _VARINT, "has no column id where one is due")
        ids, at = self._varint(rows, at + 1)
        self._inside(rows, at + 1)
        flags = self._view.read(at, 1)
        slots = self._slots.of(ids >> np.uint64(1))
        after = np.zeros(len(rows), np.int64)
        for flag in np.unique(flags).tolist():
            here = flags == flag
            after[here] = self._values(int(flag), rows[here], slots[here], at[here] + 1)
        return after

    def _values(self, flag: int, rows: Ints, slots: npt.NDArray[np.intp], at: Ints) -> Ints:
        """Notes values of one flag; where they end."""
        if flag == _NULL:
            self._cells.place(slots, rows, NULL, 0)
            return at
        if (read := _READERS.get(flag)) is None:
            raise BadCell(int(rows[0]), f"has a value with the flag {flag}, which is none of row format v1")
        wanted = self._forms[slots]
        self._refuse(rows, (wanted != _ANY) & (wanted != _FORM_OF_FLAG.get(flag, flag)), "has a value of another type")
        starts, ends, after = read(self, rows, at)
        self._inside(rows, after)
        self._cells.place(slots, rows, starts, ends)
        return after

    # -- values by their flags: where they begin and end, and where the next pair begins

    def compact(self, rows: Ints, at: Ints) -> tuple[Ints, Ints, Ints]:
        length, at = self._varint(rows, at)
        ends = at + (length >> np.uint64(1)).astype(np.int64)
        self._refuse(rows, (length & np.uint64(1) != 0) | (length >> np.uint64(32) != 0), "has an impossible length")
        return at, ends, ends

    def signed(self, rows: Ints, at: Ints) -> tuple[Ints, Ints, Ints]:
        self._inside(rows, at + _WORD)
        return *self._anew(self._view.read(at, _WORD).byteswap() ^ _SIGN), at + _WORD

    def unsigned(self, rows: Ints, at: Ints) -> tuple[Ints, Ints, Ints]:
        self._inside(rows, at + _WORD)
        return *self._anew(self._view.read(at, _WORD).byteswap()), at + _WORD

    def double(self, rows: Ints, at: Ints) -> tuple[Ints, Ints, Ints]:
        return at, at + _WORD, at + _WORD

    def decimal(self, rows: Ints, at: Ints) -> tuple[Ints, Ints, Ints]:
        self._inside(rows, at + 2)
        ends = at + decimal_size(self._view.read(at, 2))
        return at, ends, ends

    def varint(self, rows: Ints, at: Ints) -> tuple[Ints, Ints, Ints]:
        folded, after = self._varint(rows, at)
        sign = np.uint64(0) - (folded & np.uint64(1))
        return *self._anew(folded >> np.uint64(1) ^ sign), after

    def uvarint(self, rows: Ints, at: Ints) -> tuple[Ints, Ints, Ints]:
        words, after = self._varint(rows, at)
        return *self._anew(words), after

    def json(self, rows: Ints, at: Ints) -> tuple[Ints, Ints, Ints]:
        """The one kind whose length is found row by row."""
        view, sizes = self._view, np.zeros(len(rows), np.int64)
        for number, (start, end) in enumerate(zip(at.tolist(), view.ends[rows].tolist(), strict=True)):
            try:
                sizes[number] = json_size(view.data[start:end].tobytes())
            except BadJson as error:
                raise BadCell(int(rows[number]), str(error)) from error
        return at, at + sizes, at + sizes

    def vector(self, rows: Ints, at: Ints) -> tuple[Ints, Ints, Ints]:
        self._inside(rows, at + 4)
        ends = at + 4 + 4 * self._view.read(at, 4).astype(np.int64)
        return at, ends, ends

    def _anew(self, words: Words) -> tuple[Ints, Ints]:
        at = self._next_word + _WORD * np.arange(len(words))
        self._words.append(words)
        self._next_word += _WORD * len(words)
        return at, at + _WORD

    def _varint(self, rows: Ints, at: Ints) -> tuple[Words, Ints]:
        """Seven bits a byte, the lowest first, as they are; and where they end."""
        found, after = np.zeros(len(at), np.uint64), at.copy()
        open_ = np.arange(len(at))
        for number in range(_MOST_BYTES):
            self._inside(rows[open_], after[open_] + 1)
            byte = self._view.read(after[open_], 1)
            is_over = (number == _MOST_BYTES - 1) & (byte > 1)
            self._refuse(rows[open_], is_over, "has an integer of more than 64 bits")
            found[open_] |= (byte & np.uint64(0x7F)) << np.uint64(7 * number)
            after[open_] += 1
            open_ = open_[byte >= 0x80]
            if not len(open_):
                break
        return found, after

    def _inside(self, rows: Ints, ends: Ints) -> None:
        self._refuse(rows, ends > self._view.ends[rows], "ends inside a value")

    def _refuse(self, rows: Ints, bad: Mask, why: str) -> None:
        if bad.any():
            raise BadCell(int(rows[bad.argmax()]), why)


_Read = Callable[[_Walk, Ints, Ints], tuple[Ints, Ints, Ints]]
_READERS: dict[int, _Read] = {
    _COMPACT: _Walk.compact,
    _INT: _Walk.signed,
    _UINT: _Walk.unsigned,
    _FLOAT: _Walk.double,
    _DECIMAL: _Walk.decimal,
    _DURATION: _Walk.signed,
    _VARINT: _Walk.varint,
    _UVARINT: _Walk.uvarint,
    _JSON: _Walk.json,
    _VECTOR: _Walk.vector,
}


def _form(column: ColumnInfo) -> int:
    return _COMPACT if column.type in ti.STRINGS | ti.BLOBS else _FORMS.get(column.type, _WORDS)
