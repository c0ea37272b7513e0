"""Bugs in what the driver does to Iceberg tables, to be found in simulated_lake."""

from __future__ import annotations

from changefeed.sink.iceberg.driver import IcebergDriver
from changefeed.sink.iceberg.tables import LakeTables
from mutation import Mutation

LAKE = "Iceberg"
_SNAPSHOT = "AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=snapshot.snapshot_id if snapshot else None)"

LAKE_MUTATIONS = (
    Mutation(
        LAKE,
        "marks of what is there are not looked at",
        IcebergDriver,
        "_publish",
        "_id(each) > marks.get(each[0].dispatcher, NONE)",
        "each",
        rule=25,
    ),
    Mutation(
        LAKE,
        "marks are not set",
        IcebergDriver,
        "_publish",
        "done_properties(last)",
        "{}",
        rule=25,
    ),
    Mutation(
        LAKE,
        "a mark is that of the record's first entry",
        IcebergDriver,
        "_publish",
        "{each[0].dispatcher: _id(each) for each in new}",
        "{each[0].dispatcher: _id(each) for each in reversed(new)}",
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
        "a DDL that changes no schema makes no snapshot",
        IcebergDriver,
        "_follow",
        "same_snapshot(found, told)",
        "[]",
        rule=6,
        story="A driver stops before it follows a TRUNCATE of a changelog; when it goes on, another has followed it.",
    ),
    Mutation(
        LAKE,
        "what a TRUNCATE empties is not emptied",
        IcebergDriver,
        "_follow",
        "empty_snapshot(found, told)",
        "same_snapshot(found, told)",
    ),
    Mutation(
        LAKE,
        "upserted entries of a dispatcher are one snapshot",
        IcebergDriver,
        "_added",
        "if not self._upsert:",
        "if True:",
        rule=25,
    ),
    Mutation(
        LAKE,
        "upserted entries come without their deletes",
        IcebergDriver,
        "_upserted",
        "tuple(file for file in deletes if file)",
        "()",
    ),
    Mutation(
        LAKE,
        "only the first dispatcher of a table is committed",
        IcebergDriver,
        "_publish",
        "self._added(found, table, new)",
        "self._added(found, table, [each for each in new if each[0].dispatcher == new[0][0].dispatcher])",
    ),
    Mutation(
        LAKE,
        "what the log relies on is not known",
        LakeTables,
        "__init__",
        "dict(relied or {})",
        "{}",
        rule=16,
        story="A table goes back to what it was, and a driver that has not seen it before comes.",
    ),
    Mutation(
        LAKE,
        "what a driver has relied on is not remembered",
        LakeTables,
        "_change",
        "self._relied[id_of(table)] = {each: Relied(version_of(table), last) for each, last in done(table).items()}",
        "pass",
        rule=16,
        story="A driver has published a record's entries; the table goes back, and the driver goes on with it.",
    ),
    Mutation(
        LAKE,
        "a table that has lost what is relied on is written on",
        LakeTables,
        "_check",
        "if (lacking := lost(table, self._relied.get(id_of(table), {}))) is not None:",
        "if (lacking := lost(table, {})) is not None:",
        rule=16,
    ),
    Mutation(
        LAKE,
        "a table that was rolled back is written on",
        LakeTables,
        "_check",
        "if (ours := rolled_back(table)) is not None:",
        "if (ours := None) is not None:",
        rule=16,
        story="Somebody shows an earlier snapshot of a table, whose marks stay; then a driver commits.",
    ),
    Mutation(
        LAKE,
        "a table that is gone is made again",
        LakeTables,
        "_make",
        "if definition.table_id in self._relied or definition.was in self._relied:",
        "if False:",
        rule=16,
    ),
    Mutation(
        LAKE,
        "a commit that is confirmed is taken for done",
        LakeTables,
        "_change",
        "table = self._read_again(name, change_of)",
        "pass",
        rule=16,
    ),
    Mutation(
        LAKE,
        "an error is taken for success",
        LakeTables,
        "_change",
        "with self._telling(name):\n"
        "    change = change_of(table)\n"
        "    if change is not None:\n"
        "        self._commit(table, change)\n"
        "table = self._read_again(name, change_of)",
        "with self._telling(name):\n"
        "    change = change_of(table)\n"
        "    if change is not None:\n"
        "        with suppress(Exception):\n"
        "            self._commit(table, change)",
        rule=16,
    ),
    Mutation(
        LAKE,
        "rows are written into a table whose TRUNCATE is lost",
        IcebergDriver,
        "_publish",
        "_check_fits(found, definition)",
        "pass",
        rule=16,
        story="A table goes back behind a TRUNCATE that the log has, before a row is written after that.",
    ),
)
