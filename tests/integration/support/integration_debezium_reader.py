"""Debezium's engine as another reader of a PostgreSQL: `debezium/DebeziumReader.java` in a process of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from integration_java import compiled, jars, java_tool, leaves_in
from integration_postgresql import Postgresql

VERSION = "3.6.1.Final"
#: What the server is asked for ahead of all changes that are to be read, but the publication.
SLOT, PUBLICATION = "debezium", "debezium"
NEW_SLOT = f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')"
_SOURCE = Path(__file__).parent / "debezium" / "DebeziumReader.java"
_JAVA = ("-Duser.timezone=UTC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
_PROPERTIES = {
    "name": "debezium",
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "topic.prefix": "debezium",
    "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
    "plugin.name": "pgoutput",
    "slot.name": SLOT,
    "publication.name": PUBLICATION,
    "publication.autocreate.mode": "disabled",
    "snapshot.mode": "no_data",
    "tombstones.on.delete": "false",
    "converter.schemas.enable": "false",
}


@dataclass(frozen=True)
class DebeziumReader:
    class_path: str

    def start(
        self, database: Postgresql, folder: Path, last: str, java: Sequence[str] = ("-Xmx256m",), **properties: str
    ) -> subprocess.Popen[bytes]:
        """Changes come to `folder`'s `changes`, what it says to its `log`; it ends when table `last` has changed.

        `properties`: of the engine, with _ for each dot; of those in _PROPERTIES, what is to be otherwise.
        """
        folder.mkdir(exist_ok=True)
        of_server = {
            "database.hostname": "127.0.0.1",
            "database.port": str(database.port),
            "database.user": database.user,
            "database.password": database.password,
            "database.dbname": "postgres",
            "offset.storage.file.filename": str(folder / "offsets"),
        }
        more = {name.replace("_", "."): value for name, value in properties.items()}
        lines = [f"{name}={value}" for name, value in (_PROPERTIES | of_server | more).items()]
        (folder / "properties").write_text("\n".join(lines))
        command = [java_tool("java"), *java, *_JAVA, leaves_in(folder), "-cp", self.class_path, "DebeziumReader"]
        with (folder / "log").open("wb") as log:
            command += [str(folder / "properties"), str(folder / "changes"), last]
            return subprocess.Popen(command, stdout=log, stderr=log)


def debezium_reader(folder: Path) -> DebeziumReader:
    """Compiled into `folder`."""
    artifacts = [f"io.debezium:{name}:{VERSION}" for name in ("debezium-embedded", "debezium-connector-postgres")]
    libraries = jars(f"debezium-postgresql-{VERSION}", *artifacts, "org.slf4j:slf4j-simple:1.7.36")
    return DebeziumReader(compiled(_SOURCE, folder, libraries))
