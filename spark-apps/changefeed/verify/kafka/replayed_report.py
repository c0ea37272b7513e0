"""`changefeed verify` for topics of an upstream without history: their replay against its tables as they stand.

Messages say at which ts each change is, so they are replayed up to a ts behind the upstream's rows. Of a table's
changes those count that are behind the newest DDL which empties it, makes it or gives it its name. Of rows that are
older than the table's definition only the keys are compared, as their messages have the columns of before.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa

from changefeed.filter.selection import Selection
from changefeed.reading.failures import Break
from changefeed.reading.progress import ReadingProgress
from changefeed.reading.rows.formats import Format, read_formats
from changefeed.reading.rows.lines import LineShape
from changefeed.schema.table_info import TableInfo
from changefeed.schema.values import arrow_type
from changefeed.sink.kafka.claim import kafka_endpoint
from changefeed.sink.kafka.options import rules_of as topic_rules
from changefeed.spec.model import Changefeed
from changefeed.verify.kafka.read import TopicsRead
from changefeed.verify.kafka.rows import rows_of
from changefeed.verify.kafka.stored import TableLines
from changefeed.verify.recorded import StateLog, routes_of
from changefeed.verify.result import RowsVerdict, TopicRowsVerdict
from changefeed.verify.snapshot.changes import ChangesOfTable, KeyColumn, OddChanges
from changefeed.verify.tables.as_they_stand import AsTheyStand, looked_at
from changefeed.verify.tables.replayed import ReplayedComparison
from changefeed.verify.tables.values import of_decoded
from changefeed.verify.upstream.expected import key_indexes

_BEGINS = re.compile(rb"\s*(CREATE|TRUNCATE|DROP|RENAME)\b", re.IGNORECASE)
_EMPTIES = (b"CREATE", b"TRUNCATE")


async def verify(changefeed: Changefeed, secrets_dir: Path | None, progress: ReadingProgress) -> RowsVerdict:
    """While the changefeed runs. Raises NotVerifiable when there is no answer."""
    recorded, endpoint = StateLog.of(changefeed, secrets_dir), kafka_endpoint(changefeed, secrets_dir)

    async def compare(feed: AsTheyStand) -> None:
        config, result = feed.state.epoch.config, feed.result
        assert isinstance(result, TopicRowsVerdict), "it is asked for below"
        formats = read_formats(recorded.store, config["spec"])
        case_sensitive = config["spec"]["filter"].get("caseSensitive", False)
        rules = topic_rules(config["spec"]["sink"]["kafka"], endpoint.topic, case_sensitive)
        tables = await feed.tables()
        topics = {endpoint.topic, *(rules.topic(*info.qualified) for info in tables)}
        read = TopicsRead(feed.db, result)
        await asyncio.to_thread(read.read, endpoint.cluster(), topics, formats.newest.protocol, progress)
        for info in tables:
            if feed.has_all_changes(info):
                topic = rules.topic(*info.qualified)
                await _ReplayedTable(info, topic, feed, result, read, formats.newest, formats.may_repeat).check()
        _say_foreign(read, feed, result)
        read.check_resolved(lambda: recorded.read().checkpoint_ts)

    return await looked_at(changefeed, secrets_dir, progress, compare, verdict=TopicRowsVerdict, is_zoned=True)


def _say_foreign(read: TopicsRead, feed: AsTheyStand, result: TopicRowsVerdict) -> None:
    selects = routes_of(feed.state).is_written
    for name in read.stored.names(feed.standing.before_ts):
        if not selects(*name):
            result.unexpected += 1
            result.problem(f"There are rows of {'.'.join(name)}, which the changefeed does not select.")


class _ReplayedTable:
    """One table's."""

    def __init__(
        self,
        info: TableInfo,
        topic: str,
        feed: AsTheyStand,
        result: TopicRowsVerdict,
        read: TopicsRead,
        how: Format,
        may_repeat: bool,
    ) -> None:
        self._info, self._feed, self._result, self._read = info, feed, result, read
        self._how, self._may_repeat = how, may_repeat
        self._columns = Selection.of(feed.state.epoch.config, info).columns
        begins_ts, self._is_empty_first = self._begin()
        upto_ts = feed.standing.before_ts
        self._lines = TableLines(topic, *info.qualified, begins_ts, upto_ts, read.parts[topic])

    async def check(self) -> None:
        info, feed = self._info, self._feed
        key = key_indexes(info, self._columns, split_updates=self._how.split_updates)
        if not key:
            feed.result.note(f"{info.full_name} has no key that identifies its rows: it was not compared.")
            return
        rows = ReplayedComparison(feed.db, info.full_name, [column.name for column in self._columns], key)
        changes = ChangesOfTable(feed.db, [KeyColumn(f"k{n}", "BLOB", self._columns[n].name) for n in key])
        await feed.add_upstream(info, rows)
        feed.progress.stage(f"{info.full_name}: its messages")
        try:
            await asyncio.to_thread(self._replay, rows, changes, key)
        except Break as undecodable:
            self._result.problem(undecodable.message)
            return
        self._check_changes(changes)
        rows.settle(0, is_changelog=True, knows_start=True)
        feed.judge(info, rows, was_emptied=self._is_empty_first)

    def _begin(self) -> tuple[int, bool]:
        """The ts behind which its changes are, and whether it had no rows then."""
        found = 0, False
        for ts, name, line in self._read.stored.statements():
            statement = _BEGINS.match(_query(line))
            if name == self._info.qualified and ts <= self._feed.standing.before_ts and statement is not None:
                found = ts, statement[1].upper() in _EMPTIES
        return found

    def _replay(self, rows: ReplayedComparison, changes: ChangesOfTable, key: list[int]) -> None:
        names, types = [column.name for column in self._columns], [arrow_type(column) for column in self._columns]
        shape, where = LineShape(names, types), f"A message of {self._info.full_name}"
        since = self._feed.state.table_version(self._info.id)
        begins = self._read.stored.begin_of_parts(self._lines)
        firsts, parts = np.array([at for at, _ in begins]), np.array([part for _, part in begins], np.uint32)
        for lines in self._read.stored.lines_of(self._lines):
            for piece in rows_of(lines, where, shape, self._columns, self._how):
                found = piece.combine_chunks()
                values = [
                    of_decoded(column, _array(found[f"c{number}"])) for number, column in enumerate(self._columns)
                ]
                op, commit_ts = _array(found["op"]), _array(found["commit_ts"])
                rows.add_stored(0, values, op, commit_ts, since)
                at = np.arange(changes.count, changes.count + len(op))
                part = pa.array(parts[np.searchsorted(firsts, at, side="right") - 1])
                changes.add(part, op, commit_ts, [values[number] for number in key])
            self._feed.progress.advance(len(lines))

    def _check_changes(self, changes: ChangesOfTable) -> None:
        result = self._result
        again, late = changes.duplicates(), changes.late_of_key()
        odd = changes.out_of_sequence(is_known=self._is_empty_first or self._info.id in self._feed.state.copied)
        result.out_of_order += late.count
        result.unexpected += odd.count
        if self._may_repeat:
            result.repeated += again.count
        else:
            result.duplicate += again.count
            self._say(again, "appears again")
        self._say(late, "comes after a later one")
        self._say(odd, "can't be there")
        changes.drop()

    def _say(self, found: OddChanges, what: str) -> None:
        if found.count:
            self._result.problem(
                f"A change of {self._info.full_name} {what}: {found.first}. There are {found.count} such ones."
            )


def _query(line: bytes) -> bytes:
    """The statement that a message of a DDL has, of canal-json or open-protocol (heads)."""
    said = json.loads(line)
    return str(said["v"]["q"] if "v" in said else said["sql"]).encode()


def _array(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found
