"""The MySQL sink as it is sent to tasks, and the code that connects it to their rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from changefeed.secret_files import tls_files, user_and_password
from changefeed.sink.contract import Entry, Surroundings, Written
from changefeed.sink.lanes import Lanes
from changefeed.sink.mysql.rows.changes import Changes, whole_transactions
from changefeed.sink.mysql.server import MysqlServer
from changefeed.sink.mysql.sink import MysqlSink, Options
from changefeed.sink.records import Mounting, Records

_USER = "root"
_PORT = 3306


@dataclass(frozen=True)
class MysqlEndpoint:
    """Where, and the folders of the Secrets (rule 21): `secret` of the user, `tls` of PEM files."""

    uri: str
    secret: Path | None = None
    tls: Path | None = None

    def server(self) -> MysqlServer:
        """Raises Refused when a Secret lacks a file."""
        parts = urlsplit(self.uri)
        user, password = (_USER, "") if self.secret is None else user_and_password(self.secret)
        tls = None if self.tls is None else tls_files(self.tls)
        return MysqlServer(parts.hostname or "", parts.port or _PORT, user, password, tls)


@dataclass(frozen=True)
class MysqlJob:
    """Implements SinkJob."""

    endpoint: MysqlEndpoint
    options: Options

    def mounting(self, options: Mapping[str, Any], time_zone: str) -> Mounting:
        return Mounting("UTC", with_old=True)

    def open(self, around: Surroundings) -> Lanes:
        sink = MysqlSink(self.endpoint.server(), self.options, around.patience)
        return Lanes(MysqlWriter(sink, self.options), around)


class MysqlWriter:
    """Implements EntryWriter."""

    def __init__(self, sink: MysqlSink, options: Options) -> None:
        self._sink, self._options = sink, options
        self._lock = threading.Lock()
        self._writers: dict[int, int] = {}  # by dispatcher: as which it is claimed

    def write(self, entry: Entry, chunks: Iterator[Records]) -> Written:
        claim = entry.claim
        with self._lock:
            is_claimed = self._writers.get(claim.dispatcher) == claim.writer
        if not is_claimed:
            self._sink.claim(claim)
            with self._lock:
                self._writers[claim.dispatcher] = claim.writer
        size = 0

        def changes() -> Iterator[Changes]:
            nonlocal size
            for records in chunks:
                found = Changes.of(records)
                size += found.nbytes
                yield found

        rows = changes()
        self._sink.write(
            claim, entry.id, entry.upto, whole_transactions(rows) if self._options.by_transaction else rows
        )
        for _ in rows:  # of an entry that stands there already: its size counts all the same
            pass
        return Written(size)

    def close(self) -> None:
        self._sink.close()
