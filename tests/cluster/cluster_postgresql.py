"""A PostgreSQL 18 in the node's network, as a platform team has one: it speaks TLS alone, and asks clients for a
certificate, too. Tests talk to it by its socket, pods and commands of ours by its address.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pg8000.native
from changefeed_devcluster.certificates import Certificates
from cluster_changefeed_operator import ROOT
from cluster_network import NODE_ADDRESS
from cluster_node import Node
from cluster_product import Example
from integration_postgresql import NEWEST, Programs, of_maven

PORT, OTHER_PORT = 5432, 5433
_NAME = "postgresql"
_ADMIN, DATABASE = "keeper", "shop"
_RUN_AS, _GROUP = "nobody", "nogroup"  # it refuses to be run by root
_PASSWORD = "p@ss/word"
_LETS_IN = "local all all trust\nhostssl all all all scram-sha-256 clientcert=verify-ca\n"
_FILES = {"ssl_ca_file": "ca.crt", "ssl_cert_file": "server.pem", "ssl_key_file": "server.pem", "hba_file": "hba"}
_SQL = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Shop:
    """A database with orders. `folder`: has the server's data and its files."""

    node: Node
    folder: Path
    programs: Programs
    port: int = PORT

    def start(self, port: int = PORT) -> None:
        """Return when it takes connections."""
        self.port = port
        where = ("-h", NODE_ADDRESS, "-p", str(port), "-k", str(self.folder))
        files = {
            "ssl_ca_file": "ca.crt",
            "ssl_cert_file": "server.pem",
            "ssl_key_file": "server.pem",
            "hba_file": "hba",
        }
        secured = [word for option, file in files.items() for word in ("-c", f"{option}={self.folder}/{file}")]
        as_other = ("setpriv", "--pdeathsig", "KILL", f"--reuid={_RUN_AS}", f"--regid={_GROUP}", "--clear-groups")
        server = (self.programs["postgres"], "-D", f"{self.folder}/data", *where, "-F", "-c", "ssl=on", *secured)
        processes = self.node.cluster.processes
        processes.start(_NAME, [*as_other, *server])
        processes.wait_until(self._is_up, "PostgreSQL takes connections")

    def stop(self) -> None:
        """At once: what was committed is there when it starts again."""
        processes = self.node.cluster.processes
        os.kill(processes.running[_NAME].pid, signal.SIGQUIT)
        processes.stop(_NAME)

    def restart(self, port: int = PORT) -> None:
        self.stop()
        self.start(port)

    def sql(self, text: str, database: str = DATABASE) -> Any:
        """As an administrator of the database; the rows of the last statement."""
        with self._connect(database) as connection:
            return connection.run(text)

    def slots(self) -> list[list[Any]]:
        """Each slot's name, and whether somebody reads it."""
        found: list[list[Any]] = self.sql("SELECT slot_name, active FROM pg_replication_slots")
        return found

    def trade(self, count: int = 100) -> None:
        """Orders come, are changed, and go: the last `count` and ten of them."""
        self.sql(
            f"INSERT INTO orders (customer, total) SELECT 'customer ' || n, n FROM generate_series(1, {count}) n;"
            f"UPDATE orders SET total = total + 0.25 WHERE id > (SELECT max(id) FROM orders) - {count} AND id % 3 = 0;"
            "DELETE FROM orders WHERE id IN (SELECT id FROM orders ORDER BY random() LIMIT 10);"
            "INSERT INTO payments (paid) SELECT id FROM orders ORDER BY random() LIMIT 5"
        )

    def _connect(self, database: str) -> Any:
        mine = socket.socket(socket.AF_UNIX)
        try:
            mine.connect(f"{self.folder}/.s.PGSQL.{self.port}")
            return pg8000.native.Connection(_ADMIN, database=database, sock=mine, ssl_context=False)
        except BaseException:
            mine.close()
            raise

    def _is_up(self) -> bool:
        try:
            self.sql("SELECT", "postgres")
        except (pg8000.native.InterfaceError, pg8000.native.DatabaseError, OSError):
            return False
        return True


def example(node: Node, folder: Path) -> Example:
    """examples/postgresql.yaml, of a server that wants a certificate; the Secrets as docs/postgresql.md has them."""
    client = folder / "certificates" / "client"
    reader = folder / "reader"
    reader.mkdir()
    for key, value in (("username", "reader"), ("password", _PASSWORD)):
        (reader / key).write_text(value)
    upstream = {"postgresql": {"host": NODE_ADDRESS}}
    return Example("postgresql.yaml", "shop-orders", upstream, {"shop-reader": reader, "shop-ca": client})


@contextmanager
def running(node: Node) -> Iterator[Shop]:
    """Made ready by the very SQL of docs/postgresql.md."""
    with tempfile.TemporaryDirectory() as name:  # not pytest's: who runs it may not enter that
        folder = Path(name)
        shop = Shop(node, folder, of_maven(NEWEST, folder))
        _make(shop)
        shop.start()
        try:
            _prepare(shop)
            yield shop
        finally:
            shop.stop()


def _make(shop: Shop) -> None:
    folder = shop.folder
    Certificates(folder / "certificates", [NODE_ADDRESS])
    for file in ("ca.crt", "server.pem"):
        shutil.copy(folder / "certificates" / file, folder / file)
        (folder / file).chmod(0o600)
    (folder / "hba").write_text(_LETS_IN)
    for path in (folder, *folder.iterdir()):
        shutil.chown(path, _RUN_AS)
    made = [shop.programs["initdb"], f"--pgdata={folder}/data", f"--username={_ADMIN}", "--auth=trust", "--no-sync"]
    made += ["--encoding=UTF8", "--locale=C"]
    subprocess.run(made, capture_output=True, check=True, cwd=folder, user=_RUN_AS)


def _prepare(shop: Shop) -> None:
    """Without a row changed: what is there is for the initial copy."""
    server, account, tables = _SQL.findall(_from_zero())
    shop.sql(f"CREATE DATABASE {DATABASE}", "postgres")
    shop.sql(server)
    shop.restart()
    shop.sql("CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text, total numeric)")
    shop.sql("CREATE TABLE payments (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), paid bigint)")
    shop.sql(account.replace("'...'", f"'{_PASSWORD}'"))
    shop.sql(tables)
    shop.sql(tables.replace("orders", "payments"))
    shop.trade(500)


def _from_zero() -> str:
    text = (ROOT / "docs" / "postgresql.md").read_text()
    return text.partition("## From zero")[2].partition("\n## ")[0]
