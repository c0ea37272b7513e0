"""`changefeed gc` and the slots of a PostgreSQL: which are left behind, and which it removes."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from changefeed.cli.main import main
from changefeed.owner.closing import holds
from changefeed.spec.parse import parse
from changefeed.upstream import choice
from changefeed.upstream.postgresql.slot.replication import Replication
from conftest import wait_for
from integration_postgresql import reached, running
from integration_postgresql_bank import PUBLICATION, TABLES
from integration_postgresql_world import PASSWORD, USER, World

DONE, FAILED = 0, 1
_OTHERS = "SELECT pg_create_logical_replication_slot('debezium', 'pgoutput')"


class _Gc:
    """The command, for the state URI of a world."""

    def __init__(self, world: World, capsys: pytest.CaptureFixture[str]) -> None:
        self._world, self._capsys = world, capsys

    async def run(self, *arguments: str) -> tuple[int, str]:
        """Its exit code, and what it says."""
        where = ["--state", (self._world.folder / "state").as_uri(), "--secrets-dir", str(self._world.secrets)]
        code = await asyncio.to_thread(main, ["gc", *where, *arguments])
        said = self._capsys.readouterr()
        return code, said.out + said.err

    async def listed(self) -> dict[str, Any]:
        code, said = await self.run("--json")
        assert code == DONE, said
        found: dict[str, Any] = json.loads(said)
        return found


async def _stray(world: World) -> str:
    """A slot of a changefeed whose state is elsewhere."""
    elsewhere = parse(json.dumps(world.resource(state={"uri": (world.folder / "elsewhere").as_uri()})))
    upstream = await choice.access_of(elsewhere, world.secrets).connect()
    try:
        await upstream.history_lease("elsewhere", 0).begin()
    finally:
        await upstream.close()
    return choice.access_of(elsewhere, world.secrets).listed_hold("")


async def test_slots_are_listed_and_those_that_nobody_reads_can_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(holds, "WATCH_S", 0.02)
    monkeypatch.setattr(holds, "LOOK_S", 0.01)
    with running(USER, PASSWORD, of="newest") as server:
        server.query(*TABLES, PUBLICATION, _OTHERS)
        world = World(server, tmp_path)
        gc = _Gc(world, capsys)
        run = world.run()
        await world.to_now(run)
        await run.drained()
        own, stray = choice.access_of(world.changefeed(), world.secrets).listed_hold(""), await _stray(world)
        assert sorted(world.slots()) == sorted(["debezium", own, stray])

        found = await gc.listed()
        ((folder, left_over, kept),) = ((each["folder"], each["left_over"], each["hold"]) for each in found["folders"])
        assert (left_over, kept) == (True, {"ts": "0", "until_ms": None})
        assert ([each["name"] for each in found["holds"]], found["problems"]) == ([stray], {})

        with closing(Replication(reached(server), stray, ["changefeed"])):
            code, said = await gc.run("--release", stray)
        assert (code, f"{stray} is in use" in said) == (FAILED, True), said
        wait_for(lambda: server.query("SELECT active FROM pg_replication_slots WHERE active") == [], "nobody reads it")
        assert (await gc.run("--release", stray))[0] == DONE
        assert sorted(world.slots()) == sorted(["debezium", own])

        assert (await gc.run("--close", folder))[0] == DONE
        assert world.slots() == ["debezium"]
        assert [each["left_over"] for each in (await gc.listed())["folders"]] == [False]
