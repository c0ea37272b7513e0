"""`changefeed verify` of a MySQL sink: a MariaDB filled by hand, with the rows of a development cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from changefeed.cli.main import main
from changefeed.log.log import Log
from changefeed.log.records import CommitRecord, EpochRecord, FileCommitted, PlanEntry, PlanRecord, StartRecord
from changefeed.model.position import Position
from changefeed.objectstore.open import open_store
from changefeed.schema.sql.definition import Definition
from changefeed.schema.sql.dialect import Dialect
from changefeed.schema.sql.tables import create_table
from changefeed.schema.table_info import parse_table_info
from changefeed.spec.parse import effective, parse
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from conftest import Upstream
from integration_mariadb import MariaDb, running
from integration_types import KINDS

ITEMS = (
    NewColumn("id", "bigint"),
    NewColumn("code", "int", unique=True),
    NewColumn("note", "varchar(40)", nullable=True),
    NewColumn("amount", "decimal(10,2)", nullable=True),
)
TYPES = (NewColumn("id", "bigint"), *(NewColumn(f"v{n}", kind.sql, nullable=True) for n, kind in enumerate(KINDS)))
MANY = max(len(kind.cells) for kind in KINDS)
#: The last ones, one for each type, are NULL all over.
TYPE_ROWS = [
    {"id": n} | {f"v{m}": kind.cells[n].value if n < len(kind.cells) else None for m, kind in enumerate(KINDS)}
    for n in range(MANY + len(KINDS))
]
#: Nothing is changed in a value that is written: neither zeros nor 31 February are refused.
LAX = "SET sql_mode='ALLOW_INVALID_DATES,NO_BACKSLASH_ESCAPES'"


def literal(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case bytes():
            return f"x'{value.hex()}'"
        case timedelta():
            micros = value // timedelta(microseconds=1)
            seconds, micro = divmod(abs(micros), 1_000_000)
            clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micro:06}"
            return f"'{'-' * (micros < 0)}{clock}'"
        case str() | date() | datetime():
            return "'" + str(value).replace("'", "''") + "'"
        case float():
            return f"{value!r}e0" if "e" not in repr(value) else repr(value)
    return str(value)


def fill(database: MariaDb, table: NamedTable, columns: tuple[NewColumn, ...], rows: list[dict[str, Any]]) -> None:
    """As the upstream's."""
    create = create_table(
        Definition.of(parse_table_info(table.info.to_json(), "shop")), Dialect("MariaDB", (10, 11, 0))
    )
    shown = [[row[column.name] for column in columns] for row in rows]
    values = ", ".join(f"({', '.join(map(literal, row))})" for row in shown)
    name = f"shop.{table.info.name}"
    database.query(LAX, f"DROP TABLE IF EXISTS {name}", create, f"INSERT INTO {name} VALUES {values}")


class Scene:
    """Tables of the upstream, each with its rows downstream, and a changefeed's log at rest."""

    def __init__(self, upstream: Upstream, database: MariaDb, folder: Path) -> None:
        self.database, self.file, self.state = database, folder / "changefeed.json", folder / "state"
        self._tidb = tidb = upstream.tidb
        tidb.create_database("shop")
        tidb.create_database("other")
        items = tidb.create_table("shop", "items", ITEMS, regions=3, handles=9)
        ahead = tidb.create_table("shop", "ahead", ITEMS)
        parts = tidb.create_table("shop", "parts", ITEMS[:1] + ITEMS[2:], partitions={"p0": 5, "p1": 100})
        types = tidb.create_table("shop", "types", TYPES)
        things = tidb.create_table("other", "things", ITEMS)
        with tidb.begin() as txn:
            for pk in range(1, 10):
                row = {"id": pk, "note": (None, "", "NULL", "it's \\ ä")[pk % 4], "amount": f"{pk}.50"}
                for table in (items, ahead, things):
                    txn.insert(table, {**row, "code": 10 * pk})
                txn.insert(parts, row)
            for each in TYPE_ROWS:
                txn.insert(types, each)
        start_ts = tidb.now()
        with tidb.begin() as txn:
            txn.update(items, {"id": 1, "note": "new"})
            txn.delete(items, 2)
        self.checkpoint_ts = tidb.now()
        with tidb.begin() as txn:  # this table alone has been written further
            txn.update(ahead, {"id": 1, "note": "further"})
        flushed_ts = tidb.now()
        with tidb.begin() as txn:
            txn.update(items, {"id": 1, "note": "later"})
            txn.delete(ahead, 2)
        self.write(upstream, start_ts, ahead, flushed_ts)
        database.query("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop")
        for table, columns, ts in (
            (items, ITEMS, self.checkpoint_ts),
            (ahead, ITEMS, flushed_ts),
            (parts, ITEMS[:1] + ITEMS[2:], self.checkpoint_ts),
        ):
            fill(database, table, columns, list(tidb.snapshot(table, ts).values()))
        fill(database, types, TYPES, TYPE_ROWS)

    def write(self, upstream: Upstream, start_ts: int, ahead: NamedTable, flushed_ts: int) -> None:
        """The resource, and a log that has written the table `ahead` further than the checkpoint."""
        resource = {
            "apiVersion": "changefeed.dev/v1alpha1",
            "kind": "Changefeed",
            "metadata": {"name": "test"},
            "spec": {
                "upstream": {"pdAddresses": [f"http://{upstream.cluster.pd_address}"]},
                "filter": {"rules": ["shop.*"]},
                "state": {"uri": self.state.as_uri()},
                "sink": {"mysql": {"uri": f"mysql://127.0.0.1:{self.database.port}"}},
            },
        }
        self.file.write_text(json.dumps(resource))
        config = effective(parse(self.file.read_text()))
        self.log = log = Log(open_store(self.store_uri))
        log.append(
            StartRecord(n=1, epoch=0, nonce="a", start_ts=start_ts, cluster_id=upstream.cluster.cluster_id, uid="local")
        )
        log.append(EpochRecord(n=2, epoch=1, nonce="a", attempt=0, host="h", pid=1, config=config, versions={}))
        log.append(CommitRecord(n=3, epoch=1, nonce="a", checkpoint_ts=self.checkpoint_ts))
        self.plan(ahead, flushed_ts)
        written = FileCommitted(plan=4, entry=0, rows=1, raw_rows=1, filtered_rows=0, bytes=1, hash="h")
        log.append(CommitRecord(n=5, epoch=1, nonce="a", checkpoint_ts=self.checkpoint_ts, files=(written,)))

    def plan(self, table: NamedTable, upto_ts: int) -> None:
        entry = PlanEntry.model_validate(
            {
                "entry": 0,
                "dispatcher": table.id,
                "table_id": table.id,
                "from": self.log.state.position(table.id),
                "to": Position.end_of(upto_ts),
                "table_version": 1,
                "table_info": "t",
                "estimate": 1,
                "reason": "interval",
            }
        )
        n = self.log.state.n + 1
        more: dict[str, Any] = {"epoch": 1, "nonce": "a", "pd_ms": 1, "resolved_ts": upto_ts, "codec": "c"}
        self.log.append(PlanRecord(n=n, entries=(entry,), table_infos={"t": {}} if n == 4 else {}, **more))

    @property
    def store_uri(self) -> str:
        return (self.state / "default" / "test" / "local").as_uri()

    @property
    def ahead(self) -> NamedTable:
        return self._tidb.tables["shop.ahead"]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    with running(tmp_path_factory.mktemp("mariadb")) as server:
        yield server


def test_rows_of_a_database_are_held_against_the_upstream(
    upstream: Upstream, database: MariaDb, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = Scene(upstream, database, tmp_path)

    def verify(*arguments: str) -> tuple[int, dict[str, Any]]:
        code = main(["verify", "-f", str(scene.file), "--json", *arguments])
        return code, json.loads(capsys.readouterr().out)

    code, verdict = verify()
    assert code == 0, verdict
    assert (verdict["tables"], verdict["notes"]) == (4, [])
    assert verdict["rows"] == 8 + 9 + 9 + len(TYPE_ROWS)
    assert verdict["checkpoint_ts"] == str(scene.checkpoint_ts)
    for do, undo, table, counts, said in harms():
        database.query(LAX, do)
        code, verdict = verify()
        (found,) = [each for each in verdict["by_table"] if each["examples"]]
        assert (code, found["table"]) == (4, table), do
        assert (found["missing"], found["surplus"], found["different"], found["examples"]) == (*counts, [said]), do
        assert said in verdict["first_problem"]
        database.query(LAX, undo)
    for number in range(len(KINDS)):  # NULL becomes a value
        database.query(LAX, f"UPDATE shop.types SET v{number} = '2001' WHERE id = {MANY + number}")
    code, verdict = verify()
    assert (code, verdict["missing"], verdict["surplus"], verdict["different"]) == (4, 0, 0, len(KINDS))
    for number in range(len(KINDS)):
        database.query(LAX, f"UPDATE shop.types SET v{number} = NULL WHERE id = {MANY + number}")
    assert verify()[0] == 0

    database.query("ALTER TABLE shop.items ADD more INT", "CREATE TABLE shop.own (id INT)")
    code, verdict = verify()
    assert code == 0
    assert verdict["notes"] == [
        "shop.items differs from the upstream: the column more is not in the upstream.",
        "shop.own is there, but not in the upstream.",
    ]
    for harm, said in (
        ("ALTER TABLE shop.parts MODIFY note VARCHAR(50) COLLATE utf8mb4_bin", None),
        ("ALTER TABLE shop.parts REMOVE PARTITIONING", None),
        ("ALTER TABLE shop.parts MODIFY note VARCHAR(30) COLLATE utf8mb4_bin", "shop.parts differs .* varchar\\(30\\)"),
        ("DROP TABLE shop.ahead", "shop.ahead differs from the upstream: it is not there"),
        ("ALTER TABLE shop.items DROP note", "shop.items differs from the upstream: the column note is not there"),
    ):
        database.query(harm)
        code, verdict = verify()
        assert (code, verdict["rows"] > 0) == (0 if said is None else 4, True)
        assert re.match(said or "None", str(verdict["first_problem"])), harm


Harm = tuple[str, str, str, tuple[int, int, int], str]


def harms() -> Iterator[Harm]:
    """What is done, what undoes it, and what must be said: missing, surplus, different, and the key."""
    row = "(2, 20, 'NULL', 2.50)"
    insert, delete = f"INSERT INTO shop.items VALUES {row}", "DELETE FROM shop.items WHERE id = 2"
    yield insert, delete, "shop.items", (0, 1, 0), "surplus: id=2"
    parts = "(4, NULL, 4.50)"
    yield (
        "DELETE FROM shop.parts WHERE id = 4",
        f"INSERT INTO shop.parts VALUES {parts}",
        "shop.parts",
        (1, 0, 0),
        "missing: id=4",
    )
    yield (
        "UPDATE shop.ahead SET note = '' WHERE id = 1",
        "UPDATE shop.ahead SET note = 'further' WHERE id = 1",
        "shop.ahead",
        (0, 0, 1),
        "different: id=1",
    )
    yield (
        "UPDATE shop.items SET note = '' WHERE id = 4",
        "UPDATE shop.items SET note = NULL WHERE id = 4",
        "shop.items",
        (0, 0, 1),
        "different: id=4",
    )


def test_it_must_be_at_rest(
    upstream: Upstream,
    database: MariaDb,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scene = Scene(upstream, database, tmp_path)

    def refused() -> str:
        assert main(["verify", "-f", str(scene.file), "--json"]) == 3
        return capsys.readouterr().out

    driver = open_store(scene.store_uri)
    driver.hold()
    assert "must not run while its rows are compared" in refused()
    driver.release()
    assert main(["verify", "-f", str(scene.file)]) == 0
    capsys.readouterr()
    name = f"local/{scene.log.state.origin}"
    database.query(
        "CREATE DATABASE changefeed",
        "CREATE TABLE changefeed.ddls (changefeed VARBINARY(255), ts BIGINT UNSIGNED, job BIGINT)",
        f"INSERT INTO changefeed.ddls VALUES ('another', {scene.checkpoint_ts + 1}, 1), ('{name}', 1, 1)",
    )
    assert main(["verify", "-f", str(scene.file)]) == 0
    capsys.readouterr()
    database.query(f"INSERT INTO changefeed.ddls VALUES ('{name}', {scene.checkpoint_ts + 1}, 1)")
    assert "was killed while it executed a DDL" in refused()
    database.query("DROP DATABASE changefeed")
    scene.plan(scene.ahead, upstream.tidb.now())
    assert "was killed while it wrote" in refused()
