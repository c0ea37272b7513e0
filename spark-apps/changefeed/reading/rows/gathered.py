"""Batches the rows of many small files for loading: a statement costs about the same for few rows as for many."""

from __future__ import annotations

import pyarrow as pa

_MANY_ROWS = 1 << 20


class Gathered:
    def __init__(self, many_bytes: int) -> None:
        self._many_bytes = many_bytes
        self._pieces: list[pa.Table] = []
        self._rows = 0
        self._bytes = 0

    def add(self, piece: pa.Table) -> None:
        """It must fit."""
        self._pieces.append(piece)
        self._rows += piece.num_rows
        self._bytes += piece.nbytes

    def fits(self, piece: pa.Table) -> bool:
        """Whether its columns are those of what is there; a piece may have bytes where all before it had text."""
        return not self._pieces or piece.schema == self._pieces[0].schema

    @property
    def are_many(self) -> bool:
        return self._rows >= _MANY_ROWS or self._bytes >= self._many_bytes

    def taken(self) -> pa.Table | None:
        """All of it, in its order, and nothing is left; None: there was nothing."""
        pieces, self._pieces, self._rows, self._bytes = self._pieces, [], 0, 0
        return pa.concat_tables(pieces) if pieces else None
