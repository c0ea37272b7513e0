"""Bugs in initial copies."""

from __future__ import annotations

from changefeed.log import history
from changefeed.log.state import State
from changefeed.model.table_copy import TableCopy
from changefeed.owner.preparation import copying
from changefeed.owner.pulling.assignments import Assignments
from changefeed.upstream.tikv.feed.initial_copy import CopyScan
from changefeed.upstream.tikv.feed.span_feed import SpanFeed
from mutation import Edit, Mutation

COPY_MUTATIONS = (
    Mutation(
        "initial copy",
        "a chunk is whole before all its rows have come",
        CopyScan,
        "run",
        "await task\n",
        "await asyncio.sleep(0)\n",
        rule=2,
    ),
    Mutation(
        "initial copy",
        "chunks are whole in any order",
        CopyScan,
        "run",
        "if len(running) == self._at_once:\n    await over(*running[0])\n    running.popleft()",
        "if len(running) == self._at_once:\n    await over(*running.pop())",
    ),
    Mutation(
        "initial copy",
        "GC may have passed the snapshot",
        CopyScan,
        "run",
        "(safepoint := await self._pd.gc_safepoint()) > copy.ts",
        "(safepoint := await self._pd.gc_safepoint()) > 1 << 63",
        rule=14,
    ),
    Mutation(
        "initial copy",
        "changes are pulled from the last chunk on",
        CopyScan,
        "run",
        "await whole(copy.ts)",
        "pass",
    ),
    Mutation(
        "initial copy",
        "a copy goes on behind the chunk that the span lacks",
        TableCopy,
        "chunks",
        "max(0, after_ts - self.from_ts)",
        "max(0, after_ts - self.from_ts and after_ts - self.from_ts + 1)",
    ),
    Mutation(
        "initial copy",
        "who goes on with a copy is not told of it",
        Assignments,
        "_subscribe",
        "span.copy is not None and span.is_being_copied",
        "span.copy is not None and span.start_ts == span.copy.from_ts",
    ),
    Mutation(
        "initial copy",
        "a scan that is broken off counts as one that has ended",
        SpanFeed,
        "_copy",
        'self.metrics.errors["copy"] += 1',
        "subscription.copy = None",
    ),
    Mutation(
        "initial copy",
        "the next driver cuts tables anew",
        copying,
        "tables_to_copy",
        "selected - state.copied.keys()",
        "selected",
        also=(
            Edit(
                history,
                "_copy",
                "table.dispatcher in state.copied or table.dispatcher in state.dispatchers",
                "table.dispatcher in state.dispatchers",
            ),
        ),
    ),
    Mutation(
        "initial copy",
        "a syncpoint may be inside of a copy",
        State,
        "whole_from_ts",
        "max([self.checkpoint_ts + 1, *(copy.ts for copy in self.copies().values())])",
        "self.checkpoint_ts + 1",
    ),
)
