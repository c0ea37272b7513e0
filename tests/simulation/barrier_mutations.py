"""Bugs in what orders rows and DDLs: the barrier, and what becomes of a DDL."""

from __future__ import annotations

from changefeed.owner.owner import Owner
from changefeed.owner.planning.barrier import Barrier
from changefeed.owner.transaction_log import history
from mutation import Edit, Mutation

BARRIER = (
    Mutation(
        "barrier",
        "the DDL span is in no minimum",
        Barrier,
        "ceiling",
        "self._resolved_ts, self._target_ts, self._syncpoint_ts",
        "1 << 63, self._target_ts, self._syncpoint_ts",
        rule=1,
        story="The DDL span stands still while tables are resolved beyond a DDL that nobody has seen yet.",
    ),
    Mutation(
        "barrier",
        "the checkpoint reaches the DDL's own ts",
        Barrier,
        "checkpoint_limit",
        "ddl.ts - 1",
        "ddl.ts",
        rule=9,
    ),
    Mutation(
        "barrier",
        "rows at the DDL's own ts are left out",
        Barrier,
        "limit",
        "(ddl.ts for ddl in self._pending if dispatcher in ddl.involved)",
        "(ddl.ts - 1 for ddl in self._pending if dispatcher in ddl.involved)",
        rule=9,
    ),
    Mutation(
        "barrier",
        "the last of several DDLs counts",
        Barrier,
        "limit",
        "next(stops, self._resolved_ts)",
        "max(stops, default=self._resolved_ts)",
        rule=9,
    ),
    Mutation(
        "barrier",
        "the target is no barrier",
        Barrier,
        "ceiling",
        "self._resolved_ts, self._target_ts, self._syncpoint_ts",
        "self._resolved_ts, None, self._syncpoint_ts",
        rule=24,
    ),
    Mutation(
        "barrier",
        "no plan is limited by it",
        Owner,
        "_cuts",
        "self.barrier.limit(dispatcher)",
        "None",
    ),
    Mutation(
        "barrier",
        "a plan's record says what is resolved, not what it may reach",
        Owner,
        "_plan",
        "resolved_ts=self.barrier.ceiling()",
        "resolved_ts=self.resolved_ts()",
    ),
    Mutation(
        "barrier",
        "while draining, a table's files may end past the DDL span",
        Owner,
        "_cuts",
        "limits = (self.spans.resolved_ts(dispatcher), self.barrier.limit(dispatcher), self._drain_ts)",
        "limits = (self.spans.resolved_ts(dispatcher), None if self._drain_ts else self.barrier.limit(dispatcher))",
        rule=1,
    ),
    Mutation(
        "barrier",
        "beside a second DDL, the checkpoint reaches the first one's own ts",
        Barrier,
        "checkpoint_limit",
        "self._known()[:1]",
        "self._known()[: len(self._known()) == 1]",
        rule=9,
    ),
    Mutation(
        "barrier",
        "no commit record says that the target is reached",
        Owner,
        "_commit_record",
        "finished=self.barrier.is_finished(ts)",
        "finished=False",
        rule=24,
    ),
)

SYNCPOINTS = (
    Mutation(
        "syncpoint",
        "tables pass it",
        Barrier,
        "ceiling",
        "self._syncpoint_ts",
        "",
        rule=9,
        also=(
            Edit(
                Barrier,
                "syncpoint",
                "ts == self.ceiling() and not any(ddl.ts <= ts for ddl in self._known()[:1])",
                "ts is not None and ts <= self.ceiling() and not any(ddl.ts <= ts for ddl in self._known()[:1])",
            ),
        ),
    ),
    Mutation(
        "syncpoint",
        "the checkpoint reaches it before it is written",
        Barrier,
        "checkpoint_limit",
        "self._syncpoint_ts - 1",
        "self._syncpoint_ts",
        rule=9,
        story="A driver dies between the checkpoint at a syncpoint and the syncpoint: the next begins behind it.",
    ),
    Mutation(
        "syncpoint",
        "a DDL beyond it that involves no table yet is executed before it",
        Barrier,
        "due",
        "ddl.ts <= self.ceiling() and all(flushed_ts(dispatcher) >= ddl.ts for dispatcher in ddl.involved)",
        "all(flushed_ts(dispatcher) >= ddl.ts for dispatcher in ddl.involved)",
        rule=9,
        story="A table comes by a DDL after the syncpoint; the driver dies, and the next begins behind both.",
    ),
    Mutation(
        "syncpoint",
        "one dispatcher that is flushed is enough",
        Owner,
        "_write_syncpoint_if_due",
        "flushed_ts(self._progress(), ts) < ts",
        "max((self._flushed(each) for each in self._tables), default=ts) < ts",
        rule=9,
    ),
)

DDL = (
    Mutation(
        "DDL",
        "one dispatcher that is flushed is enough",
        Barrier,
        "due",
        "all(flushed_ts(dispatcher) >= ddl.ts for dispatcher in ddl.involved)",
        "any(flushed_ts(dispatcher) >= ddl.ts for dispatcher in ddl.involved)",
        rule=9,
        story="A DDL involves two tables, and one of them still has rows to write.",
    ),
    Mutation(
        "DDL",
        "it is written before an earlier one",
        Barrier,
        "due",
        "self._known()[:1]",
        "self._known()",
        rule=9,
    ),
    Mutation(
        "DDL",
        "rows of files that are open count as written",
        Owner,
        "_flushed",
        "self._progress_of(dispatcher, 0, self._open.dispatchers)",
        "self._progress_of(dispatcher, 0, ())",
        rule=9,
    ),
    Mutation(
        "DDL",
        "a table keeps the definition of before",
        Owner,
        "_executed",
        "Table(dispatcher, info.hash, ddl.ts, place, info.full_name)",
        "self._tables.get(dispatcher) or Table(dispatcher, info.hash, ddl.ts, place, info.full_name)",
        rule=9,
    ),
    Mutation(
        "DDL",
        "a table that joins is pulled from where the DDL span is",
        Owner,
        "_executed",
        "self.spans.add_span(dispatcher, *table_span(dispatcher), ddl.ts)",
        "self.spans.add_span(dispatcher, *table_span(dispatcher), self.barrier.ceiling())",
    ),
    Mutation(
        "DDL",
        "a table that leaves is pulled and written on",
        Owner,
        "_executed",
        "for dispatcher in ddl.left:",
        "for dispatcher in ():",
    ),
    Mutation(
        "DDL",
        "a dispatcher that joins is in no minimum of a later run",
        history,
        "_ddl",
        "{**stay, **follow}",
        "stay",
        rule=1,
    ),
    Mutation(
        "DDL",
        "its files go on in the directory of before",
        history,
        "_follow",
        "{'flushed_ts': record.ts, 'planned_ts': record.ts, 'table_version': record.ts, 'directory': '', "
        "'next_index': 1, 'definition': definition, 'newest': known.newest if dispatcher in record.involved "
        "else None}",
        "{'flushed_ts': record.ts, 'planned_ts': record.ts, 'table_version': record.ts, 'definition': "
        "definition, 'newest': known.newest if dispatcher in record.involved else None}",
        rule=15,
    ),
    Mutation(
        "DDL",
        "one that is written counts as pending",
        Owner,
        "recorded",
        "self._executed(self.barrier.executed())",
        "self._executed(self.barrier._pending[0])",
    ),
)

BARRIER_MUTATIONS = (*BARRIER, *SYNCPOINTS, *DDL)
