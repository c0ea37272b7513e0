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
import sys
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
from cluster_product import LATE_S, Demo, Example
from cluster_programs import program
from integration_postgresql import NEWEST, Programs, of_maven

PORT, OTHER_PORT = 5432, 5433
_NAME = "postgresql"
_ADMIN, DATABASE = "keeper", "shop"
_CA = "shop-ca"
_RUN_AS, _GROUP = "nobody", "nogroup"  # it refuses to be run by root
_PASSWORD = "p@ss/word"
_TRUSTS_US = "local all all trust"
_FILES = {"ssl_ca_file": "ca.crt", "ssl_cert_file": "server.pem", "ssl_key_file": "server.pem", "hba_file": "hba"}
_SQL, _SHELL = (re.compile(rf"^```{of}\n(.*?)^```$", re.MULTILINE | re.DOTALL) for of in ("sql", "sh"))
_LETS_IN = re.compile(r"^hostssl .*$", re.MULTILINE)


@dataclass
class Shop:
    """A database with orders. `folder`: has the server's data and its files."""

    node: Node
    folder: Path
    programs: Programs
    port: int = PORT

    @property
    def certificates(self) -> Path:
        """The folder of changefeed_devcluster's kind with the server's, and its clients'."""
        return self.folder / "certificates"

    def start(self, port: int = PORT) -> None:
        """Return when it takes connections."""
        self.port = port
        where = ("-h", NODE_ADDRESS, "-p", str(port), "-k", str(self.folder))
        secured = [word for option, file in _FILES.items() for word in ("-c", f"{option}={self.folder}/{file}")]
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

    def lose_history(self) -> None:
        """The slot falls behind what the server keeps, and its WAL is removed."""
        for statement in (
            "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'",
            "SELECT pg_reload_conf()",
            *3 * ("CREATE TABLE filler ()", "DROP TABLE filler", "SELECT pg_switch_wal()"),
            "CHECKPOINT",
        ):
            self.sql(statement)
        lost = "SELECT wal_status FROM pg_replication_slots"
        self.node.cluster.processes.wait_until(lambda: self.sql(lost) == [["lost"]], "the slot is lost")

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


def example(shop: Shop) -> Example:
    """examples/postgresql.yaml, of a server that wants a certificate; the Secrets as docs/postgresql.md has them."""
    client, reader = shop.certificates / "client", shop.folder / "reader"
    reader.mkdir()
    for key, value in (("username", "reader"), ("password", _PASSWORD)):
        (reader / key).write_text(value)
    upstream = {"postgresql": {"host": NODE_ADDRESS}}
    return Example("postgresql.yaml", "shop-orders", upstream, {"shop-reader": reader, _CA: client})


def follow_documentation(demo: Demo, folder: Path) -> str:
    """What docs/postgresql.md says to do for a changefeed on Kubernetes, in a new folder; what is said of it."""
    demo.kubectl("delete", "secret", "--all")
    prepare, _, on_kubernetes, verify = _SHELL.findall(_from_zero())
    folder.mkdir()
    (folder / "orders.yaml").write_text(demo.kubectl("kustomize", demo.kustomization))
    for key in ("ca.crt", "tls.crt", "tls.key"):
        shutil.copy(demo.secrets / _CA / key, folder)
    lake = demo.secrets / "lake-writer"
    shutil.copy(demo.secrets / _CA / "ca.crt", folder / "store-ca.crt")  # of no use to a store without TLS
    cluster = demo.node.cluster
    config = folder / "kubeconfig"
    cluster.authority.kubeconfig(config, cluster.inside, "newcomer", "newcomer", ["system:masters"])
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{program('kubectl').parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "KUBECONFIG": str(config),
        "PASSWORD": _PASSWORD,
        "KEY_ID": (lake / "access-key-id").read_text(),
        "KEY": (lake / "secret-access-key").read_text(),
    }
    script = f"{prepare}{on_kubernetes.replace('--timeout=5m', f'--timeout={LATE_S}s')}{verify}"
    command = [*demo.node.network.enter, "bash", "-euxo", "pipefail", "-c", script]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, timeout=2 * LATE_S, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


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
    Certificates(shop.certificates, [NODE_ADDRESS])
    for file in ("ca.crt", "server.pem"):
        shutil.copy(shop.certificates / file, folder / file)
        (folder / file).chmod(0o600)
    (line,) = _LETS_IN.findall(_from_zero())
    (folder / "hba").write_text(f"{_TRUSTS_US}\n{line} clientcert=verify-ca\n")
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
