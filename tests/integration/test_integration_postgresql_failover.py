"""A standby is promoted, and the changefeed is pointed to it: it goes on if the standby has all that was read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from changefeed.errors import NeedsHuman
from changefeed.owner.closing.undriven import hold
from changefeed.upstream.postgresql.slot.replication import Replication
from conftest import wait_for
from integration_postgresql import PROGRAMS, Postgresql, reached, running, standby_of
from integration_postgresql_bank import PUBLICATION, TABLES, Bank, changes, differences, replayed, tables
from integration_postgresql_world import PASSWORD, USER, World

STANDBY = "standby_1"
_PATIENCE_S = 60.0
_GUARD = (
    f"ALTER SYSTEM SET synchronized_standby_slots = '{STANDBY}'",
    "SELECT pg_reload_conf()",
)
_SYNCHRONIZED = "SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_type = 'logical'"


@pytest.fixture
def primary() -> Iterator[Postgresql]:
    with running(USER, PASSWORD, of="newest") as server:
        server.query(*TABLES, PUBLICATION)
        yield server


@pytest.fixture
def standby(primary: Postgresql) -> Iterator[Postgresql]:
    with standby_of(primary, STANDBY) as server:
        yield server


async def copied(world: World, standby: Postgresql) -> None:
    """Until the standby has a copy of the slot that it would keep."""

    def is_there() -> bool:
        world.database.query("SELECT pg_log_standby_snapshot()")
        return standby.query(_SYNCHRONIZED) == [[True]]

    async with asyncio.timeout(_PATIENCE_S):
        while not await asyncio.to_thread(is_there):  # until what the slot needs is not older than the standby
            await hold(world.changefeed(), world.secrets)


async def test_a_promoted_standby_is_read_on_from_without_a_missing_or_double_row(
    primary: Postgresql, standby: Postgresql, tmp_path: Path
) -> None:
    world = World(primary, tmp_path)
    primary.query(*_GUARD)
    run = world.run()
    await run.until(lambda: run.driver is not None and run.view.progress, "the driver runs")
    bank = Bank(primary)
    await asyncio.to_thread(bank.open)
    await world.to_now(run)
    await copied(world, standby)
    await asyncio.to_thread(bank.transfer, 60)
    await world.to_now(run)
    primary.kill()
    await run.killed()
    standby.query("SELECT pg_promote()")
    world.database = standby
    bank.turn_to(standby)
    await asyncio.to_thread(bank.transfer, 60)
    again = world.run()
    await world.to_now(again)
    await again.killed()  # before anything is confirmed of what the promoted one has written
    await asyncio.to_thread(bank.transfer, 20)
    assert (await world.to_the_end()).state == "finished"
    assert differences(replayed(changes(world.lake)), tables(standby)) == []


@pytest.mark.parametrize("of", PROGRAMS)
def test_a_server_of_each_release_tells_where_it_has_taken_over(of: str) -> None:
    with running(USER, PASSWORD, of=of) as server:
        slot = "SELECT pg_create_logical_replication_slot('s', 'pgoutput')"
        server.query(PUBLICATION, slot, "ALTER SYSTEM SET restore_command = 'false'")
        ((before,),) = server.query("SELECT (pg_current_wal_lsn() - '0/0')::bigint")
        server.stop()
        (server.folder / "data" / "recovery.signal").touch()
        server.start()
        wait_for(lambda: server.query("SELECT pg_is_in_recovery()") == [[False]], "it has taken over")
        ((after,),) = server.query("SELECT (pg_current_wal_lsn() - '0/0')::bigint")
        with closing(Replication(reached(server), "s", ["changefeed"])) as replication:
            (switch,) = replication.switches
        assert (replication.timeline, switch.timeline) == (2, 2)
        assert before <= switch.lsn <= after


async def test_a_standby_that_lacks_what_was_read_is_refused(
    primary: Postgresql, standby: Postgresql, tmp_path: Path
) -> None:
    world = World(primary, tmp_path)
    run = world.run()
    await run.until(lambda: run.driver is not None and run.view.progress, "the driver runs")
    bank = Bank(primary)
    await asyncio.to_thread(bank.open)
    await world.to_now(run)
    await copied(world, standby)
    standby.stop()
    await asyncio.to_thread(bank.transfer, 20)
    await world.to_now(run)
    primary.kill()
    await run.killed()
    standby.start()
    standby.query("SELECT pg_promote()")
    world.database = standby
    bank.turn_to(standby)
    written = len(changes(world.lake))
    for _ in range(2):  # it is not forgotten
        await asyncio.to_thread(bank.transfer, 20)
        with pytest.raises(NeedsHuman, match="Another server has taken over"):
            await world.run().outcome()
    assert len(changes(world.lake)) == written


async def test_what_the_standby_lacks_is_not_read_if_the_primary_waits_for_it(
    primary: Postgresql, standby: Postgresql, tmp_path: Path
) -> None:
    """The changes that are lost with the primary are in no file."""
    world = World(primary, tmp_path)
    primary.query(*_GUARD)
    run = world.run()
    await run.until(lambda: run.driver is not None and run.view.progress, "the driver runs")
    bank = Bank(primary)
    await asyncio.to_thread(bank.open)
    await world.to_now(run)
    await copied(world, standby)
    standby.stop()
    await asyncio.to_thread(bank.transfer, 20)
    waits = "Logical replication is waiting on the standby"
    await asyncio.to_thread(wait_for, lambda: waits in primary.log(), "the server keeps it back")
    primary.kill()
    await run.killed()
    standby.start()
    standby.query("SELECT pg_promote()")
    world.database = standby
    bank.turn_to(standby)
    await asyncio.to_thread(bank.transfer, 20)
    assert (await world.to_the_end()).state == "finished"
    assert differences(replayed(changes(world.lake)), tables(standby)) == []
