"""The topics of a changefeed, all that stands in them, and what they say of themselves."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import duckdb

from changefeed.reading.progress import ReadingProgress
from changefeed.sink.kafka.client import Cluster
from changefeed.sink.kafka.topics import partitions_of
from changefeed.verify.kafka.stored import StoredLines
from changefeed.verify.kafka.topics import add_messages, read_topics
from changefeed.verify.result import TopicsVerdict


class TopicsRead:
    """`parts`: by topic, the first and the last of its partitions among all."""

    def __init__(self, db: duckdb.DuckDBPyConnection, result: TopicsVerdict) -> None:
        self.stored = StoredLines(db)
        self.parts: dict[str, tuple[int, int]] = {}
        self._result = result

    def read(self, cluster: Cluster, topics: Collection[str], protocol: str, progress: ReadingProgress) -> None:
        """All that stands there now. Raises NotVerifiable, Transient, Refused."""
        progress.stage("the topics")
        parts: list[tuple[str, int]] = []
        for topic in sorted(topics):
            if not (count := partitions_of(cluster, topic)):
                self._result.problem(f"Topic {topic} is not there.")
            self.parts[topic] = (len(parts), len(parts) + count - 1)
            parts += [(topic, number) for number in range(count)]
        self._result.topics, self._result.partitions = len(topics), len(parts)
        self.stored.parts = parts
        add = partial(add_messages, self.stored, protocol, self._result.problem)
        self._result.messages = read_topics(cluster, parts, add, progress.advance)

    def check_resolved(self, checkpoint: Callable[[], int]) -> None:
        """No row stands behind a resolved-ts above it, none of which goes back, or is above the checkpoint."""
        result, stored = self._result, self.stored
        count, position, ts, resolved_ts = stored.early()
        result.early += count
        if position is not None:
            result.problem(f"{stored.where(position)}: commit ts {ts} stands behind resolved-ts {resolved_ts}.")
        count, position, ts, resolved_ts = stored.went_back()
        result.went_back += count
        if position is not None:
            result.problem(f"{stored.where(position)}: resolved-ts {ts} stands behind {resolved_ts}.")
        highest = stored.highest_resolved()
        # The log is read again: a changefeed that runs has gone on.
        if highest is not None and highest[0] > (reached := checkpoint()):
            result.problem(
                f"{stored.where(highest[1])}: resolved-ts {highest[0]} is above {reached}, the last checkpoint in the "
                "log."
            )
