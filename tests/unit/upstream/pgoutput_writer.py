"""A small server of the tests: what it writes is a replication stream, made of what a seed chooses."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field

from hypothesis import strategies as st

Row = list[str | None]


@dataclass
class Table:
    """`big`: the column whose value a stream leaves out if it has not changed. `key`: columns."""

    oid: int
    identity: str
    columns: tuple[str, ...]
    key: tuple[int, ...]
    big: int
    rows: dict[tuple[str | None, ...], Row] = field(default_factory=dict)

    def relation(self) -> bytes:
        columns = b""
        for number, name in enumerate(self.columns):
            is_key = self.identity == "f" or number in self.key
            columns += struct.pack(">B", is_key) + name.encode() + b"\0" + struct.pack(">Ii", 25, -1)
        name = f"public\0t{self.oid}\0".encode()
        body = name + self.identity.encode() + struct.pack(">H", len(self.columns)) + columns
        return struct.pack(">I", self.oid) + body


def tuple_data(row: list[str | bytes | None]) -> bytes:
    """A bytes is a cell as it is."""
    cells = b"".join(
        b"n" if cell is None else cell if isinstance(cell, bytes) else b"t" + _sized(cell.encode()) for cell in row
    )
    return struct.pack(">H", len(row)) + cells


def _sized(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def frame(payload: bytes) -> bytes:
    """A message of pgoutput in XLogData in CopyData."""
    body = b"w" + struct.pack(">QQq", 1, 2, 3) + payload
    return b"d" + struct.pack(">I", len(body) + 4) + body


def keep_alive(lsn: int) -> bytes:
    return b"d" + struct.pack(">I", 22) + b"k" + struct.pack(">QqB", lsn, 4, 1)


class Server:
    """Executes and writes."""

    def __init__(self, tables: list[Table]) -> None:
        self.tables = tables
        self.stream = b""
        self._lsn = 100
        self._described: set[int] = set()

    def transaction(self, chosen: random.Random, xid: int) -> None:
        """A few steps."""
        self._lsn += 10
        self.stream += frame(b"B" + struct.pack(">QqI", self._lsn, 6, xid))
        for _ in range(chosen.randint(0, 12)):
            self.stream += self._step(chosen)
            if chosen.random() < 0.1:
                self.stream += keep_alive(self._lsn)
        self.stream += frame(b"C" + struct.pack(">BQQq", 0, self._lsn, self._lsn + 5, 6))

    def _step(self, chosen: random.Random) -> bytes:
        table = chosen.choice(self.tables)
        said = b""
        if table.oid not in self._described:
            self._described.add(table.oid)
            said = frame(b"R" + table.relation())
        kind = chosen.choice("IUUDT" if table.rows else "I")
        if kind == "T":
            if chosen.randint(0, 5):
                return said
            table.rows = {}
            return said + frame(b"T" + struct.pack(">IBI", 1, 0, table.oid))
        head = kind.encode() + struct.pack(">I", table.oid)
        if kind == "I":
            row = self._row(chosen, table)
            return said + (frame(head + b"N" + tuple_data([*row])) if self._insert(table, row) else b"")
        old = table.rows.pop(chosen.choice(sorted(table.rows, key=repr)))
        if kind == "D":
            return said + frame(head + self._old(table, old))
        new = self._row(chosen, table)
        if chosen.random() < 0.5:
            new[table.big] = old[table.big]
        if chosen.random() < 0.5 or not self._insert(table, new):
            for number in table.key:
                new[number] = old[number]
            self._insert(table, new)
        told = self._old(table, old) if table.identity == "f" or self._key(table, old) != self._key(table, new) else b""
        cells: list[str | bytes | None] = [*new]
        if new[table.big] is not None and new[table.big] == old[table.big]:
            cells[table.big] = b"u"
        return said + frame(head + told + b"N" + tuple_data(cells))

    def _old(self, table: Table, row: Row) -> bytes:
        if table.identity == "f":
            return b"O" + tuple_data([*row])
        return b"K" + tuple_data([cell if number in table.key else None for number, cell in enumerate(row)])

    def _row(self, chosen: random.Random, table: Table) -> Row:
        value = (None, "", "x", "grün", "t\n" * 3, "d" * 40)
        key = ("1", "2", "30", "", "d")
        return [chosen.choice(key if number in table.key else value) for number in range(len(table.columns))]

    def _key(self, table: Table, row: Row) -> tuple[str | None, ...]:
        return tuple(row[number] for number in table.key)

    def _insert(self, table: Table, row: Row) -> bool:
        key = self._key(table, row)
        if key in table.rows:
            return False
        table.rows[key] = row
        return True


def stream_of(seed: int) -> tuple[bytes, dict[str, tuple[str, ...]]]:
    """A stream, and the primary keys of its tables."""
    chosen = random.Random(seed)
    tables = []
    for number in range(chosen.randint(1, 3)):
        key, big = chosen.choice((((0,), 2), ((1,), 0), ((0, 2), 1), ((2,), 1)))
        tables.append(Table(number + 1, chosen.choice("df"), ("x", "y", "z"), key, big))
    server = Server(tables)
    for number in range(chosen.randint(1, 6)):
        server.transaction(chosen, 10 * (number + 1))
    keys = {f"public.t{table.oid}": tuple(table.columns[number] for number in table.key) for table in tables}
    return server.stream, keys


streams = st.integers(0, 1 << 32).map(stream_of)
