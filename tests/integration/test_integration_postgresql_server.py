"""The servers of the tests of PostgreSQL: each starts, dies and comes back with what was committed."""

from __future__ import annotations

import pg8000.native
import pytest
from integration_postgresql import PROGRAMS, running


@pytest.mark.parametrize("which", PROGRAMS)
def test_a_killed_server_comes_back_with_its_rows_and_its_slots(which: str) -> None:
    """Unhappy path: SIGKILL with a transaction open; no process of it is left that would keep its data locked."""
    with running("keeper", "p@ss/word", of=which) as server:
        server.query(
            "CREATE TABLE t (id int PRIMARY KEY)",
            "SELECT pg_create_logical_replication_slot('held', 'pgoutput')",
            "INSERT INTO t VALUES (1)",
        )
        client = server.connect()
        client.run("BEGIN")
        client.run("INSERT INTO t VALUES (2)")
        server.kill()
        with pytest.raises(pg8000.native.InterfaceError):
            client.run("COMMIT")
        with pytest.raises(pg8000.native.InterfaceError):
            client.close()
        server.start()
        assert server.query("SELECT id FROM t") == [[1]]
        assert server.query("SELECT slot_name, plugin FROM pg_replication_slots") == [["held", "pgoutput"]]
        assert "automatic recovery in progress" in server.log()
