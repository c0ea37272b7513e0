"""`changefeed verify` for a Kafka sink: compares its topics with the upstream and with their own resolved-ts."""

from __future__ import annotations

import asyncio
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from changefeed.reading.progress import NoProgress, ReadingProgress
from changefeed.reading.rows.formats import Formats, read_formats
from changefeed.sink.kafka.claim import kafka_endpoint
from changefeed.sink.kafka.options import rules_of
from changefeed.spec.model import Changefeed
from changefeed.upstream.written_rows import MaskKeys
from changefeed.verify.comparison.ledger import TableLedger
from changefeed.verify.comparison.table import Verified
from changefeed.verify.held import held
from changefeed.verify.kafka.read import TopicsRead
from changefeed.verify.kafka.stored import TableLines
from changefeed.verify.kafka.table import TopicTable
from changefeed.verify.recorded import StateLog, check_cluster, lives_of, say_unexplained, upstream_of
from changefeed.verify.result import MessagesVerdict
from changefeed.verify.upstream.lives import Life, Lives

TableName = tuple[str, str]  # (database, table): joined, names that have dots would be the same
_Group = tuple[Life, tuple[int, ...]]  # one life of a whole table, with the ids of its partitions


async def verify(
    changefeed: Changefeed, secrets_dir: Path | None = None, progress: ReadingProgress | None = None
) -> MessagesVerdict:
    """Also while the changefeed runs. Raises NotVerifiable when there is no answer."""
    progress = progress or NoProgress()
    recorded = StateLog.of(changefeed, secrets_dir)
    progress.stage("the changefeed's log")
    # Before the topics: rows up to its checkpoint stand there by now.
    state = recorded.read()
    config = state.epoch.config
    formats = read_formats(recorded.store, config["spec"])
    endpoint = kafka_endpoint(changefeed, secrets_dir)
    rules = rules_of(
        config["spec"]["sink"]["kafka"], endpoint.topic, config["spec"]["filter"].get("caseSensitive", False)
    )
    result = MessagesVerdict(checkpoint_ts=str(state.checkpoint_ts))
    async with upstream_of(changefeed, secrets_dir) as pd:
        check_cluster(pd, state)
        bounds = state.from_ts, state.checkpoint_ts
        mask_keys = MaskKeys(secrets_dir)
        subject = Verified(config, pd, formats.newest, *bounds, None, progress, result, mask_keys=mask_keys)
        async with held(pd, state.from_ts, "startTs"):
            progress.stage("the upstream's DDLs")
            lives = await lives_of(state, pd, state.checkpoint_ts)
            say_unexplained(lives, result)
            names = {name_of(life) for life in lives.all}
            topics = {name: rules.topic(*name) for name in names}
            with tempfile.TemporaryDirectory(prefix="changefeed-verify-") as folder:
                ledger = TableLedger(Path(folder))
                try:
                    read, cluster = TopicsRead(ledger.db, result), endpoint.cluster()
                    every = {endpoint.topic, *topics.values()}
                    await asyncio.to_thread(read.read, cluster, every, formats.newest.protocol, progress)
                    await _TopicsCheck(subject, result, formats, ledger, read, topics).tables(lives)
                    read.check_resolved(lambda: recorded.read().checkpoint_ts)
                finally:
                    ledger.db.close()
    return result


class _TopicsCheck:
    """`topics`: by table."""

    def __init__(
        self,
        subject: Verified,
        result: MessagesVerdict,
        formats: Formats,
        ledger: TableLedger,
        read: TopicsRead,
        topics: dict[TableName, str],
    ) -> None:
        self._subject, self._result, self._formats = subject, result, formats
        self._ledger, self._topics = ledger, topics
        self._stored, self._parts = read.stored, read.parts

    async def tables(self, lives: Lives) -> None:
        known: list[TableLines] = []
        for life, physical_ids in _whole_tables(lives):
            info = life.info
            topic = self._topics[name_of(life)]
            lines = TableLines(topic, info.schema_name, info.name, life.from_ts, life.to_ts, self._parts[topic])
            known.append(lines)
            may_repeat = self._formats.may_repeat
            table = TopicTable(
                self._subject, self._result, life, physical_ids, self._ledger, self._stored, lines, may_repeat
            )
            await table.check()
        self._result.tables = len({life.info.id for life in lives.all if not life.has_ended})
        ((self._result.transactions,),) = self._ledger.run("SELECT count(*) FROM (SELECT DISTINCT * FROM transactions)")
        self._say_foreign(known)
        self._check_told(lives)

    def _check_told(self, lives: Lives) -> None:
        """Check that readers are told of each DDL, by the name of a table that it is about."""
        told = set[int]()
        for ts, name, position in self._stored.ddls():
            told.add(ts)
            if name not in lives.names[ts] and ts <= self._subject.checkpoint_ts:
                said = ".".join(name).rstrip(".")
                about = ", ".join(".".join(each).rstrip(".") for each in sorted(lives.names[ts])) or "nothing"
                where = self._stored.where(position)
                self._result.problem(f"{where}: a message of the DDL at {ts} names {said}, but it is about {about}.")
        for folder, ts in lives.statements:
            if ts not in told:
                self._result.problem(f"No message tells a reader of {folder.replace('/', '.')} of the DDL at {ts}.")

    def _say_foreign(self, known: list[TableLines]) -> None:
        count, position, name, ts = self._stored.foreign(known, self._subject.checkpoint_ts)
        self._result.unexpected += count
        if position is not None:
            self._result.problem(
                f"{self._stored.where(position)}: a row of {name}, commit ts {ts}, which is no table that the "
                "changefeed writes there at that ts."
            )


def name_of(life: Life) -> TableName:
    return life.info.schema_name, life.info.name


def _whole_tables(lives: Lives) -> Iterator[_Group]:
    """Messages do not say of which partition of a table a row is."""
    found: dict[tuple[TableName, int, int], list[Life]] = defaultdict(list)
    for life in lives.all:
        found[name_of(life), life.from_ts, life.to_ts].append(life)
    for parts in found.values():
        yield parts[0], tuple(life.physical_id for life in parts)
