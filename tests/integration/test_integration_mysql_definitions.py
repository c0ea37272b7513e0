"""Tables of a real server that differ from the upstream's definition: what harms rows is refused, all else is told.

Each statement that a refusal gives is executed, and mends it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from changefeed.errors import NeedsHuman, OtherDefinition
from changefeed.objectstore.patience import Patience
from changefeed.schema import table_info as ti
from changefeed.schema.ddl.actions import Action
from changefeed.schema.history import Touched
from changefeed.schema.sql.definition import Definition
from changefeed.schema.sql.dialect import Dialect
from changefeed.schema.sql.tables import create_table
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import TableInfo, parse_table_info
from changefeed.sink.contract import Claim, Ddl
from changefeed.sink.mysql.definitions.check import check, compare
from changefeed.sink.mysql.definitions.difference import Difference
from changefeed.sink.mysql.driver import MysqlDriver
from changefeed.sink.mysql.server import Session
from changefeed.upstream.tikv.tidb.job import parse_job
from changefeed_devcluster.tidb.schema import NewColumn
from integration_inprocess import World, new_world
from integration_mariadb import MariaDb, running

MARIADB = Dialect("MariaDB", (10, 11, 0))
NOT_NULL, KEY, UNSIGNED = ti.FLAG_NOT_NULL, ti.FLAG_PRI_KEY | ti.FLAG_NOT_NULL, ti.FLAG_UNSIGNED


def column(
    id_: int, name: str, tp: int, flag: int = 0, flen: int = -1, decimal: int = -1, **more: Any
) -> dict[str, Any]:
    is_text = tp in ti.STRINGS | {SqlType.TEXT, SqlType.ENUM, SqlType.SET} and not more.get("binary")
    collate = more.get("collate", "utf8mb4_bin") if is_text else "binary"
    charset = collate.partition("_")[0]
    kind = {"Tp": tp, "Flag": flag, "Flen": flen, "Decimal": decimal, "Charset": charset, "Collate": collate,
            "Elems": more.get("elems")}  # fmt: skip
    return {
        "id": id_, "name": {"O": name, "L": name.lower()}, "offset": id_, "type": kind, "state": 5, "version": 2,
        "default": more.get("default"), "generated_expr_string": more.get("expression", ""),
        "generated_stored": more.get("stored", False),
    }  # fmt: skip


def index(
    id_: int, name: str, /, *columns: str, unique: bool = False, primary: bool = False, **lengths: int
) -> dict[str, Any]:
    parts = [{"name": {"O": each}, "length": lengths.get(each, -1)} for each in columns]
    return {
        "id": id_,
        "idx_name": {"O": name},
        "idx_cols": parts,
        "is_unique": unique,
        "is_primary": primary,
        "state": 5,
    }


def table(
    name: str, columns: list[dict[str, Any]], indexes: list[dict[str, Any]], database: str = "shop", **more: Any
) -> TableInfo:
    raw = {"id": 1, "name": {"O": name}, "cols": columns, "index_info": indexes, "state": 5, "charset": "utf8mb4",
           "collate": "utf8mb4_bin", "pk_is_handle": True}  # fmt: skip
    return parse_table_info(raw | more, database)


ITEMS = table(
    "items",
    [
        column(1, "id", SqlType.INT, KEY, 11),
        column(2, "code", SqlType.VARCHAR, NOT_NULL, 20),
        column(3, "name", SqlType.VARCHAR, 0, 20, collate="utf8mb4_general_ci"),
        column(4, "amount", SqlType.DECIMAL, 0, 10, 2),
        column(5, "at", SqlType.DATETIME, 0, 26, 6),
        column(6, "stamp", SqlType.TIMESTAMP, NOT_NULL, 19, 0, default="2024-01-01 00:00:00"),
        column(7, "kind", SqlType.ENUM, 0, elems=["a", "b's", "c,d"]),
        column(8, "note", SqlType.TEXT, 0, 65535),
        column(9, "hash", SqlType.CHAR, 0, 8, binary=True),
        column(10, "word", SqlType.CHAR, 0, 8),
        column(11, "bits", SqlType.BIT, 0, 5),
        column(12, "ratio", SqlType.DOUBLE, 0, 22),
        column(13, "doc", SqlType.JSON),
        column(14, "big", SqlType.BIGINT, UNSIGNED, 20),
        column(15, "third", SqlType.INT, 0, 11, expression="`id` % 3 + 1", stored=True),
        column(16, "shout", SqlType.VARCHAR, 0, 30, expression="concat(`code`, _utf8mb4'!')"),
        column(17, "small", SqlType.FLOAT, 0, 12),
        column(18, "day", SqlType.DATE, default="2024-01-01"),
        column(19, "bin", SqlType.VARCHAR, 0, 8, binary=True),
    ],
    [
        index(1, "code", "code", unique=True),
        index(2, "name", "name", "amount", unique=True, name=5),
        index(3, "by_at", "at"),
    ],
    pk_is_handle=True,
)


def parted(name: str, type_: int, by: str, *partitions: dict[str, Any]) -> TableInfo:
    definitions = [{"id": 11 + n, "name": {"O": f"p{n}"}, **each} for n, each in enumerate(partitions)]
    partition = {"enable": True, "type": type_, "expr": by, "definitions": definitions}
    return table(name, [column(1, "id", SqlType.INT, KEY, 11)], [], partition=partition)


PARTED = parted("parted", 1, "`id`", {"less_than": ["10"]}, {"less_than": ["MAXVALUE"]})
RANGES = parted("ranges", 1, "`id`", {"less_than": ["10"]}, {"less_than": ["20"]})
LISTS = parted("lists", 3, "`id`", {"in_values": [["1"], ["2"]]}, {"in_values": [["3"]]})
OTHERS = parted("others", 3, "`id`", {"in_values": [["1"], ["2"]]}, {"in_values": [["DEFAULT"]]})
HASHES = parted("hashes", 2, "`id` % 7", {}, {}, {})


def words(collate: str) -> TableInfo:
    """A table whose key is a text."""
    columns = [column(1, "word", SqlType.VARCHAR, KEY, 20, collate=collate), column(2, "n", SqlType.INT, 0, 11)]
    key = index(1, "PRIMARY", "word", unique=True, primary=True)
    return table("words", columns, [key], pk_is_handle=False, is_common_handle=True)


WORDS = words("utf8mb4_0900_bin")

#: What is done to the table, and how the one difference that this makes begins.
HARMLESS = [
    ("ADD COLUMN more INT", "the column more is not in the upstream"),
    ("ADD COLUMN more INT NOT NULL DEFAULT 1", "the column more is not in the upstream"),
    ("ADD COLUMN more INT AS (id + 1) STORED", "the column more is not in the upstream"),
    ("MODIFY id BIGINT NOT NULL", "the column id is bigint(20), which is wider"),
    ("MODIFY code VARCHAR(30) COLLATE utf8mb4_bin NOT NULL", "the column code is varchar(30), which is wider"),
    ("MODIFY code VARCHAR(20) COLLATE utf8mb4_bin", "the column code is NULL"),
    ("MODIFY amount DECIMAL(14,4)", "the column amount is decimal(14,4), which is wider"),
    ("MODIFY kind ENUM('a','b''s','c,d','e') COLLATE utf8mb4_bin",
     "the column kind is enum('a','b''s','c,d','e'), which is wider"),
    ("MODIFY note LONGTEXT COLLATE utf8mb4_bin", "the column note is longtext, which is wider"),
    ("MODIFY note TEXT COLLATE utf8mb4_general_ci", "the column note has the collation utf8mb4_general_ci"),
    ("MODIFY name VARCHAR(20) COLLATE utf8mb4_bin", None),
    ("MODIFY word VARCHAR(8) COLLATE utf8mb4_bin", "the column word is varchar(8), which is wider"),
    ("MODIFY bits BIT(9)", "the column bits is bit(9), which is wider"),
    ("MODIFY small DOUBLE", "the column small is double, which is wider"),
    ("MODIFY day DATE", "the column day has no default"),
    ("MODIFY day DATE DEFAULT '2024-02-02'", None),
    ("MODIFY stamp TIMESTAMP(3) NOT NULL DEFAULT '2024-01-01'", "the column stamp is timestamp(3), which is wider"),
    ("DROP COLUMN shout", "the column shout is not there"),
    ("DROP KEY by_at", "the index by_at is not there"),
    ("RENAME KEY by_at TO other", None),
    ("ADD KEY more (big)", None),
    ("DROP KEY code", "the index code is not there"),
    ("ADD UNIQUE KEY more (code, big)", None),
    ("COMMENT = 'ours'", None),
    ("ADD CHECK (id < 9), ADD FOREIGN KEY (id) REFERENCES items (id)", None),
]  # fmt: skip
#: The same, of differences that harm rows.
HARMFUL = [
    ("DROP COLUMN big", "the column big is not there"),
    ("ADD COLUMN more INT NOT NULL", "the column more is not in the upstream, is NOT NULL and has no default"),
    ("MODIFY id SMALLINT NOT NULL", "the column id is smallint(6), which does not hold all of INT"),
    ("MODIFY id BIGINT UNSIGNED NOT NULL", "the column id is bigint(20) unsigned, which does not hold all of INT"),
    ("MODIFY big BIGINT", "the column big is bigint(20), which does not hold all of BIGINT UNSIGNED"),
    ("MODIFY code VARCHAR(10) COLLATE utf8mb4_bin NOT NULL", "the column code is varchar(10)"),
    ("MODIFY code CHAR(20) COLLATE utf8mb4_bin NOT NULL", "the column code is char(20)"),
    ("MODIFY code VARBINARY(80) NOT NULL", "the column code is varbinary(80)"),
    ("MODIFY code VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_bin NOT NULL",
     "the column code is varchar(20) of character set latin1"),
    ("MODIFY amount DECIMAL(10,1)", "the column amount is decimal(10,1), which does not hold all of DECIMAL(10, 2)"),
    ("MODIFY amount DECIMAL(11,4)", "the column amount is decimal(11,4)"),
    ("MODIFY amount DOUBLE", "the column amount is double"),
    ("MODIFY at DATETIME(3)", "the column at is datetime(3), which does not hold all of DATETIME(6)"),
    ("MODIFY at TIMESTAMP(6) NULL", "the column at is timestamp(6)"),
    ("MODIFY kind ENUM('b''s','a','c,d') COLLATE utf8mb4_bin", "the column kind is enum('b''s','a','c,d')"),
    ("MODIFY kind ENUM('a') COLLATE utf8mb4_bin", "the column kind is enum('a')"),
    ("MODIFY note TINYTEXT COLLATE utf8mb4_bin", "the column note is tinytext"),
    ("MODIFY hash BINARY(9)", "the column hash is binary(9)"),
    ("MODIFY bin BINARY(8)", "the column bin is binary(8)"),
    ("MODIFY bits BIT(4)", "the column bits is bit(4)"),
    ("MODIFY ratio FLOAT", "the column ratio is float"),
    ("MODIFY small FLOAT(5,1)", "the column small is float(5,1)"),
    ("MODIFY amount DECIMAL(10,2) NOT NULL", "the column amount is NOT NULL"),
    ("MODIFY amount DECIMAL(10,2) AS (id * 2) STORED", "the column amount is computed there"),
    ("MODIFY third INT", "the column third is not computed there"),
    ("MODIFY third INT AS (id % 3) STORED", "the column third is computed as `id` MOD 3, and upstream as `id` % 3 + 1"),
    ("DROP PRIMARY KEY", "no unique key has the columns by which rows are found, id"),
    ("ADD UNIQUE KEY more (at)", "the unique key more (at) is not in the upstream"),
    ("DROP KEY name, ADD UNIQUE KEY name (name(4), amount)",
     "the unique key name (name, amount) is not in the upstream"),
    ("MODIFY code VARCHAR(20) COLLATE utf8mb4_general_ci NOT NULL",
     "the key column code has the collation utf8mb4_general_ci, to which 'a' and 'A'"),
    ("MODIFY name VARCHAR(20) COLLATE utf8mb4_unicode_ci",
     "the key column name has the collation utf8mb4_unicode_ci, to which 'ss' and 'ß'"),
]  # fmt: skip


@pytest.fixture
def database(mariadb: MariaDb) -> MariaDb:
    """With the tables as our own statements make them."""
    made = [create_table(Definition.of(each), MARIADB) for each in (ITEMS, PARTED, RANGES, LISTS, OTHERS, HASHES)]
    dropped = [f"DROP DATABASE IF EXISTS {name}" for name in ("shop", "changefeed")]
    mariadb.query(*dropped, "CREATE DATABASE shop", *made)
    return mariadb


@pytest.fixture
def session(mariadb: MariaDb) -> Iterator[Session]:
    opened = Session(mariadb.server())
    yield opened
    opened.close()


NUMBERS = count(1)
Hold = Callable[[TableInfo], None]


@pytest.fixture
def hold(database: MariaDb) -> Iterator[Hold]:
    """Executes a DDL that changes nothing of a table, as a changefeed does, which then holds the table against it."""
    claim = Claim(f"cf{next(NUMBERS)}", 0, 1, "n", 1)
    sink = MysqlDriver(database.server(), "changefeed", claim, Patience(30))
    yield lambda of: sink.execute(ddl(of))
    sink.close()


def ddl(table: TableInfo, *, is_told: bool = True, tables: Sequence[TableInfo] = ()) -> Ddl:
    """`tables`: those of the changefeed; by default, `table`."""
    number = next(NUMBERS)
    raw = {"id": number, "type": int(Action.MODIFY_TABLE_COMMENT), "state": 6, "table_id": 1, "query": "SIGNAL"}
    touched, by_id = Touched((table,), (table,)), {each.id: each for each in tables or [table]}
    return Ddl(number, number, change=parse_job(raw), tables=by_id, touched=touched, is_told=is_told)


def mends(refused: OtherDefinition) -> list[str]:
    """The statements that its message gives."""
    given = re.search(r"Mend it, then start again: (.*?)\.(?: Before you start.*)?$", refused.next_step)
    return given[1].split("; ") if given else []


def found(session: Session, of: TableInfo) -> list[Difference]:
    ((_, differences),) = compare(session, [of])
    return differences


def alter(database: MariaDb, clauses: str, name: str = "items") -> None:
    database.query(f"ALTER TABLE shop.{name} {clauses}")


def test_a_table_that_is_made_of_the_definition_is_the_same(database: MariaDb, session: Session) -> None:
    for each in (ITEMS, PARTED, RANGES, LISTS, OTHERS, HASHES):
        assert found(session, each) == []


@pytest.mark.parametrize(("clauses", "said"), HARMLESS, ids=[clauses for clauses, _ in HARMLESS])
def test_a_difference_that_harms_no_row_is_only_told(
    database: MariaDb, session: Session, hold: Hold, clauses: str, said: str | None
) -> None:
    alter(database, clauses)
    differences = found(session, ITEMS)
    assert [each.what for each in differences if not each.is_harmless] == []
    assert [each.what for each in differences] == ([] if said is None else [said])
    hold(ITEMS)


@pytest.mark.parametrize(("clauses", "said"), HARMFUL, ids=[clauses for clauses, _ in HARMFUL])
def test_a_difference_that_harms_rows_is_refused_with_what_mends_it(
    database: MariaDb, hold: Hold, clauses: str, said: str
) -> None:
    alter(database, clauses)
    with pytest.raises(OtherDefinition) as refused:
        hold(ITEMS)
    assert f"shop.items differs from the upstream: {said}" in refused.value.message
    (mend,) = mends(refused.value)
    database.query(mend)
    hold(ITEMS)


@pytest.mark.parametrize(
    ("of", "clauses", "said"),
    [
        (PARTED, "REMOVE PARTITIONING", None),
        (PARTED, "REORGANIZE PARTITION p0, p1 INTO (PARTITION p0 VALUES LESS THAN (9), PARTITION p1 VALUES LESS THAN "
         "MAXVALUE)", "its partition p0 has 9 and not 10"),
        (PARTED, "REORGANIZE PARTITION p1 INTO (PARTITION p2 VALUES LESS THAN MAXVALUE)",
         "its partitions are p0, p2 and not p0, p1"),
        (PARTED, "PARTITION BY HASH (id) PARTITIONS 2", "its partitions are by HASH and not by RANGE"),
        (RANGES, "PARTITION BY RANGE (id + 1) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))",
         "its partitions are by `id` + 1 and not by `id`"),
        (RANGES, "DROP PARTITION p0", "its partitions are p1 and not p0, p1"),
        (HASHES, "COALESCE PARTITION 1", "its partitions are p0, p1 and not p0, p1, p2"),
        (LISTS, "REORGANIZE PARTITION p1 INTO (PARTITION p1 VALUES IN (3, 4))", "its partition p1 has 3,4 and not 3"),
        # Rows without a partition are refused.
        (RANGES, "DROP PARTITION p1", "? its partitions are p0 and not p0, p1"),
        (LISTS, "DROP PARTITION p0", "? its partitions are p1 and not p0, p1"),
        (OTHERS, "DROP PARTITION p1", "? its partitions are p0 and not p0, p1"),
        (OTHERS, "DROP PARTITION p0", "its partitions are p1 and not p0, p1"),
        # What was dropped upstream alone keeps rows.
        (RANGES, "REORGANIZE PARTITION p0 INTO (PARTITION old VALUES LESS THAN (5), PARTITION p0 VALUES LESS THAN "
         "(10))", "? its partitions are old, p0, p1 and not p0, p1"),
        (OTHERS, "ADD PARTITION (PARTITION p2 VALUES IN (3))", "? its partitions are p0, p1, p2 and not p0, p1"),
        # No row can be there.
        (RANGES, "ADD PARTITION (PARTITION p2 VALUES LESS THAN MAXVALUE)",
         "= its partitions are p0, p1, p2 and not p0, p1"),
        (LISTS, "ADD PARTITION (PARTITION p2 VALUES IN (4))", "= its partitions are p0, p1, p2 and not p0, p1"),
    ],
)  # fmt: skip
def test_a_partition_holds_the_rows_that_the_upstream_s_does(
    database: MariaDb, session: Session, of: TableInfo, clauses: str, said: str | None
) -> None:
    """`=`: harmless; `?`: unless event filters leave DDLs out."""
    alter(database, clauses, of.name)
    marks = {(True, True): "= ", (False, True): "? ", (False, False): ""}
    harms = found(session, of)
    told = [marks[each.is_harmless, each.may_be_left_out] + each.what for each in harms]
    assert told == ([] if said is None else [said])
    for each in harms:
        database.query(each.mend)
    assert found(session, of) == []


def test_what_a_collation_is_is_found_by_what_it_does(database: MariaDb, session: Session) -> None:
    """This server's utf8mb4_bin ignores spaces at the end, as the upstream's utf8mb4_0900_bin does not."""
    database.query("CREATE TABLE shop.words (word VARCHAR(20) COLLATE utf8mb4_bin PRIMARY KEY, n INT)")
    (harm,) = found(session, WORDS)
    assert harm.what.startswith("the key column word has the collation utf8mb4_bin, to which 'a' and 'a ' are the same")
    database.query(harm.mend)
    assert found(session, WORDS) == []
    database.query("INSERT INTO shop.words VALUES ('a', 1), ('a ', 2)")


@pytest.mark.parametrize("mariadb", ["mariadb-11.4"], indirect=True)
@pytest.mark.parametrize(
    ("collate", "pair"), [("utf8mb4_0900_ai_ci", ("Ⱟ", "ⱟ")), ("utf8mb4_0900_bin", ("a", "a "))], ids=["ai_ci", "bin"]
)
def test_a_collation_of_the_upstream_s_name_may_be_another_one(
    mariadb: MariaDb, session: Session, collate: str, pair: tuple[str, str]
) -> None:
    """To this server's utf8mb4_0900_ai_ci letters of Unicode 14 have cases, and its utf8mb4_0900_bin ignores spaces."""
    mariadb.query(
        "DROP DATABASE IF EXISTS shop",
        "CREATE DATABASE shop",
        f"CREATE TABLE shop.words (word VARCHAR(20) COLLATE {collate} PRIMARY KEY, n INT)",
    )
    (harm,) = found(session, words(collate))
    assert f"to which {pair[0]!r} and {pair[1]!r} are the same" in harm.what
    mariadb.query(harm.mend)
    assert found(session, words(collate)) == []
    mariadb.query(f"INSERT INTO shop.words VALUES ('{pair[0]}', 1), ('{pair[1]}', 2)")


@pytest.mark.parametrize(
    ("upstream", "downstream", "is_refused"),
    [
        ("utf8mb4_unicode_ci", "utf8mb4_unicode_ci", False),
        ("utf8mb4_unicode_ci", "utf8mb4_unicode_nopad_ci", False),
        ("utf8mb4_unicode_ci", "utf8mb4_bin", False),
        ("utf8mb4_0900_ai_ci", "utf8mb4_nopad_bin", False),
        # Nothing that is tried out tells them apart, but ä is ae to German telephone books, and y is i in Lithuania.
        ("utf8mb4_unicode_ci", "utf8mb4_german2_ci", True),
        ("utf8mb4_unicode_ci", "utf8mb4_lithuanian_ci", True),
        ("utf8mb4_unicode_ci", "utf8mb4_unicode_520_ci", True),
        ("utf8mb4_0900_ai_ci", "utf8mb4_unicode_520_nopad_ci", True),
        # What the upstream's means is not known.
        ("utf8mb4_german2_ci", "utf8mb4_german2_ci", True),
        ("utf8mb4_german2_ci", "utf8mb4_nopad_bin", False),
    ],
)  # fmt: skip
def test_the_collation_of_a_key_is_the_upstream_s_or_compares_bytes(
    database: MariaDb, session: Session, upstream: str, downstream: str, is_refused: bool
) -> None:
    database.query(f"CREATE TABLE shop.words (word VARCHAR(20) COLLATE {downstream} PRIMARY KEY, n INT)")
    harms = found(session, words(upstream))
    assert [each.what.partition(",")[0] for each in harms] == (
        [f"the key column word has the collation {downstream}"] if is_refused else []
    )
    for each in harms:
        database.query(each.mend)
    assert found(session, words(upstream)) == []


def test_members_of_an_enum_are_read_as_the_server_shows_them(database: MariaDb, session: Session) -> None:
    kinds = ["a'b", "c\\d", "e\nf", "g,h", "i(j"]
    one = table("kinds", [column(1, "id", SqlType.INT, KEY, 11), column(2, "kind", SqlType.ENUM, 0, elems=kinds)], [])
    database.query(create_table(Definition.of(one), MARIADB))
    assert found(session, one) == []


def test_a_table_that_is_not_there_is_named_with_the_statement_that_makes_it(
    database: MariaDb, session: Session
) -> None:
    with pytest.raises(OtherDefinition, match=r"shop\.words differs from the upstream: it is not there") as refused:
        check(session, "here", [WORDS])
    assert "CREATE TABLE `shop`.`words`" in refused.value.next_step
    assert "copy older rows' values" in refused.value.next_step


def test_a_server_may_keep_names_in_lower_case(tmp_path: Path) -> None:
    one, other = (
        table(name, [column(1, "Id", SqlType.INT, KEY, 11)], [], database="Shop") for name in ("One", "Other")
    )
    with running(tmp_path, "--lower-case-table-names=1") as server:
        server.query("CREATE DATABASE Shop", *(create_table(Definition.of(each), MARIADB) for each in (one, other)))
        session = Session(server.server())
        for tables in ([one], [one, other]):
            assert [differences for _, differences in compare(session, tables)] == [[] for _ in tables]
        session.close()


def test_tables_made_by_hand_may_have_what_the_upstream_lacks(database: MariaDb, session: Session) -> None:
    one = table("own", [column(1, "id", SqlType.BIGINT, KEY, 20)], [])
    for made in (
        "id BIGINT PRIMARY KEY)",
        "id BIGINT NOT NULL UNIQUE, own INT AUTO_INCREMENT PRIMARY KEY)",
        "id BIGINT PRIMARY KEY) PARTITION BY KEY (id) PARTITIONS 2",
        "id BIGINT PRIMARY KEY) WITH SYSTEM VERSIONING",
    ):
        database.query("DROP TABLE IF EXISTS shop.own", f"CREATE TABLE shop.own ({made}")
        check(session, "here", [one])


def test_a_thousand_tables_take_one_query_of_a_kind(
    database: MariaDb, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [table(f"t{n}", [column(1, "id", SqlType.INT, KEY, 11)], []) for n in range(30)]
    database.query(*(f"CREATE TABLE shop.t{n} (id INT PRIMARY KEY)" for n in range(30)))
    asked: list[bytes] = []
    rows = Session.rows
    monkeypatch.setattr(Session, "rows", lambda self, query: asked.append(query) or rows(self, query))
    check(session, "here", many)
    assert len(asked) == 3


#: What a DDL that an event filter leaves out may make of a table; let through if each row that does not fit is refused.
LEFT_OUT = [
    ("DROP COLUMN big", True),  # ADD COLUMN was left out
    ("ADD COLUMN more INT NOT NULL", True),  # DROP COLUMN
    ("MODIFY amount DECIMAL(10,2) NOT NULL", True),  # MODIFY COLUMN
    ("RENAME TO shop.former", True),
    ("MODIFY code VARCHAR(10) COLLATE utf8mb4_bin NOT NULL", False),  # spaces at the end are cut off
    ("MODIFY amount DECIMAL(10,1)", False),
    ("MODIFY third INT AS (id % 3) STORED", False),
    ("ADD UNIQUE KEY more (at)", False),
    ("MODIFY code VARCHAR(20) COLLATE utf8mb4_general_ci NOT NULL", False),
]


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize(("clauses", "is_let_through"), LEFT_OUT, ids=[clauses for clauses, _ in LEFT_OUT])
def test_what_an_event_filter_leaves_out_may_refuse_rows_but_lose_none(
    database: MariaDb, clauses: str, is_let_through: bool, is_told: bool
) -> None:
    """Also behind a DDL that is left out itself."""
    alter(database, clauses)
    for leaves_out in (False, True):
        claim = Claim(f"cf{next(NUMBERS)}", 0, 1, "n", 1)
        sink = MysqlDriver(database.server(), "changefeed", claim, Patience(30), leaves_out=leaves_out)
        if leaves_out and is_let_through:
            if is_told and "RENAME" not in clauses:
                sink.execute(ddl(ITEMS))
            else:
                sink.execute(ddl(ITEMS, is_told=False))
        else:
            with pytest.raises(OtherDefinition) as refused:
                sink.execute(ddl(ITEMS, is_told=is_told))
            assert ("Event filters leave DDLs out" in refused.value.message) == leaves_out
        sink.close()


def test_only_tables_of_the_changefeed_are_held_against_a_ddl(database: MariaDb) -> None:
    sink = MysqlDriver(database.server(), "changefeed", Claim(f"cf{next(NUMBERS)}", 0, 1, "n", 1), Patience(30))
    alter(database, "DROP COLUMN big")
    sink.execute(ddl(ITEMS, tables=[PARTED]))
    sink.close()


def test_without_tables_of_its_own_a_changefeed_holds_tables_against_each_ddl(database: MariaDb) -> None:
    sink = MysqlDriver(database.server(), None, Claim(f"cf{next(NUMBERS)}", 0, 1, "n", 1), Patience(30))
    sink.execute(ddl(ITEMS))
    alter(database, "DROP COLUMN big")
    with pytest.raises(OtherDefinition, match="the column big is not there"):
        sink.execute(ddl(ITEMS))
    sink.close()


def to_database(world: World, database: MariaDb, **spec: Any) -> dict[str, Any]:
    """A changefeed that ends now."""
    return {
        "sink": {"mysql": {"uri": f"mysql://127.0.0.1:{database.port}"}},
        "targetTs": str(world.tidb.now()),
        **spec,
    }


async def test_a_changefeed_starts_only_on_tables_that_hold_its_rows(database: MariaDb, tmp_path: Path) -> None:
    with new_world(tmp_path) as world:
        world.insert(range(3))
        spec = to_database(world, database)
        with pytest.raises(
            OtherDefinition, match=r"shop\.orders differs .* it is not there.* CREATE TABLE `shop`.`orders`"
        ):
            await world.run(**spec).outcome()
        database.query("CREATE TABLE shop.orders (id SMALLINT PRIMARY KEY, name VARCHAR(64))")
        with pytest.raises(OtherDefinition, match=r"id is smallint.*MODIFY COLUMN `id` BIGINT NOT NULL"):
            await world.run(**spec).outcome()
        assert database.query("SELECT id FROM shop.orders") == []
        database.query("ALTER TABLE shop.orders MODIFY id BIGINT NOT NULL, ADD COLUMN own INT")
        await world.run(**spec).outcome()
        assert database.query("SELECT id FROM shop.orders ORDER BY id") == [(b"0",), (b"1",), (b"2",)]


async def test_a_table_is_not_held_against_a_definition_that_a_ddl_has_changed_since(
    database: MariaDb, tmp_path: Path
) -> None:
    """A driver died between a DDL and its record in the log."""
    with new_world(tmp_path) as world:
        world.insert(range(2))
        database.query("CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, name VARCHAR(64))")
        await world.run(**to_database(world, database)).outcome()
        database.query("ALTER TABLE shop.orders DROP COLUMN name")
        with pytest.raises(OtherDefinition, match="the column name is not there"):
            await world.run(**to_database(world, database)).outcome()
        begun = "INSERT INTO changefeed.ddls SELECT changefeed, {ts}, 1, '', 1, NULL FROM changefeed.progress LIMIT 1"
        database.query(begun.format(ts=world.start_ts))
        with pytest.raises(OtherDefinition, match="the column name is not there"):  # that DDL is in the log
            await world.run(**to_database(world, database)).outcome()
        database.query(begun.format(ts=world.tidb.now()))
        await world.run(**to_database(world, database)).outcome()


async def test_after_a_ddl_that_an_event_filter_leaves_out_a_changefeed_starts_again(
    database: MariaDb, tmp_path: Path
) -> None:
    """It stops at the first row that the table does not hold, as TiCDC's does."""
    rules = {"rules": ["shop.*"], "eventFilters": [{"matcher": ["shop.*"], "ignoreEvent": ["add column"]}]}
    with new_world(tmp_path) as world:
        world.insert(range(2))
        database.query("CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, name VARCHAR(64))")
        world.orders = world.tidb.add_column(world.orders, NewColumn("note", "varchar(64)", nullable=True))
        spec: dict[str, Any] = {**to_database(world, database), "filter": rules}
        del spec["targetTs"]
        ddl_ts = world.tidb.now()
        run = world.run(**spec)
        await run.until(lambda: run.view.progress and run.view.progress[-1].checkpoint_ts > ddl_ts, "the DDL is behind")
        await run.drained()
        await world.run(**spec).drained()
        world.insert(range(2, 3))
        spec["targetTs"] = str(world.tidb.now())
        with pytest.raises(NeedsHuman, match="Unknown column 'note'"):
            await world.run(**spec).outcome()
        database.query("ALTER TABLE shop.orders ADD COLUMN note VARCHAR(64)")
        await world.run(**spec).outcome()
        assert database.query("SELECT id, note FROM shop.orders ORDER BY id") == [
            (b"0", None),
            (b"1", None),
            (b"2", None),
        ]
