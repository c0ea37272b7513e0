"""Kafka messages as a sink connector gets them: `connect/ConnectReader.java` runs Connect's converter and Debezium's
transform without a Connect worker.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from integration_java import checked, compiled, jars, java_tool

CONNECT, DEBEZIUM = "4.1.1", "3.4.2.Final"
READ_S = 60.0
_SOURCE = Path(__file__).parent / "connect" / "ConnectReader.java"


class Unwrapped(NamedTuple):
    """A record that the connector gets; value None: a tombstone."""

    key: dict[str, Any] | None
    value: dict[str, Any] | None


@dataclass(frozen=True)
class Refused:
    """A message that ends the connector's task."""

    why: str


@dataclass(frozen=True)
class ConnectReader:
    class_path: str

    def read(
        self, options: Mapping[str, str], messages: Sequence[tuple[bytes | None, bytes | None]]
    ) -> list[Unwrapped | Refused | None]:
        """What becomes of each message, a key and a value; None: it is dropped. `options`: the transform's."""
        command = [java_tool("java"), "-Xmx256m", "-cp", self.class_path, "ConnectReader"]
        command += [f"{name}={value}" for name, value in options.items()]
        told = checked(command, f"reading with Kafka Connect {CONNECT}", READ_S, _framed(messages))
        answers = [json.loads(line) for line in told.decode().split("\n")[:-1]]
        assert len(answers) == len(messages)
        return [_meant(answer) for answer in answers]


def _meant(answer: dict[str, Any]) -> Unwrapped | Refused | None:
    if "refused" in answer:
        return Refused(answer["refused"])
    return None if "dropped" in answer else Unwrapped(answer["key"], answer["value"])


def connect_reader(folder: Path) -> ConnectReader:
    """Compiled into `folder`."""
    artifacts = [f"org.apache.kafka:{name}:{CONNECT}" for name in ("connect-json", "connect-transforms")]
    # Its other dependencies are of connectors that read databases.
    alone = [f"io.debezium:{name}:{DEBEZIUM}" for name in ("debezium-core", "debezium-api", "debezium-common")]
    libraries = jars(f"connect-{CONNECT}", *artifacts, "org.slf4j:slf4j-nop:1.7.36", alone=alone)
    return ConnectReader(compiled(_SOURCE, folder, libraries))


def _framed(messages: Sequence[tuple[bytes | None, bytes | None]]) -> bytes:
    """As the program reads them."""
    sides = (side for message in messages for side in message)
    framed = [struct.pack(">i", -1 if side is None else len(side)) + (side or b"") for side in sides]
    return struct.pack(">i", len(messages)) + b"".join(framed)
