"""A PostgreSQL database as an upstream: how it is known again, its clock, and what is checked before it is read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from changefeed.cli.main import main
from changefeed.errors import NeedsHuman, Refused
from changefeed.model.tso import compose
from changefeed.upstream.postgresql.access import PostgresqlAccess
from changefeed.upstream.postgresql.database import PostgresqlDatabase
from changefeed_devcluster.certificates import Certificates
from conftest import wait_for
from integration_postgresql import Postgresql, running

USER, PASSWORD = "keeper", "p@ss/word"
PUBLICATION = "CREATE PUBLICATION changefeed FOR ALL TABLES WITH (publish_via_partition_root = true)"


@pytest.fixture(scope="module")
def server() -> Iterator[Postgresql]:
    with running(USER, PASSWORD, of="newest") as made:
        made.query("CREATE TABLE orders (id int PRIMARY KEY, note text)", "CREATE DATABASE other")
        yield made


@pytest.fixture
def access(server: Postgresql, tmp_path: Path) -> PostgresqlAccess:
    folder = tmp_path / "secrets" / "reader"
    folder.mkdir(parents=True)
    for key, value in (("username", USER), ("password", PASSWORD)):
        (folder / key).write_text(value)
    return PostgresqlAccess("127.0.0.1", server.port, "postgres", "s", "changefeed", folder)


@pytest.fixture
async def database(access: PostgresqlAccess) -> AsyncIterator[PostgresqlDatabase]:
    made = await access.connect()
    yield made
    await made.close()


async def test_it_is_known_by_server_and_database(
    server: Postgresql, access: PostgresqlAccess, database: PostgresqlDatabase
) -> None:
    again = await access.of_cluster(database.cluster_id).connect()
    assert again.cluster_id == database.cluster_id != 0
    other = PostgresqlAccess("127.0.0.1", server.port, "other", "s", "changefeed", access.secret)
    assert (await other.connect()).cluster_id != database.cluster_id
    with pytest.raises(
        NeedsHuman, match=f"has the number [0-9]+, not {database.cluster_id}, which the changefeed reads"
    ):
        await other.of_cluster(database.cluster_id).connect()


async def test_a_ts_is_above_the_one_before_and_at_the_servers_clock(database: PostgresqlDatabase) -> None:
    before_ms = await database.now_ms()
    first, second = await database.now(), await database.now()
    after_ms = await database.now_ms()
    assert compose(before_ms) <= first < second <= compose(after_ms + 1000)


async def test_a_table_is_never_divided(database: PostgresqlDatabase) -> None:
    assert await database.bounds(7, 64) == ()


async def test_who_has_no_password_is_told_so_without_it(access: PostgresqlAccess) -> None:
    (access.secret / "password").write_text("hunter2")
    with pytest.raises(Refused, match="Check the username, password and database"):
        await access.connect()


async def test_a_restart_of_the_server_is_outlived(server: Postgresql, database: PostgresqlDatabase) -> None:
    assert await database.now_ms()
    server.kill()
    server.start()
    assert await database.now_ms()


async def test_tables_are_looked_at_as_the_changefeed_needs_them(
    server: Postgresql, database: PostgresqlDatabase
) -> None:
    server.query("CREATE TABLE keyless (id int)", "CREATE TABLE plain (id int PRIMARY KEY, v int)", PUBLICATION)
    try:
        with pytest.raises(NeedsHuman, match=r"Table public\.keyless has no primary key"):
            await database.check(lambda schema, name: (schema, name) == ("public", "keyless"))

        def plain(schema: str, name: str) -> bool:
            return (schema, name) == ("public", "plain")

        with pytest.raises(NeedsHuman, match="old rows are needed whole") as caught:
            await database.check(plain)
        assert 'ALTER TABLE "public"."plain" REPLICA IDENTITY FULL;' in caught.value.next_step
        server.query("ALTER TABLE plain REPLICA IDENTITY FULL")
        assert await database.check(plain) == []
    finally:
        server.query("DROP PUBLICATION changefeed", "DROP TABLE keyless", "DROP TABLE plain")


def test_validate_asks_the_server_if_it_is_given_the_secrets(
    server: Postgresql, access: PostgresqlAccess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, secrets = tmp_path / "orders.yaml", access.secret.parent
    reader = {"secretRef": {"name": "reader"}}
    upstream: dict[str, Any] = {
        "postgresql": {"host": "127.0.0.1", "port": server.port, "database": "postgres", "credentials": reader}
    }
    spec = {"upstream": upstream, "filter": {"rules": ["public.orders"]}, "sink": {"blackhole": {}}}
    head = {"apiVersion": "changefeed.dev/v1alpha1", "kind": "Changefeed", "metadata": {"name": "orders"}}
    file.write_text(json.dumps({**head, "spec": spec}))
    assert main(["validate", "-f", str(file)]) == 0
    assert main(["validate", "-f", str(file), "--secrets-dir", str(secrets)]) == 1
    assert "There is no publication changefeed." in capsys.readouterr().err
    server.query(PUBLICATION, "ALTER TABLE orders REPLICA IDENTITY FULL")
    server.query("ALTER SYSTEM SET max_slot_wal_keep_size = '1GB'", "SELECT pg_reload_conf()")
    wait_for(lambda: server.query("SHOW max_slot_wal_keep_size") == [["1GB"]], "the setting is there")
    try:
        assert main(["validate", "-f", str(file), "--secrets-dir", str(secrets)]) == 0
        shown = capsys.readouterr()
        assert "warning: " in shown.err
        assert "1GB of WAL behind loses its slot" in shown.err
        assert "is valid" in shown.out
        assert main(["validate", "-f", str(file), "--secrets-dir", str(secrets), "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["warnings"]) == 1
    finally:
        server.query(
            "DROP PUBLICATION changefeed", "ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()"
        )


async def test_both_sides_show_certificates_by_the_files_of_secrets(access: PostgresqlAccess, tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    Certificates(folder, ["127.0.0.1"])
    with running(USER, PASSWORD, folder) as secured:
        at = replace(access, port=secured.port)
        database = await replace(at, tls=folder / "client").connect()
        assert await database.now_ms()
        await database.close()
        with pytest.raises(Refused):
            await at.connect()
        (tmp_path / "none").mkdir()
        with pytest.raises(Refused, match=r"Secret none has no ca\.crt"):
            await replace(at, tls=tmp_path / "none").connect()
