"""Bugs in what the driver does to Iceberg tables, to be found in simulated_lake."""

from __future__ import annotations

from changefeed.sink.iceberg.ddl_sink import IcebergDdlSink
from changefeed.sink.iceberg.tables import LakeTables
from mutation import Mutation

LAKE = "Iceberg"
_SNAPSHOT = "AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=snapshot.snapshot_id if snapshot else None),"

LAKE_MUTATIONS = (
    Mutation(
        LAKE,
        "marks of what is there are not looked at",
        IcebergDdlSink,
        "_publish",
        "if _id(each) > marks.get(each[0].dispatcher, EntryId(0, -1))",
        "if each",
        rule=25,
    ),
    Mutation(
        LAKE,
        "marks are not set",
        IcebergDdlSink,
        "_publish",
        "done_properties(last))",
        "{})",
        rule=25,
    ),
    Mutation(
        LAKE,
        "a mark is that of the record's first entry",
        IcebergDdlSink,
        "_publish",
        "for each in new}",
        "for each in reversed(new)}",
        rule=25,
    ),
    Mutation(
        LAKE,
        "a commit counts on any snapshot",
        LakeTables,
        "_commit",
        _SNAPSHOT,
        "",
        rule=6,
        story="A driver stops right before a commit; another one commits the same; then the first goes on.",
    ),
    Mutation(
        LAKE,
        "a table is kept as it was before a commit whose outcome is unknown",
        LakeTables,
        "_commit",
        "del self._known[name]",
        "",
        rule=16,
    ),
    Mutation(
        LAKE,
        "a DDL that changes no schema makes no snapshot",
        IcebergDdlSink,
        "_follow",
        "else same_snapshot(found, told)",
        "else []",
        rule=6,
        story="A driver stops before it follows a TRUNCATE of a changelog; when it goes on, another has followed it.",
    ),
    Mutation(
        LAKE,
        "what a TRUNCATE empties is not emptied",
        IcebergDdlSink,
        "_follow",
        "empty_snapshot(found, told) if is_truncated and self._upsert",
        "same_snapshot(found, told) if is_truncated and self._upsert",
    ),
    Mutation(
        LAKE,
        "upserted entries of a dispatcher are one snapshot",
        IcebergDdlSink,
        "_added",
        "if not self._upsert:",
        "if True:",
        rule=25,
    ),
    Mutation(
        LAKE,
        "upserted entries come without their deletes",
        IcebergDdlSink,
        "_upserted",
        "tuple(file for file in deletes if file)",
        "()",
    ),
    Mutation(
        LAKE,
        "only the first dispatcher of a table is committed",
        IcebergDdlSink,
        "_publish",
        "self._added(found, table, new)",
        "self._added(found, table, [each for each in new if each[0].dispatcher == new[0][0].dispatcher])",
    ),
)
