"""What our own table records about a DDL: that it was started, how its tables looked then, and that it is done. Pure.

An intent that is not done means that a driver died or lost the connection. If one of its tables looks different by now,
the DDL was executed: a server executes a statement completely or not at all, except for MySQL 5.7 if it crashes
meanwhile. If nothing has changed, the DDL was either not executed or has no visible effect, and is harmless when
repeated, except for the two kinds that swap tables or partitions, for which there is no telling.

Of a DDL that takes several statements each either makes a table, which is there or not, or may be repeated, but for the
first one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from changefeed.errors import UnclearDdl
from changefeed.schema.ddl.actions import Action
from changefeed.schema.ddl.change import SchemaChange
from changefeed.schema.history import Touched
from changefeed.schema.sql.statements import Statement
from changefeed.sink.mysql.rows.literals import bytes_literal, identifier, text_literal

ABSENT = "-"

#: Inserts change them, too.
_COUNTERS = re.compile(rb" AUTO_INCREMENT=\d+| /\*T!\[auto_rand_base\] AUTO_RANDOM_BASE=\d+ \*/")


@dataclass(frozen=True)
class Subject:
    """A database, or with `table` one of its tables or views, that a DDL may change."""

    database: str
    table: str | None = None

    @property
    def find(self) -> bytes:
        """Gives a row if it is there."""
        if self.table is None:
            schemata = b"SELECT 1 FROM `information_schema`.`schemata` WHERE `schema_name`="
            return schemata + text_literal(self.database)
        where = (
            b" WHERE `table_schema`=" + text_literal(self.database) + b" AND `table_name`=" + text_literal(self.table)
        )
        return b"SELECT 1 FROM `information_schema`.`tables`" + where

    @property
    def jobs(self) -> bytes:
        """A query to TiDB that gives a row while it builds an index of the table."""
        return (
            b"SELECT 1 FROM `information_schema`.`ddl_jobs` WHERE `job_type` LIKE 'add index%' AND `state` IN ("
            b"'running', 'queueing') AND `db_name`="
            + text_literal(self.database)
            + b" AND `table_name`="
            + text_literal(self.table or "")
        )

    @property
    def show(self) -> bytes:
        """Asks how it looks."""
        if self.table is None:
            return b"SHOW CREATE DATABASE " + identifier(self.database)
        return b"SHOW CREATE TABLE " + identifier(self.database) + b"." + identifier(self.table)


def subjects(touched: Touched) -> list[Subject]:
    """The database of a database's DDL, or each table by the name that it had and the one that it gets."""
    if touched.databases:
        return [Subject(name) for name in sorted(touched.databases)]
    after = {table.id: table for table in touched.after}  # of one that stands there twice the last one counts
    return list(dict.fromkeys(Subject(table.schema_name, table.name) for table in (*touched.before, *after.values())))


def look(shown: bytes) -> str:
    """What to compare of the definition that `Subject.show` gives."""
    return blake2b(_COUNTERS.sub(b"", shown), digest_size=16).hexdigest()


def left(
    change: SchemaChange,
    statements: Sequence[Statement],
    subjects: Sequence[Subject],
    before: Sequence[str],
    now: Sequence[str],
) -> list[Statement]:
    """Those that are not executed yet, or may be again, from looks of its subjects at the intent, and of today.

    Raises UnclearDdl where that can't be told.
    """
    made = {
        (subject.database, subject.table)
        for subject, old, new in zip(subjects, before, now, strict=True)
        if old == ABSENT != new
    }
    is_done = was_executed(change, before, now)
    return [
        each
        for each in statements
        if each.is_repeatable or (not is_done if each.makes is None else each.makes not in made)
    ]


def was_executed(change: SchemaChange, before: Sequence[str], now: Sequence[str]) -> bool:
    """Its first statement. Raises UnclearDdl where that can't be told."""
    changed = [old != new for old, new in zip(before, now, strict=True)]
    if change.type == Action.RENAME_TABLES and any(changed) and not all(changed):
        raise _unclear(change, "only some of its tables are as they are after it")
    if any(changed):
        return True
    is_hidden = change.type == Action.RENAME_TABLES and ABSENT not in now
    if is_hidden or change.type == Action.EXCHANGE_TABLE_PARTITION:
        raise _unclear(change, "what has changed places looks the same as before")
    return False


def _unclear(change: SchemaChange, why: str) -> UnclearDdl:
    return UnclearDdl(
        f"Whether {change} was executed downstream is unknown: {why}.",
        "Check the downstream, bring it to the state after this DDL, and set is_done = 1 in the table ddls.",
    )


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
            b"CREATE TABLE IF NOT EXISTS " + self._table + b" (`changefeed` VARBINARY(255) NOT NULL, "
            b"`ts` BIGINT UNSIGNED NOT NULL, `job` BIGINT NOT NULL, `looks` MEDIUMBLOB NOT NULL, "
            b"`is_done` TINYINT NOT NULL, `build` MEDIUMBLOB NULL, PRIMARY KEY (`changefeed`, `ts`, `job`))"
        )

    def read(self, ddl: DdlId) -> bytes:
        return b"SELECT `is_done`, `looks` FROM " + self._table + b" WHERE " + _which(ddl, b" AND ")

    def begin(self, ddl: DdlId, looks: list[str], build: bytes | None = None) -> bytes:
        text = bytes_literal(" ".join(looks).encode())
        row = _which(ddl, b", ") + b", `is_done`=0, `looks`=" + text
        row += b"" if build is None else b", `build`=" + bytes_literal(build)
        return b"INSERT INTO " + self._table + b" SET " + row

    def end(self, ddl: DdlId) -> bytes:
        return b"UPDATE " + self._table + b" SET `is_done`=1 WHERE " + _which(ddl, b" AND ")

    def later(self, changefeed: str, ts: int, job: int) -> bytes:
        """Gives a row if a DDL behind that one was begun."""
        behind = b"(`ts` > %d OR (`ts` = %d AND `job` > %d))" % (ts, ts, job)
        which = b" WHERE `changefeed`=" + bytes_literal(changefeed.encode()) + b" AND " + behind
        return b"SELECT 1 FROM " + self._table + which + b" LIMIT 1"

    def open_builds(self, changefeed: str) -> bytes:
        """Return the query for builds of indexes that are not done, in their order."""
        which = b" WHERE `is_done`=0 AND `build` IS NOT NULL AND `changefeed`=" + bytes_literal(changefeed.encode())
        return b"SELECT `ts`, `job`, `looks`, `build` FROM " + self._table + which + b" ORDER BY `ts`, `job`"


def _which(ddl: DdlId, between: bytes) -> bytes:
    changefeed = b"`changefeed`=" + bytes_literal(ddl.changefeed.encode())
    return between.join([changefeed, b"`ts`=%d" % ddl.ts, b"`job`=%d" % ddl.job])
