"""What users of PostgreSQL report of change data capture, where no other test has it (docs/postgresql-reports.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from changefeed.errors import NeedsHuman, Refused, Transient
from changefeed.upstream.postgresql.slot.lease import SlotLease
from integration_postgresql import Postgresql, reached, running
from integration_postgresql_bank import PUBLICATION, TABLES, changes
from integration_postgresql_world import PASSWORD, USER, World

Written = tuple[str, str, dict[str, str]]  # table, operation and columns


@pytest.fixture
def server() -> Iterator[Postgresql]:
    with running(USER, PASSWORD, options=("-c", "max_prepared_transactions=2"), of="newest") as made:
        yield made


async def written(world: World, *statements: str) -> list[Written]:
    """What a changefeed has written by the time that it has written what the statements do."""
    run = world.run()
    await run.until(lambda: run.driver is not None and run.view.progress, "the driver runs")
    await asyncio.to_thread(world.database.query, *statements)
    await world.to_now(run)
    await run.killed()
    return [(change.table, change.op, dict(change.row)) for change in changes(world.lake)]


async def test_rows_of_partitions_are_the_tables_also_when_they_move(server: Postgresql, tmp_path: Path) -> None:
    server.query(
        "CREATE SCHEMA bank",
        "CREATE TABLE bank.parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE bank.low PARTITION OF bank.parts FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE bank.high PARTITION OF bank.parts FOR VALUES FROM (10) TO (20)",
        "ALTER TABLE bank.parts REPLICA IDENTITY FULL",  # which no partition inherits
        "ALTER TABLE bank.low REPLICA IDENTITY FULL",
        "ALTER TABLE bank.high REPLICA IDENTITY FULL",
        PUBLICATION,
    )
    found = await written(
        World(server, tmp_path),
        "INSERT INTO bank.parts VALUES (1, 'one'), (11, 'eleven')",
        "UPDATE bank.parts SET v = 'more' WHERE id = 11",
        "UPDATE bank.parts SET id = 12 WHERE id = 1",
        "CREATE TABLE bank.later PARTITION OF bank.parts FOR VALUES FROM (20) TO (30)",
        "ALTER TABLE bank.later REPLICA IDENTITY FULL",
        "INSERT INTO bank.parts VALUES (21, 'late')",
    )
    assert found == [
        ("parts", "I", {"id": "1", "v": "one"}),
        ("parts", "I", {"id": "11", "v": "eleven"}),
        ("parts", "U", {"id": "11", "v": "more"}),
        ("parts", "D", {"id": "1", "v": "one"}),
        ("parts", "I", {"id": "12", "v": "one"}),
        ("parts", "I", {"id": "21", "v": "late"}),
    ]


async def test_a_prepared_transaction_comes_when_it_is_committed_and_numbers_of_sequences_as_values(
    server: Postgresql, tmp_path: Path
) -> None:
    server.query(
        "CREATE SCHEMA bank",
        "CREATE TABLE bank.orders (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text)",
        "ALTER TABLE bank.orders REPLICA IDENTITY FULL",
        PUBLICATION,
    )
    found = await written(
        World(server, tmp_path),
        "BEGIN",
        "INSERT INTO bank.orders (v) VALUES ('prepared first')",
        "PREPARE TRANSACTION 'kept'",
        "BEGIN",
        "INSERT INTO bank.orders (v) VALUES ('given up')",
        "PREPARE TRANSACTION 'dropped'",
        "SELECT nextval(pg_get_serial_sequence('bank.orders', 'id'))",
        "INSERT INTO bank.orders (v) VALUES ('committed first')",
        "ROLLBACK PREPARED 'dropped'",
        "COMMIT PREPARED 'kept'",
    )
    assert found == [
        ("orders", "I", {"id": "4", "v": "committed first"}),
        ("orders", "I", {"id": "1", "v": "prepared first"}),
    ]


async def test_a_table_that_has_left_the_publication_is_named_at_the_next_start(
    server: Postgresql, tmp_path: Path
) -> None:
    server.query(
        "CREATE SCHEMA bank",
        *(f"CREATE TABLE bank.{table} (id int PRIMARY KEY, v int)" for table in ("left_out", "kept")),
        *(f"ALTER TABLE bank.{table} REPLICA IDENTITY FULL" for table in ("left_out", "kept")),
        "CREATE PUBLICATION changefeed FOR TABLE bank.left_out, bank.kept",
    )
    world = World(server, tmp_path)
    await written(world, "INSERT INTO bank.left_out VALUES (1, 1)")
    found = await written(
        world,
        "ALTER PUBLICATION changefeed DROP TABLE bank.left_out",
        "INSERT INTO bank.left_out VALUES (2, 2)",
        "INSERT INTO bank.kept VALUES (1, 1)",
    )
    assert [(table, row["id"]) for table, _, row in found] == [("left_out", "1"), ("kept", "1")]
    with pytest.raises(NeedsHuman, match=r"Table bank\.left_out is not in publication changefeed"):
        await world.run().outcome()


async def test_a_password_that_changes_ends_a_run_and_the_next_one_has_it(server: Postgresql, tmp_path: Path) -> None:
    server.query(*TABLES, PUBLICATION)
    world = World(server, tmp_path)
    run = world.run()
    await run.until(lambda: run.driver is not None and run.view.progress, "the driver runs")
    server.query("INSERT INTO bank.notes VALUES (1, '')")
    await world.to_now(run)
    server.query(f"ALTER ROLE {USER} PASSWORD 'the next'")
    server.password = "the next"
    server.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND backend_type IN ('client backend', 'walsender')"
    )
    with pytest.raises(Refused, match="password authentication failed"):
        await run.outcome()
    (world.secrets / "reader" / "password").write_text("the next")
    found = await written(world, "INSERT INTO bank.notes VALUES (2, '')")
    assert [row["id"] for _, _, row in found] == ["1", "2"]


async def test_a_slot_that_waits_for_an_old_transaction_says_so(server: Postgresql) -> None:
    """Unhappy path: the server makes a slot only when all that is open has ended."""
    lease = SlotLease(reached(server), "s", "changefeed-default-test-1", 60)
    with closing(server.connect()) as old:
        old.run("BEGIN")
        old.run("CREATE TABLE held ()")
        making = asyncio.ensure_future(lease.begin())
        while not server.query("SELECT slot_name FROM pg_replication_slots"):
            assert not making.done()
            await asyncio.sleep(0)
        with pytest.raises(Transient, match=r"slot s is being made.*transactions that were open"):
            await SlotLease(reached(server), "s", "changefeed-default-test-2", 60).begin()
        old.run("COMMIT")
    await making
    ts = await lease.begin()
    await lease.hold(ts)


async def test_rows_are_told_apart_by_the_primary_key_that_their_table_has_got(
    server: Postgresql, tmp_path: Path
) -> None:
    """The stream describes the table as before: with the replica identity FULL it does not say the key."""
    server.query(
        "CREATE SCHEMA bank",
        "CREATE TABLE bank.t (id int PRIMARY KEY, v int NOT NULL)",
        "ALTER TABLE bank.t REPLICA IDENTITY FULL",
        PUBLICATION,
    )
    world = World(server, tmp_path)
    run = world.run()
    await run.until(lambda: run.driver is not None and run.view.progress, "the driver runs")
    await asyncio.to_thread(server.query, "INSERT INTO bank.t VALUES (1, 1)")
    await world.to_now(run)
    await asyncio.to_thread(
        server.query,
        "ALTER TABLE bank.t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, v)",
        "INSERT INTO bank.t VALUES (1, 2)",
        "BEGIN",
        "UPDATE bank.t SET v = 11 WHERE v = 1",
        "UPDATE bank.t SET v = 12 WHERE v = 2",
        "COMMIT",
    )
    await world.to_now(run)
    await run.killed()
    found = sorted((change.ts, change.op, dict(change.row)["v"]) for change in changes(world.lake))
    assert [(op, v) for _, op, v in found] == [
        *[("I", "1"), ("I", "2")],
        *[("D", "1"), ("D", "2"), ("I", "11"), ("I", "12")],
    ]
