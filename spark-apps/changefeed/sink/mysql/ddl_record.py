"""What our own table records about a DDL: that it was started, how its tables looked then, and that it is done. Pure.

An intent that is not done means that a driver died or lost the connection. If one of its tables looks different by now,
the DDL was executed: a server executes a DDL completely or not at all, except for MySQL 5.7 if it crashes meanwhile. If
nothing has changed, the DDL was either not executed or has no visible effect, and is harmless when repeated, except for
the two kinds that swap tables or partitions, for which there is no telling.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b

from changefeed.errors import NeedsHuman
from changefeed.model.tso import physical_ms
from changefeed.schema.ddl.actions import Action
from changefeed.schema.ddl.job import Job
from changefeed.sink.mysql.rows.literals import bytes_literal, identifier, text_literal

ABSENT = "-"

_DATABASES = frozenset({
    Action.CREATE_SCHEMA, Action.DROP_SCHEMA, Action.MODIFY_SCHEMA_CHARSET_AND_COLLATE, Action.MODIFY_SCHEMA_READ_ONLY,
})  # fmt: skip
#: Inserts change them, too.
_COUNTERS = re.compile(rb" AUTO_INCREMENT=\d+| /\*T!\[auto_rand_base\] AUTO_RANDOM_BASE=\d+ \*/")

#: Bits of `Job.sql_mode` that decide what a statement means or accepts, and that all servers know.
_SQL_MODES = {
    0: "REAL_AS_FLOAT",
    1: "PIPES_AS_CONCAT",
    2: "ANSI_QUOTES",
    3: "IGNORE_SPACE",
    6: "NO_UNSIGNED_SUBTRACTION",
    19: "NO_AUTO_VALUE_ON_ZERO",
    20: "NO_BACKSLASH_ESCAPES",
    21: "STRICT_TRANS_TABLES",
    22: "STRICT_ALL_TABLES",
    23: "NO_ZERO_IN_DATE",
    24: "NO_ZERO_DATE",
    25: "ALLOW_INVALID_DATES",
    26: "ERROR_FOR_DIVISION_BY_ZERO",
    29: "HIGH_NOT_PRECEDENCE",
}


@dataclass(frozen=True)
class Subject:
    """A database, or with `table` one of its tables or views, that a DDL may change."""

    database: str
    table: str | None = None

    @property
    def find(self) -> bytes:
        """Gives a row if it is there."""
        if self.table is None:
            schemata = b"SELECT 1 FROM information_schema.schemata WHERE schema_name="
            return schemata + text_literal(self.database)
        where = b" WHERE table_schema=" + text_literal(self.database) + b" AND table_name=" + text_literal(self.table)
        return b"SELECT 1 FROM information_schema.tables" + where

    @property
    def jobs(self) -> bytes:
        """Of TiDB: gives a row while it builds an index of the table."""
        return (
            b"SELECT 1 FROM information_schema.ddl_jobs WHERE job_type LIKE 'add index%' AND state IN ('running', "
            b"'queueing') AND db_name="
            + text_literal(self.database)
            + b" AND table_name="
            + text_literal(self.table or "")
        )

    @property
    def show(self) -> bytes:
        """Asks how it looks."""
        if self.table is None:
            return b"SHOW CREATE DATABASE " + identifier(self.database)
        return b"SHOW CREATE TABLE " + identifier(self.database) + b"." + identifier(self.table)


def subjects(job: Job) -> list[Subject]:
    if job.type in _DATABASES:
        return [Subject(job.schema_name)]
    infos = [*job.table_infos, *([job.table_info] if job.table_info else [])]
    found = [Subject(job.schema_name, job.table_name)] if job.table_name else []
    return list(dict.fromkeys([*found, *(Subject(info.schema_name, info.name) for info in infos)]))


def look(shown: bytes) -> str:
    """What to compare of the definition that `Subject.show` gives."""
    return blake2b(_COUNTERS.sub(b"", shown), digest_size=16).hexdigest()


def was_executed(job: Job, before: list[str], now: list[str]) -> bool:
    """From looks of its subjects at the intent, and of today. Raises NeedsHuman where that can't be told."""
    changed = [old != new for old, new in zip(before, now, strict=True)]
    if job.type in (Action.CREATE_TABLES, Action.RENAME_TABLES) and any(changed) and not all(changed):
        raise _unclear(job, "only some of its tables are as they are after it")
    if any(changed):
        return True
    is_hidden = job.type == Action.RENAME_TABLES and ABSENT not in now
    if is_hidden or job.type == Action.EXCHANGE_TABLE_PARTITION:
        raise _unclear(job, "what has changed places looks the same as before")
    return False


def _unclear(job: Job, why: str) -> NeedsHuman:
    return NeedsHuman(
        f"Whether {job} was executed downstream is unknown: {why}.",
        "Check the downstream, bring it to the state after this DDL, and set is_done = 1 in the table ddls.",
    )


def statement(job: Job) -> bytes:
    """A DROP of several tables is one job for each."""
    if job.type in (Action.DROP_TABLE, Action.DROP_VIEW):
        kind = b"DROP TABLE " if job.type == Action.DROP_TABLE else b"DROP VIEW "
        return kind + identifier(job.schema_name) + b"." + identifier(job.table_name)
    return job.query.rstrip().rstrip(";").encode()


def setting(job: Job, ts: int) -> bytes:
    """What the session must be like: `sql_mode` of the job, the clock at its commit, and how TiDB compares text."""
    modes = ",".join(name for bit, name in _SQL_MODES.items() if job.sql_mode >> bit & 1)
    return b"SET SESSION sql_mode='%s', timestamp=%d, collation_server='utf8mb4_bin'" % (
        modes.encode(),
        physical_ms(ts) // 1000,
    )


def uses_database(job: Job) -> bool:
    return job.type not in _DATABASES


@dataclass(frozen=True)
class DdlId:
    """A DDL of a changefeed."""

    changefeed: str
    ts: int
    job: int


class DdlTable:
    """The statements for table `ddls` in `database`: a row for each DDL that was begun.

    `build` is of an index that is built while rows go on (`index_builds`).
    """

    def __init__(self, database: str) -> None:
        self._table = identifier(database) + b".`ddls`"

    def create(self) -> bytes:
        return (
            b"CREATE TABLE IF NOT EXISTS " + self._table + b" (changefeed VARBINARY(255) NOT NULL, "
            b"ts BIGINT UNSIGNED NOT NULL, job BIGINT NOT NULL, looks MEDIUMBLOB NOT NULL, is_done TINYINT NOT NULL, "
            b"build MEDIUMBLOB NULL, PRIMARY KEY (changefeed, ts, job))"
        )

    def read(self, ddl: DdlId) -> bytes:
        return b"SELECT is_done, looks FROM " + self._table + b" WHERE " + _which(ddl, b" AND ")

    def begin(self, ddl: DdlId, looks: list[str], build: bytes | None = None) -> bytes:
        text = bytes_literal(" ".join(looks).encode())
        row = _which(ddl, b", ") + b", is_done=0, looks=" + text
        row += b"" if build is None else b", build=" + bytes_literal(build)
        return b"INSERT INTO " + self._table + b" SET " + row

    def end(self, ddl: DdlId) -> bytes:
        return b"UPDATE " + self._table + b" SET is_done=1 WHERE " + _which(ddl, b" AND ")

    def open_builds(self, changefeed: str) -> bytes:
        """Of indexes, in their order."""
        which = b" WHERE is_done=0 AND build IS NOT NULL AND changefeed=" + bytes_literal(changefeed.encode())
        return b"SELECT ts, job, looks, build FROM " + self._table + which + b" ORDER BY ts, job"


def _which(ddl: DdlId, between: bytes) -> bytes:
    changefeed = b"changefeed=" + bytes_literal(ddl.changefeed.encode())
    return between.join([changefeed, b"ts=%d" % ddl.ts, b"job=%d" % ddl.job])
