"""A slot's stream from a real server to columns: connection, transactions, ts, definitions and decoder together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from changefeed.model.position import OP_DELETE
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import TableInfo
from changefeed.upstream.postgresql.pgoutput.messages import Commit, LogicalMessage, Relation
from changefeed.upstream.postgresql.pgoutput.transactions import TransactionStream
from changefeed.upstream.postgresql.schema.relation_columns import fits
from changefeed.upstream.postgresql.server import PostgresqlSession
from changefeed.upstream.postgresql.slot.anchors import EMIT, EMIT_HELD, Said, said
from changefeed.upstream.postgresql.slot.chain import Chain
from changefeed.upstream.postgresql.slot.replication import Replication
from changefeed.upstream.postgresql.values.decoder import PgoutputRows
from conftest import wait_for
from integration_postgresql import PROGRAMS, Postgresql, published, reached, running

USER, PASSWORD = "keeper", "p@ss/word"


@pytest.fixture(params=PROGRAMS)
def database(request: pytest.FixtureRequest) -> Iterator[Postgresql]:
    with running(USER, PASSWORD, of=request.param) as server:
        yield server


def new_slot(database: Postgresql) -> None:
    """With an anchor, at which its history begins."""
    database.query("SELECT pg_create_logical_replication_slot('s', 'pgoutput')", EMIT)


class Reader:
    """One life of a reader. `ts` by the place of the commit; `rows`: (ts, op, key, columns)."""

    def __init__(self, database: Postgresql, tables: dict[int, TableInfo]) -> None:
        self._tables = tables
        self.replication = Replication(reached(database), "s", ["p"])
        self.chain = Chain("s")
        self._said: Said | None = None
        self._stream = TransactionStream(lambda relation: _primary_key(tables[relation.oid]))
        self.ts: dict[int, int] = {}
        self.relations: list[Relation] = []
        self.rows: list[tuple[int, int, bytes, dict[str, Any]]] = []

    def take(self) -> None:
        """One read's worth."""
        arrived = self._stream.take(self.replication.read(0.1, 0.01))
        commits: list[int | None] = []
        for event in arrived.events:
            if isinstance(event, Commit):
                ts = self.chain.commit(event.lsn, event.time_us, self._said)
                commits.append(ts)
                self._said = None
                if ts is not None:
                    self.ts[event.lsn] = ts
            elif isinstance(event, LogicalMessage):
                self._said = said(event.prefix, event.content)
            elif isinstance(event, Relation):
                self.relations.append(event)
        self.chain.check()
        for changes in arrived.changes:
            table = self._tables[changes.relation.oid]
            batch = changes.batch(table.id, np.array([ts or 0 for ts in commits], np.uint64))
            values = [old if op == OP_DELETE else new for op, new, old in zip(*self._of(batch), strict=True)]
            found = PgoutputRows().rows(table, batch["key"], pa.array(values, pa.binary()), "UTC")
            names = [column.name for column in table.output_columns]
            columns = zip(*(column.to_pylist() for column in found), strict=True)
            ts, op, key = (batch[name].to_pylist() for name in ("commit_ts", "op", "key"))
            for row in zip(ts, op, key, (dict(zip(names, row, strict=True)) for row in columns), strict=True):
                if row[0]:
                    self.rows.append(row)

    def until(self, is_there: Callable[[], Any]) -> None:
        def more() -> Any:
            self.take()
            return is_there()

        wait_for(more, "what the server is to send")

    def _of(self, batch: Any) -> list[list[Any]]:
        return [batch[name].to_pylist() for name in ("op", "value", "old_value")]


def _primary_key(table: TableInfo) -> list[str]:
    return [name for index in table.indexes if index.is_primary for name, _ in index.columns]


def test_a_definition_has_the_columns_that_rows_have(database: Postgresql) -> None:
    """Promise: names, order and keys are those that the server describes, and each value is decoded by its column."""
    ((version,),) = database.query("SELECT current_setting('server_version_num')::int / 10000")
    is_new, listed = version >= 18, "listed (id, seen)" if version >= 15 else "listed"
    database.query(
        "CREATE DOMAIN small AS numeric(6, 2)",
        "CREATE DOMAIN smaller AS small CHECK (VALUE < 100)",
        "CREATE TABLE typed (b bigint, a varchar(20) NOT NULL, gone int, n smaller, twice bigint GENERATED ALWAYS AS "
        "(2 * b) STORED, d date, PRIMARY KEY (a, b))",
        "ALTER TABLE typed DROP COLUMN gone",
        "INSERT INTO typed VALUES (0, 'old')",
        "ALTER TABLE typed ADD COLUMN late int NOT NULL DEFAULT 7",
        "CREATE UNIQUE INDEX single ON typed (late)",
        "CREATE UNIQUE INDEX partial ON typed (n) WHERE n > 0",
        "CREATE TABLE listed (id int PRIMARY KEY, hidden text, seen text)",
        "CREATE TABLE by_index (id int NOT NULL, v int)",
        "CREATE UNIQUE INDEX by_index_id ON by_index (id)",
        "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_id",
        "CREATE TABLE parted (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE part (v text, id int NOT NULL)",
        "ALTER TABLE parted ATTACH PARTITION part FOR VALUES FROM (0) TO (9)",
        "CREATE TABLE elsewhere (id int PRIMARY KEY)",
        f"CREATE PUBLICATION p FOR TABLE typed, {listed}, by_index, parted WITH (publish_via_partition_root"
        f"{', publish_generated_columns = stored' if is_new else ''})",
    )
    found = published(database)
    tables = {table.id: table for table in found.tables}
    new_slot(database)
    database.query(
        "INSERT INTO typed (a, b, n, d, late) VALUES ('x', 5, 1.5, '2026-03-04', 8)",
        "INSERT INTO listed VALUES (1, 'no', 'yes')",
        "INSERT INTO by_index VALUES (2, 3)",
        "INSERT INTO parted VALUES (4, 'four')",
    )
    reader = Reader(database, tables)
    with closing(reader.replication):
        reader.until(lambda: len(reader.rows) == 4)
    described = {relation.name: relation for relation in reader.relations}
    assert {table.name for table in tables.values()} == {"typed", "listed", "by_index", "parted"}
    assert set(described) == {"typed", "listed", "by_index", "parted", "part"}  # of which no row comes
    assert described["part"].oid in found.parts
    for table in tables.values():
        relation = described[table.name]
        assert fits(table, relation, found.domains)
        assert [column.name for column in table.output_columns] == [column.name for column in relation.columns]
        identity = {column.name for column in relation.columns if column.is_identity}
        assert {column.name for column in table.columns if column.is_pk} == identity
        (primary,) = [index for index in table.indexes if index.is_primary]
        assert {name for name, _ in primary.columns} == identity
        assert TableInfo.from_json(table.to_json()) == table
    twice = {"twice": 10} if is_new else {}
    assert [row[3] for row in sorted(reader.rows, key=lambda row: row[0])] == [
        {"b": 5, "a": "x", "n": "1.50", **twice, "d": "2026-03-04", "late": 8},
        {"id": 1, **({} if version >= 15 else {"hidden": "no"}), "seen": "yes"},
        {"id": 2, "v": 3},
        {"id": 4, "v": "four"},
    ]
    typed = next(table for table in tables.values() if table.name == "typed")
    columns = {column.name: column for column in typed.columns}
    assert (columns["n"].type, columns["n"].flen, columns["n"].decimal) == (SqlType.DECIMAL, 6, 2)
    assert columns["late"].origin_default == "7"
    assert ("twice" in columns) == is_new
    assert [name for name, column in columns.items() if not column.nullable] == ["b", "a"]
    assert {index.name: index.columns for index in typed.indexes} == {
        "typed_pkey": (("a", -1), ("b", -1)),
        "single": (("late", -1),),
    }


def test_every_life_of_a_reader_gives_the_same_ts(database: Postgresql) -> None:
    """Promise: the server is killed and its clock of commits is what it is; each commit has one ts, and no row is lost.

    Each life begins at an anchor that was held by then, or at an earlier one if the server has forgotten that.
    """
    database.query(
        "CREATE TABLE t (id int PRIMARY KEY, v int)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    tables = {table.id: table for table in published(database).tables}
    new_slot(database)
    ts: dict[int, int] = {}
    state: dict[int, int] = {}

    def write(life: int) -> None:
        for step in range(50):
            number = life * 50 + step
            database.query(
                f"INSERT INTO t VALUES ({number}, 0), (-1, {number}) ON CONFLICT (id) DO UPDATE SET v = {step}"
            )
            if step % 10 == 0:
                database.query(EMIT, f"DELETE FROM t WHERE id = {number}")

    for life in range(3):
        reader = Reader(database, tables)
        writer = threading.Thread(target=write, args=[life])
        writer.start()
        with closing(reader.replication), closing(PostgresqlSession(reached(database))) as session:
            reader.until(lambda reader=reader: len(reader.ts) > 20)  # type: ignore[misc]
            held = sorted(reader.ts.values())[10]
            writer.join()
            ((end,),) = database.query("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
            session.rows(EMIT_HELD, held=str(held), slot="s")
            reader.until(lambda reader=reader, end=end: max(reader.ts) >= end)  # type: ignore[misc]
            position = reader.chain.confirmable()
            assert reader.ts[position] <= held
            reader.replication.confirm(max(reader.ts), position)
        for lsn, given in reader.ts.items():
            assert ts.setdefault(lsn, given) == given
        for _, op, _, row in sorted(reader.rows, key=lambda row: row[0]):
            if op == OP_DELETE:
                state.pop(row["id"], None)
            else:
                state[row["id"]] = row["v"]
        assert sorted(state.items()) == [tuple(row) for row in database.query("SELECT id, v FROM t ORDER BY id")]
        database.kill()
        database.start()
    assert [ts[lsn] for lsn in sorted(ts)] == sorted(set(ts.values()))
