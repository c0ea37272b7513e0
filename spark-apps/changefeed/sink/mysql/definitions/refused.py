"""Why a server refuses rows: their table is not as the upstream's, or another row has the same key.

It is asked after a refusal only, so it may take its time: the rows are inserted once more, each after a look for one
that has a key of it, and rolled back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from changefeed.errors import DuplicateKey, NeedsHuman, OtherDefinition, StatementRefused
from changefeed.schema.sql.text import quoted
from changefeed.schema.table_info import BLOBS, STRINGS, ColumnInfo
from changefeed.sink.mysql.definitions.check import check
from changefeed.sink.mysql.definitions.difference import collation_mend
from changefeed.sink.mysql.order.schedule import Batch
from changefeed.sink.mysql.rows.keys import WHOLE, KeyColumns
from changefeed.sink.mysql.rows.literals import bytes_literal, identifier, text_literal
from changefeed.sink.mysql.rows.statements import ChunkStatements
from changefeed.sink.mysql.server import Session

_SHOWN = 100  # characters of a value


def explained(refused: StatementRefused, session: Session, where: str, batch: Batch) -> NeedsHuman:
    """The same with the rows, and the way out, if they can be told. Raises what `session` raises."""
    statements = batch.chunk.statements
    if isinstance(refused, DuplicateKey) and (found := _duplicate(refused, session, where, batch)) is not None:
        return found
    try:
        check(session, where, [statements.keys.table])
    except OtherDefinition as other:
        return OtherDefinition(f"{refused.message} {other.message}", other.next_step)
    return refused


def _duplicate(refused: DuplicateKey, session: Session, where: str, batch: Batch) -> DuplicateKey | None:
    """None if a key is why that the upstream has not."""
    statements = batch.chunk.statements
    before, inserts = statements.inserts(batch.rows)
    with contextlib.suppress(StatementRefused):
        session.run([b"BEGIN", *before])
        for row, insert in inserts:
            for key in statements.keys.unique:
                look = _Look(statements, row, key)
                if there := session.rows(look.query()):
                    found = look.told(where, session, there[0])
                    session.rollback()
                    found.number, found.answered = refused.number, refused.answered
                    return found
            session.run([insert])
    session.rollback()
    return None


class _Look:
    """For a row with the same key as one that is to be written."""

    def __init__(self, statements: ChunkStatements, row: int, key: KeyColumns) -> None:
        self._table, self._handle, self._key = statements.keys.table, statements.keys.handle, key
        self._name = quoted(self._table.schema_name, self._table.name)
        self._ours: dict[str, bytes] = {name: literals[row].as_py() for name, literals in statements.key_values.items()}

    def query(self) -> bytes:
        """Gives the row's handle, and of each column of the key its value and collation."""
        names = [identifier(column.name) for column in self._handle]
        for column, _ in self._key:
            names += [identifier(column.name), b"COLLATION(" + identifier(column.name) + b")"]
        same = b" AND ".join(self._is_same(column, length) for column, length in self._key)
        return b"SELECT " + b", ".join(names) + b" FROM " + self._name.encode() + b" WHERE " + same + b" LIMIT 1"

    def told(self, where: str, session: Session, found: Sequence[bytes]) -> DuplicateKey:
        """`found`: what `query` gives."""
        there = [_literal(*pair) for pair in zip(self._handle, found, strict=False)]
        ours = [self._ours[column.name] for column in self._handle]
        rest = iter(found[len(self._handle) :])
        refused = f"{where}: {self._table.full_name}: the row {self._named(ours)} can't be written"
        for (column, _), value, collation in zip(self._key, rest, rest, strict=True):
            if (literal := _literal(column, value)) != (wanted := self._ours[column.name]) and _is_text(column):
                mend = collation_mend(self._table, column.name, session.dialect)
                return DuplicateKey(
                    f"{refused} beside the row {self._named(there)}: {_cut(wanted)} and {_cut(literal)} are the same "
                    f"to the collation {collation.decode()} of the key column {column.name}, and two to the "
                    f"upstream's {column.collate}.",
                    f"Give the column the upstream's collation, then start again: {mend}."
                    if mend
                    else f"{session.dialect} has no such collation: give the column one to which they are two.",
                )
        same = "" if there == ours else f" with the same {', '.join(column.name for column, _ in self._key)}"
        which = " AND ".join(
            f"{quoted(column.name)}={_whole(literal)}" for column, literal in zip(self._handle, there, strict=True)
        )
        return DuplicateKey(
            f"{refused}: the row {self._named(there)} is there{same}, which this changefeed did not expect.",
            "Somebody else has written it, or the table was copied later than the checkpoint. If nobody needs it, "
            "delete it, then start again, and the upstream's row is written in its place: "
            f"DELETE FROM {self._name} WHERE {which}. If somebody does, give it another key before.",
        )

    def _is_same(self, column: ColumnInfo, length: int) -> bytes:
        name, literal = identifier(column.name), self._ours[column.name]
        if length == WHOLE:
            return name + b" = " + literal
        start = b", %d)" % length
        return b"LEFT(" + name + start + b" = LEFT(" + literal + start

    def _named(self, literals: Sequence[bytes]) -> str:
        pairs = zip(self._handle, literals, strict=True)
        return ", ".join(f"{column.name}={_cut(literal)}" for column, literal in pairs)


def _literal(column: ColumnInfo, value: bytes) -> bytes:
    """As `rows.literals` writes it."""
    if column.is_binary:
        return bytes_literal(value)
    if value.replace(b".", b"").replace(b"-", b"").isdigit() and column.type not in STRINGS | BLOBS:
        return value
    return text_literal(value.decode(errors="replace"))


def _is_text(column: ColumnInfo) -> bool:
    return column.type in STRINGS | BLOBS and not column.is_binary


def _whole(literal: bytes) -> str:
    """In any SQL mode: in most a backslash escapes."""
    if b"\\" in literal:
        value = literal[1:-1].replace(b"''", b"'")
        return f"_utf8mb4 {bytes_literal(value).decode()}"
    return literal.decode(errors="replace")


def _cut(literal: bytes) -> str:
    text = literal.decode(errors="replace")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."
