"""What a slot keeps is told, and that it is lost: to whom reads it, and to whom holds it while nobody reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from changefeed.errors import SnapshotLostByGC
from changefeed.owner.closing.undriven import hold
from changefeed.upstream.contract import KeptLog
from changefeed.upstream.postgresql.server import PostgresqlSession
from changefeed.upstream.postgresql.slot import slots
from changefeed.upstream.postgresql.slot.lease import SlotLease
from conftest import wait_for
from integration_postgresql import PROGRAMS, Postgresql, reached, running
from integration_postgresql_bank import PUBLICATION, TABLES
from integration_postgresql_world import PASSWORD, USER, World

DAY_S = 86_400
_SEGMENT = ("CREATE TABLE filler ()", "DROP TABLE filler", "SELECT pg_switch_wal()")  # 16 MiB of WAL


def drop(server: Postgresql) -> None:
    ((slot,),) = server.query("SELECT slot_name FROM pg_replication_slots")
    with closing(PostgresqlSession(reached(server))) as session:
        slots.drop(session, slot)


def remove_wal(server: Postgresql) -> None:
    server.query("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    server.query(*3 * _SEGMENT, "CHECKPOINT")
    wait_for(lambda: server.query("SELECT wal_status FROM pg_replication_slots") == [["lost"]], "it is lost")


@pytest.mark.parametrize(
    ("lose", "said"), [(drop, "there is no slot"), (remove_wal, "its WAL is removed")], ids=["dropped", "removed"]
)
async def test_a_slot_that_is_lost_ends_the_changefeed_and_is_told_while_it_is_paused(
    lose: Callable[[Postgresql], None], said: str, tmp_path: Path
) -> None:
    with running(USER, PASSWORD, of="newest") as server:
        server.query(*TABLES, PUBLICATION)
        world = World(server, tmp_path)
        run = world.run()
        await run.until(lambda: run.driver is not None and run.view.progress, "the driver runs")
        await world.to_now(run)
        await asyncio.to_thread(lose, server)
        with pytest.raises(SnapshotLostByGC, match=said):
            await run.outcome()
        with pytest.raises(SnapshotLostByGC, match=said):
            await hold(world.changefeed(), world.secrets)


@pytest.fixture(params=PROGRAMS)
def server(request: pytest.FixtureRequest) -> Iterator[Postgresql]:
    options = ("-c", "max_slot_wal_keep_size=80MB")
    with running(USER, PASSWORD, options=options, of=request.param) as made:
        yield made


async def test_what_a_slot_keeps_is_told_and_when_it_is_much(server: Postgresql) -> None:
    lease = SlotLease(reached(server), "s", "changefeed-default-test-1", DAY_S)

    def kept() -> KeptLog:
        assert lease.held is not None
        assert lease.held.kept is not None
        return lease.held.kept

    ts = await lease.begin()
    first = kept()
    assert first.state == "reserved"
    assert first.most_bytes is not None
    assert 80 << 20 <= first.most_bytes <= 112 << 20, "whole segments count"
    assert first.warning == ""
    await asyncio.to_thread(server.query, *4 * _SEGMENT)
    await lease.hold(ts)
    assert kept().bytes >= first.bytes + (48 << 20)
    assert "Slot s keeps more than half of the WAL" in kept().warning
    assert kept().gone_ms is not None
    if server.query("SHOW server_version_num") < [["180000"]]:
        return
    server.query("ALTER SYSTEM SET idle_replication_slot_timeout = '1h'", "SELECT pg_reload_conf()")
    wait_for(lambda: server.query("SHOW idle_replication_slot_timeout") == [["1h"]], "the setting is there")
    await lease.hold(ts)
    assert lease.held is not None
    gone_ms = kept().gone_ms
    assert gone_ms is not None
    assert gone_ms <= lease.held.until_ms - (DAY_S - 3600) * 1000, "an hour after it was read last"
