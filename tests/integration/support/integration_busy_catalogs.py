"""Catalogs of Iceberg tables that are held up by others, and whose clients lose their connections at COMMIT."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pg8000.dbapi
import pymysql
import pytest
from changefeed.objectstore import Location
from changefeed.sink.iceberg import endpoint as iceberg_endpoint
from changefeed.sink.iceberg.endpoint import IcebergEndpoint
from integration_catalogs import PASSWORD, USER, mariadb, postgresql, write_account
from integration_mariadb import Proxy
from requests.exceptions import ConnectionError as Cut
from sqlalchemy import make_url

_TABLES = "SELECT * FROM iceberg_tables"


class _Connection(Protocol):
    def cursor(self) -> Any: ...
    def close(self) -> None: ...


@dataclass
class Busy:
    """`hold`: keeps every commit out until what it returns is called; None: nobody can. `cut`: the next commit loses
    its connection, by turns before the catalog has it and before its answer; None: there is no connection.
    """

    endpoint: IcebergEndpoint
    hold: Callable[[], Callable[[], None]] | None
    cut: Callable[[], None] | None


def _held(connection: _Connection, query: str) -> Callable[[], None]:
    cursor = connection.cursor()
    cursor.execute(query)
    cursor.fetchone()

    def let_go() -> None:
        cursor.close()
        connection.close()

    return let_go


class _Cuts:
    """Cuts of a proxy: only a commit that is waited for."""

    def __init__(self) -> None:
        self._is_next = False

    def next(self) -> None:
        self._is_next = True

    def __call__(self, _: int = 0) -> bool:
        is_next, self._is_next = self._is_next, False
        return is_next


@contextmanager
def sqlite(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Busy]:
    """No connection waits for a lock."""
    monkeypatch.setitem(iceberg_endpoint.PATIENCE, "sqlite", ("timeout",))
    monkeypatch.setattr(iceberg_endpoint, "ANSWER_S", 0)

    def hold() -> Callable[[], None]:
        reader = sqlite3.connect(folder / "catalog.db", check_same_thread=False)
        return _held(reader, f"{_TABLES} UNION ALL {_TABLES}")

    yield Busy(IcebergEndpoint(Location((folder / "lake").as_uri()), f"sqlite:///{folder}/catalog.db"), hold, None)


def _of_postgresql() -> Callable[[bytes], bool]:
    """A statement is parsed first, and bound and executed by a message of its own."""
    parsed = [False]

    def is_commit(said: bytes) -> bool:
        parsed[0] |= b"commit\0" in said
        return parsed[0] and said.startswith(b"B")

    return is_commit


@contextmanager
def database(kind: str, folder: Path, _: pytest.MonkeyPatch) -> Iterator[Busy]:
    """Run a catalog in MariaDB or PostgreSQL; a lock is waited for a second at the most."""
    write_account(folder / "account")
    cuts = _Cuts()
    with (mariadb if kind == "mariadb" else postgresql)(folder) as address:
        port = make_url(address).port or 0
        proxy = Proxy(port, cuts) if kind == "mariadb" else Proxy(port, cuts, _of_postgresql)
        connect = _mysql if kind == "mariadb" else _postgresql
        limit = (
            "SET GLOBAL innodb_lock_wait_timeout = 1"
            if kind == "mariadb"
            else f"ALTER ROLE {USER} SET lock_timeout = '100ms'"
        )
        with closing(connect(port, is_admin=True)) as connection:
            connection.cursor().execute(limit)
            connection.commit()
        uri = address.replace(str(port), str(proxy.port))
        endpoint = IcebergEndpoint(Location((folder / "lake").as_uri()), uri, "", folder / "account")
        with closing(proxy):
            yield Busy(endpoint, lambda: _held(connect(port), f"{_TABLES} FOR UPDATE"), cuts.next)


def _mysql(port: int, *, is_admin: bool = False) -> Any:
    user, password = ("root", "") if is_admin else (USER, PASSWORD)
    return pymysql.connect(host="127.0.0.1", port=port, user=user, password=password, database="lake")


def _postgresql(port: int, *, is_admin: bool = False) -> Any:
    return pg8000.dbapi.connect(USER, host="127.0.0.1", port=port, password=PASSWORD, database="postgres")


@contextmanager
def rest(address: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Busy]:
    """The client loses its connection: nothing stands between it and the catalog."""
    cuts, lost = _Cuts(), [0]
    send = iceberg_endpoint._Adapter.send

    def cut(self: Any, request: Any, **options: Any) -> Any:
        if not (request.method == "POST" and "/tables/" in request.url and cuts()):
            return send(self, request, **options)
        lost[0] += 1
        if lost[0] % 2:
            send(self, request, **options)
        raise Cut("cut")

    monkeypatch.setattr(iceberg_endpoint._Adapter, "send", cut)
    yield Busy(IcebergEndpoint(Location((folder / "warehouse").as_uri()), address), None, cuts.next)
