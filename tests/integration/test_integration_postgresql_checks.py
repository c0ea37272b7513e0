"""What is looked at before a slot is read: each thing that is wrong is found on a real server, and its SQL mends it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest
from changefeed.errors import NeedsHuman, SnapshotLostByGC
from changefeed.upstream.postgresql.checks import Facts, Finding, Needs, findings, read, refuse
from changefeed.upstream.postgresql.server import PostgresqlServer, PostgresqlSession
from integration_postgresql import PROGRAMS, Postgresql, running

USER, PASSWORD = "keeper", "p@ss/word"
NEEDS = Needs(lambda schema, _: schema == "s")
ALL = "CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root = true)"
SMALL = "CREATE TABLE s.t (id int PRIMARY KEY, v int)"
LARGE = "CREATE TABLE s.t (id int PRIMARY KEY, v text)"


@pytest.fixture(scope="module", params=PROGRAMS)
def server(request: pytest.FixtureRequest) -> Iterator[Postgresql]:
    with running(USER, PASSWORD, options=("-c", "max_replication_slots=2"), of=request.param) as server:
        yield server


@pytest.fixture
def database(server: Postgresql) -> Iterator[Postgresql]:
    server.query("DROP DATABASE IF EXISTS d", "CREATE DATABASE d")
    server.query("CREATE SCHEMA s", database="d")
    yield server
    for (name,) in server.query("SELECT slot_name FROM pg_replication_slots"):
        server.query(f"SELECT pg_drop_replication_slot('{name}')", database="d")


def facts(database: Postgresql, user: str = USER, slot: str = "mine") -> Facts:
    with closing(PostgresqlSession(PostgresqlServer("127.0.0.1", database.port, "d", user, PASSWORD))) as session:
        return read(session, slot, "p")


def mend(database: Postgresql, found: Sequence[Finding]) -> None:
    for finding in found:
        for statement in finding.sql.replace("(...)", "(id)").split(";"):
            if statement.strip():
                database.query(statement, database="d")


def test_nothing_is_wrong_with_a_plain_database(database: Postgresql) -> None:
    database.query(SMALL, ALL, database="d")
    assert findings(facts(database), NEEDS) == []


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ([SMALL], ["There is no publication p."]),
        ([SMALL, "CREATE PUBLICATION p"], ["Table s.t is not in publication p."]),
        ([SMALL, f"{ALL[:-1]}, publish = 'insert, delete')"], ["Publication p leaves out each update and truncate."]),
        (
            [
                "CREATE TABLE s.t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
                "CREATE TABLE s.t1 PARTITION OF s.t FOR VALUES FROM (0) TO (9)",
                "CREATE PUBLICATION p FOR ALL TABLES",
            ],
            ["Publication p sends rows of s.t as its partitions'."],
        ),
        (["CREATE TABLE s.t (id int)", ALL], ["Table s.t has no primary key by which its rows could be told apart."]),
        (
            [f"CREATE UNLOGGED {SMALL[7:]}", ALL],
            ["Table s.t is unlogged: its changes are not in the WAL."],
        ),
        (
            [SMALL, "ALTER TABLE s.t REPLICA IDENTITY NOTHING", ALL],
            ["The replica identity of table s.t does not do: the server refuses updates and deletes."],
        ),
        (
            [LARGE, ALL],
            [
                "The replica identity of table s.t does not do: an update leaves out large values of v that it does "
                "not change."
            ],
        ),
        (
            [
                'CREATE TABLE s."T ""1" (id int PRIMARY KEY, "V" text) PARTITION BY RANGE (id)',
                'CREATE TABLE public.t1 PARTITION OF s."T ""1" FOR VALUES FROM (0) TO (9)',
                'CREATE TABLE public."T2" PARTITION OF s."T ""1" FOR VALUES FROM (9) TO (19)',
                ALL,
                "ALTER TABLE public.t1 REPLICA IDENTITY FULL",
            ],
            [
                'The replica identity of table s.T "1 does not do: an update leaves out large values of V that it does '
                "not change."
            ],
        ),
    ],
    ids=["none", "table", "operations", "partitions", "key", "unlogged", "nothing", "large", "leaves"],
)
def test_what_is_wrong_is_said_and_mended_by_its_sql(database: Postgresql, made: list[str], said: list[str]) -> None:
    """Promise: each finding has one sentence, and the SQL that it names is run by the server and ends it."""
    database.query(*made, database="d")
    found = findings(facts(database), NEEDS)
    assert [finding.message for finding in found] == said
    with pytest.raises(NeedsHuman) as refused:
        refuse("postgresql://here/d", found)
    assert all(finding.sql in str(refused.value) for finding in found)
    mend(database, found)
    assert findings(facts(database), NEEDS) == []


def test_old_rows_are_whole_by_a_full_identity_alone(database: Postgresql) -> None:
    needs = Needs(NEEDS.selects, old_rows=True)
    database.query(SMALL, ALL, database="d")
    found = findings(facts(database), needs)
    assert [finding.sql for finding in found] == ['ALTER TABLE "s"."t" REPLICA IDENTITY FULL;']
    mend(database, found)
    assert findings(facts(database), needs) == []


def test_a_unique_index_can_stand_for_the_primary_key(database: Postgresql) -> None:
    database.query(
        "CREATE TABLE s.t (id int NOT NULL)",
        "CREATE UNIQUE INDEX i ON s.t (id)",
        "ALTER TABLE s.t REPLICA IDENTITY USING INDEX i",
        ALL,
        database="d",
    )
    assert findings(facts(database), NEEDS) == []
    database.query("DROP INDEX s.i", database="d")
    assert [finding.message for finding in findings(facts(database), NEEDS)] == [
        "Table s.t has no primary key by which its rows could be told apart."
    ]


def test_a_user_without_rights_is_told_of_each(database: Postgresql) -> None:
    database.query("DROP ROLE IF EXISTS reader", f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'")
    database.query(SMALL, ALL, database="d")
    found = findings(facts(database, "reader"), NEEDS)
    assert [finding.message for finding in found] == [
        "The user reader may not read a slot.",
        "The user reader may not read table s.t.",
    ]
    mend(database, found)
    assert findings(facts(database, "reader"), NEEDS) == []
    database.query("DROP OWNED BY reader", database="d")


def test_slots_of_others_and_slots_that_are_taken(database: Postgresql) -> None:
    database.query(SMALL, ALL, database="d")
    database.query("SELECT pg_create_logical_replication_slot('other', 'pgoutput')")
    assert [finding.message for finding in findings(facts(database, slot="other"), NEEDS)] == [
        "Slot other is of pgoutput in database postgres, not of pgoutput in d: give the changefeed another slot."
    ]
    database.query("SELECT pg_create_logical_replication_slot('mine', 'pgoutput')", database="d")
    assert findings(facts(database), NEEDS) == []
    assert [finding.message for finding in findings(facts(database, slot="another"), NEEDS)] == [
        "All of its 2 replication slots are taken."
    ]
    database.query("SELECT pg_drop_replication_slot('other')")


def test_a_slot_whose_wal_is_gone_has_lost_history(database: Postgresql) -> None:
    """Unhappy path: the server gives up a slot for which it would have to keep too much."""
    database.query(SMALL, ALL, "SELECT pg_create_logical_replication_slot('mine', 'pgoutput')", database="d")
    database.query("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    for _ in range(3):
        database.query("CREATE TABLE s.filler ()", "DROP TABLE s.filler", "SELECT pg_switch_wal()", database="d")
    database.query("CHECKPOINT")
    found = findings(facts(database), NEEDS)
    lost = [finding for finding in found if finding.stops]
    assert [finding.message for finding in lost] in (
        ["Slot mine has lost its history (wal_removed)."],
        ["Slot mine has lost its history (its WAL is removed)."],
    )
    with pytest.raises(SnapshotLostByGC, match="Slot mine"):
        refuse("postgresql://here/d", found)
    (warning,) = [finding for finding in found if not finding.stops]
    assert warning.message.startswith("A changefeed that is 1MB of WAL behind")
    mend(database, found)
    assert findings(facts(database), NEEDS) == []
    database.query("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")


def test_standbys_are_to_have_what_is_read(database: Postgresql) -> None:
    """From PostgreSQL 17 on: earlier ones have no copies of slots."""
    database.query(SMALL, ALL, "SELECT pg_create_logical_replication_slot('mine', 'pgoutput')", database="d")
    database.query("SELECT pg_create_physical_replication_slot('standby')")
    found = findings(facts(database), NEEDS)
    assert not any(finding.stops for finding in found)
    if facts(database).server["version"] < 17:
        assert found == []
        return
    assert [finding.message.split(" ")[0] for finding in found] == ["Standbys", "What"]
    mend(database, found)
    assert [finding.message.split(" ")[0] for finding in findings(facts(database), NEEDS)] == ["Standbys"]
    database.query("ALTER SYSTEM RESET synchronized_standby_slots", "SELECT pg_reload_conf()")


def test_rows_that_the_publication_leaves_out_are_a_warning(database: Postgresql) -> None:
    if facts(database).server["version"] < 15:
        return  # it has no such filters
    database.query(SMALL, "CREATE PUBLICATION p FOR TABLE s.t WHERE (id > 7)", database="d")
    database.query("ALTER TABLE s.t REPLICA IDENTITY FULL", database="d")
    (finding,) = findings(facts(database), NEEDS)
    assert finding.message == "Of table s.t the publication sends only rows with (id > 7). Others are missing."
    assert not finding.stops


def test_generated_columns_are_named_where_they_are_not_sent(database: Postgresql) -> None:
    """A warning: PostgreSQL 18 can send them, earlier ones can't."""
    database.query(
        "CREATE TABLE s.t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (2 * id) STORED)", ALL, database="d"
    )
    (finding,) = findings(facts(database), NEEDS)
    assert finding.message == "Generated columns of table s.t are not sent: twice."
    refuse("postgresql://here/d", [finding])
    if facts(database).server["version"] >= 18:
        mend(database, [finding])
        assert findings(facts(database), NEEDS) == []
    else:
        assert not finding.sql


def test_a_slot_may_not_be_let_go_for_being_idle(database: Postgresql) -> None:
    if facts(database).server["version"] < 18:
        assert facts(database).server["idle_timeout"] == "0"
        return
    database.query(SMALL, ALL, database="d")
    database.query("ALTER SYSTEM SET idle_replication_slot_timeout = '1d'", "SELECT pg_reload_conf()")
    found = findings(facts(database), NEEDS)
    assert [(finding.message, finding.stops) for finding in found] == [
        ("A changefeed that is paused for 1d loses its slot, and must begin anew.", False)
    ]
    mend(database, found)
    assert findings(facts(database), NEEDS) == []
