"""What stops a changefeed at a MariaDB, and that the way out which each message gives loses no row."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from changefeed.errors import ChangefeedError, DuplicateKey, OtherDefinition, StatementTooLarge, UnknownThing
from changefeed.verify.mysql.report import verify
from changefeed_devcluster.ddl.indexes import add_index
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from integration_inprocess import World, new_world
from integration_mariadb import MariaDb

WORDS = "CREATE TABLE shop.words (id BIGINT PRIMARY KEY, word VARCHAR(40) NOT NULL UNIQUE, note VARCHAR(700))"
NAMES = "CREATE TABLE shop.names (name VARCHAR(40) PRIMARY KEY, note VARCHAR(700))"


@pytest.fixture
def database(mariadb: MariaDb) -> MariaDb:
    for name in ("shop", "changefeed"):
        mariadb.query(f"DROP DATABASE IF EXISTS {name}")
    mariadb.query(
        "CREATE DATABASE shop COLLATE utf8mb4_bin",
        "CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, name VARCHAR(64))",
        WORDS,
        NAMES,
    )
    return mariadb


@dataclass
class Shop:
    """A world with the tables words and names, each with a row."""

    world: World
    words: NamedTable
    names: NamedTable

    def insert(self, table: NamedTable, **row: Any) -> int:
        with self.world.tidb.begin() as txn:
            txn.insert(table, row)
        return txn.commit_ts


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with new_world(tmp_path) as world:
        note = NewColumn("note", "varchar(700)", nullable=True)
        tidb = world.tidb
        words = tidb.create_table("shop", "words", (NewColumn("id", "bigint"), NewColumn("word", "varchar(40)"), note))
        words = add_index(tidb, words, "word", ("word",), True)
        names = tidb.create_table("shop", "names", (NewColumn("name", "varchar(40)"), note), "name")
        world.start_ts = tidb.now()
        made = Shop(world, words, names)
        made.insert(words, id=1, word="apple", note="first")
        made.insert(names, name="apple", note="first")
        yield made


def spec(database: MariaDb) -> dict[str, Any]:
    mysql = {"uri": f"mysql://127.0.0.1:{database.port}", "workerCount": 2}
    return {"filter": {"rules": ["shop.*"]}, "sink": {"mysql": mysql}}


async def stopped(shop: Shop, database: MariaDb, harm: str, change: Callable[[], object]) -> ChangefeedError:
    """Why a run ends after somebody has harmed the downstream; `change`: what is done upstream after that."""
    run = shop.world.run(**spec(database))
    await run.until(lambda: is_written(database), "the first rows are there")
    database.query(harm)
    change()
    with pytest.raises(ChangefeedError) as stopped:
        await run.outcome()
    return stopped.value


def is_written(database: MariaDb) -> bool:
    counts = database.query("SELECT (SELECT COUNT(*) FROM shop.words), (SELECT COUNT(*) FROM shop.names)")
    return counts == [(b"1", b"1")]


async def goes_on(shop: Shop, database: MariaDb, *mend: str) -> None:
    """With every row of the upstream."""
    database.query(*mend)
    target = {"targetTs": str(shop.world.tidb.now())}
    outcome = await shop.world.run(**spec(database), **target).outcome()
    assert outcome.state == "finished"
    verdict = await verify(shop.world.changefeed(**spec(database), **target))
    assert verdict.ok, verdict.first_problem


def advised(error: ChangefeedError) -> str:
    """The statement in its message."""
    (found,) = re.findall(r"(?:ALTER TABLE|DELETE FROM) .*?`(?: |\.)[^.]*(?=\.)", error.next_step)
    return str(found)


async def test_two_rows_that_a_coarser_collation_makes_one(shop: Shop, database: MariaDb) -> None:
    coarser = "ALTER TABLE shop.names MODIFY name VARCHAR(40) COLLATE utf8mb4_general_ci"
    error = await stopped(shop, database, coarser, lambda: shop.insert(shop.names, name="APPLE"))
    assert type(error) is DuplicateKey
    assert "shop.names: the row name='APPLE' can't be written beside the row name='apple'" in error.message
    assert "are the same to the collation utf8mb4_general_ci of the key column name" in error.message
    assert database.query("SELECT name FROM shop.names") == [(b"apple",)]
    await goes_on(shop, database, advised(error))
    assert database.query("SELECT name FROM shop.names ORDER BY name") == [(b"APPLE",), (b"apple",)]


async def test_two_rows_with_the_same_unique_value_by_a_coarser_collation(shop: Shop, database: MariaDb) -> None:
    """Both in one transaction, which leaves none of them."""
    coarser = "ALTER TABLE shop.words MODIFY word VARCHAR(40) COLLATE utf8mb4_unicode_ci NOT NULL"

    def change() -> None:
        with shop.world.tidb.begin() as txn:
            txn.insert(shop.words, {"id": 7, "word": "strasse"})
            txn.insert(shop.words, {"id": 8, "word": "straße"})

    error = await stopped(shop, database, coarser, change)
    assert type(error) is DuplicateKey
    assert "the row id=8 can't be written beside the row id=7: 'straße' and 'strasse' are the same" in error.message
    await goes_on(shop, database, advised(error))
    assert database.query("SELECT COUNT(*) FROM shop.words") == [(b"3",)]


@pytest.mark.parametrize("theirs", [(7, "theirs"), (99, "it's")])
async def test_a_row_that_somebody_else_has_written(shop: Shop, database: MariaDb, theirs: tuple[int, str]) -> None:
    id_, word = theirs
    foreign = f"""INSERT INTO shop.words VALUES ({id_}, "{word}", 'by hand')"""
    error = await stopped(shop, database, foreign, lambda: shop.insert(shop.words, id=7, word="it's", note="ours"))
    assert type(error) is DuplicateKey
    assert f"the row id=7 can't be written: the row id={id_} is there" in error.message
    assert "by hand" not in str(error)
    assert "ours" not in str(error)
    assert advised(error) == f"DELETE FROM `shop`.`words` WHERE `id`={id_}"
    assert database.query(f"SELECT note FROM shop.words WHERE id={id_}") == [(b"by hand",)]
    await goes_on(shop, database, advised(error))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("ALTER TABLE shop.words ADD UNIQUE KEY once (note(3))", "the unique key once (note) is not in the upstream"),
        ("ALTER TABLE shop.words MODIFY note VARCHAR(6)", "the column note is varchar(6)"),
    ],
)
async def test_a_table_that_is_not_as_upstream(shop: Shop, database: MariaDb, harm: str, said: str) -> None:
    error = await stopped(shop, database, harm, lambda: shop.insert(shop.words, id=7, word="w", note="first of many"))
    assert type(error) is OtherDefinition
    assert said in error.message
    await goes_on(shop, database, advised(error))


async def test_a_table_that_is_gone_is_brought_back_with_its_rows(shop: Shop, database: MariaDb) -> None:
    error = await stopped(
        shop, database, "RENAME TABLE shop.words TO shop.kept", lambda: shop.insert(shop.words, id=7, word="w")
    )
    assert type(error) in (UnknownThing, OtherDefinition)
    assert "rows" in error.next_step
    await goes_on(shop, database, "RENAME TABLE shop.kept TO shop.words")


async def test_a_row_that_is_larger_than_what_the_server_takes(shop: Shop, database: MariaDb) -> None:
    (before,) = database.query("SELECT @@GLOBAL.max_allowed_packet")
    try:
        small = "SET GLOBAL max_allowed_packet=2048"
        database.query(small)
        error = await stopped(shop, database, small, lambda: shop.insert(shop.words, id=7, word="w", note="語" * 700))
        assert type(error) is StatementTooLarge
        assert "Raise the server's max_allowed_packet" in error.next_step
    finally:
        database.query(f"SET GLOBAL max_allowed_packet={int(before[0])}")
    await goes_on(shop, database)


async def test_a_unique_index_over_rows_that_a_coarser_collation_makes_equal(shop: Shop, database: MariaDb) -> None:
    """The column is in no key before, so that rows may go on."""
    coarser = "ALTER TABLE shop.words MODIFY note VARCHAR(700) COLLATE utf8mb4_general_ci"

    def change() -> None:
        shop.insert(shop.words, id=7, word="w", note="FIRST")
        add_index(shop.world.tidb, shop.words, "of_note", ("note",), True)

    error = await stopped(shop, database, coarser, change)
    assert type(error) is DuplicateKey
    assert "The statement was ALTER TABLE `shop`.`words` ADD UNIQUE" in error.message
    assert "Compare the collations of the key's columns" in error.next_step
    await goes_on(shop, database, "ALTER TABLE shop.words MODIFY note VARCHAR(700) COLLATE utf8mb4_bin")
