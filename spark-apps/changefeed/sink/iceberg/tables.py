"""The tables in their catalog. Every change is conditional on the state that was last read.

Exactly once, and who may write:

1. *A table itself says what is in it.* Its properties name our log and, for each dispatcher, the last entry that it has
   (`done`). A commit sets them together with its snapshot. A dispatcher's entries come in order without a gap, so an
   entry at or below its mark is in the table, and one above it is not, whatever became of the snapshot since: expiry,
   compaction and rollback keep a table's properties.
2. *A commit counts only on top of the snapshot that was read* (assert-ref-snapshot-id). One that failed, or whose
   outcome is unknown, is never sent again: the table is read again, and what it has by now is left out.
3. *A superseded driver.* All that it can still commit are entries of plans that its successor has read in the log. If
   such a commit comes before the successor's first snapshot of a table, it writes what was due next anyway, and the
   successor finds it by the marks. If it comes later, it fails, because the snapshot has changed. The same is true of a
   DDL, before which all entries below it were committed: afterwards the schema, or the table, has changed. When the old
   driver reads the table again, it finds a higher epoch and exits.
4. *No catalog can make a rename or a drop conditional.* The log is checked right before; what remains is a driver that
   stalls between the two for so long that another one takes over, does the same, and creates another table with that
   name.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSortOrderUpdate,
    AssertCreate,
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    AssertTableUUID,
    AssignUUIDUpdate,
    RemovePropertiesUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetLocationUpdate,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
    UpgradeFormatVersionUpdate,
)

from changefeed.errors import NeedsHuman
from changefeed.objectstore.patience import Patience
from changefeed.sink.contract import EntryId
from changefeed.sink.iceberg.place import TableName, told

LOG, EPOCH, TABLE, VERSION = "changefeed.log", "changefeed.epoch", "changefeed.table-id", "changefeed.version"
_DONE = "changefeed.done."
_SETTINGS = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    "write.parquet.compression-codec": "zstd",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
}
_FORMAT = 2


@dataclass(frozen=True)
class Writer:
    """`log`: names the changefeed's log. `poll_fence`: asks it who drives: raises Fenced."""

    log: str
    epoch: int
    poll_fence: Callable[[], object]


@dataclass(frozen=True)
class Definition:
    """What a table begins with. `version`: see contract.Entry.table_version."""

    schema: Schema
    location: str
    table_id: int
    version: int


@dataclass(frozen=True)
class Change:
    """`ended`: dispatchers whose marks nobody needs any more."""

    updates: list[TableUpdate] = field(default_factory=list)
    properties: Mapping[str, str] = field(default_factory=dict)
    ended: Iterable[int] = ()


ChangeOf = Callable[[Table], Change | None]


def done(table: Table) -> dict[int, EntryId]:
    """The last entry of each dispatcher that the table has."""
    marks = {name[len(_DONE) :]: mark for name, mark in table.metadata.properties.items() if name.startswith(_DONE)}
    return {int(dispatcher): EntryId(*map(int, mark.split("/"))) for dispatcher, mark in marks.items()}


def done_properties(entries: Mapping[int, EntryId]) -> dict[str, str]:
    return {f"{_DONE}{dispatcher}": f"{last.plan}/{last.entry}" for dispatcher, last in entries.items()}


def id_of(table: Table) -> int:
    """Of the upstream's table that it has."""
    return int(table.metadata.properties.get(TABLE, "0"))


def version_of(table: Table) -> int:
    """The ts of the last DDL that it has followed."""
    return int(table.metadata.properties.get(VERSION, "0"))


class LakeTables:
    """Tables are kept as they were last seen; a commit on what is out of date fails, and looks again.

    Thread-safe for different tables. Raises Fenced, NeedsHuman (somebody else's table), Unavailable.
    """

    def __init__(self, catalog: Catalog, where: str, writer: Writer, patience: Patience) -> None:
        self._catalog, self._where, self._writer, self._patience = catalog, where, writer, patience
        self._known: dict[TableName, Table] = {}
        self._namespaces: set[str] = set()

    @property
    def log(self) -> str:
        return self._writer.log

    def find(self, name: TableName) -> Table | None:
        """As it is now, if it is there and ours."""
        return self._call(partial(self._find, name))

    def create(self, name: TableName, definition: Definition) -> None:
        """It is there. Raises NeedsHuman when another table of that name is."""
        self._call(partial(self._create, name, definition))

    def change(self, name: TableName, change_of: ChangeOf, definition: Definition | None = None) -> None:
        """What `change_of` makes of the table as it is; None: nothing is to be done. It is asked again when somebody
        has changed the table meanwhile. `definition`: with which it is made if it is not there.
        """
        self._call(partial(self._change, name, change_of, definition))

    def rename(self, before: TableName, after: TableName) -> None:
        """What is named `before` and ours is named `after` then."""
        self._call(partial(self._rename, before, after))

    def drop(self, name: TableName) -> None:
        """Out of the catalog; its files stay."""
        self._call(partial(self._drop, name))

    def close(self) -> None:
        self._catalog.close()

    def _call(self, attempt: Callable[[], object]) -> Table | None:
        given = self._patience.call(self._where, attempt, again=self.ask)
        return given if isinstance(given, Table) else None

    def ask(self) -> None:
        """Raises Fenced."""
        self._writer.poll_fence()

    def _find(self, name: TableName) -> Table | None:
        self._known.pop(name, None)
        with told(self._where):
            try:
                table = self._catalog.load_table(name)
            except NoSuchTableError:
                return None
        self._check(name, table)
        self._known[name] = table
        return table

    def _check(self, name: TableName, table: Table) -> None:
        properties = table.metadata.properties
        if properties.get(LOG) != self._writer.log:
            raise NeedsHuman(
                f"SinkOwned: table {'.'.join(name)} in {self._where} is not this changefeed's: its {LOG} is "
                f"{properties.get(LOG) or 'not set'}.",
                "Rename or drop that table, or create a changefeed with a namespacePrefix of its own.",
            )
        if int(properties.get(EPOCH, "0")) > self._writer.epoch:
            self.ask()
            raise NeedsHuman(
                f"Table {'.'.join(name)} in {self._where} was written by epoch {properties[EPOCH]} of this changefeed, "
                f"which its log does not know.",
                "Its state was restored from a copy: create a new changefeed with a namespacePrefix of its own.",
            )

    def _create(self, name: TableName, definition: Definition) -> Table:
        if (there := self._find(name)) is not None:
            if id_of(there) != definition.table_id:
                raise NeedsHuman(
                    f"Table {'.'.join(name)} in {self._where} is that of the upstream's table {id_of(there)}, not of "
                    f"{definition.table_id}.",
                    "Rename or drop it, then start again.",
                )
            return there
        self.ask()
        self._need_namespace(name[0])
        # By whom it was made meanwhile, if it was, is looked at below.
        with told(self._where), suppress(TableAlreadyExistsError):
            self._catalog.commit_table(self._staged(name, definition), (AssertCreate(),), self._made(definition))
        found = self._find(name)
        assert found is not None, "it was just made"
        return found

    def _staged(self, name: TableName, definition: Definition) -> StagedTable:
        metadata = new_table_metadata(
            definition.schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, definition.location
        )
        io = self._catalog._load_file_io({}, definition.location)
        return StagedTable(name, metadata, f"{definition.location}/metadata", io, self._catalog)

    def _made(self, definition: Definition) -> tuple[TableUpdate, ...]:
        """With the schema's own ids: a catalog's create would give others."""
        properties = {
            **_SETTINGS,
            LOG: self._writer.log,
            EPOCH: str(self._writer.epoch),
            TABLE: str(definition.table_id),
            VERSION: str(definition.version),
        }
        return (
            AssignUUIDUpdate(uuid=uuid.uuid4()),
            UpgradeFormatVersionUpdate(format_version=_FORMAT),
            AddSchemaUpdate(schema=definition.schema),
            SetCurrentSchemaUpdate(schema_id=-1),
            AddPartitionSpecUpdate(spec=UNPARTITIONED_PARTITION_SPEC),
            SetDefaultSpecUpdate(spec_id=-1),
            AddSortOrderUpdate(sort_order=UNSORTED_SORT_ORDER),
            SetDefaultSortOrderUpdate(sort_order_id=-1),
            SetLocationUpdate(location=definition.location),
            SetPropertiesUpdate(updates=properties),
        )

    def _change(self, name: TableName, change_of: ChangeOf, definition: Definition | None) -> None:
        table = self._known.get(name) or self._find(name)
        if table is None:
            if definition is None:
                raise NeedsHuman(
                    f"Table {'.'.join(name)} is not in {self._where}.",
                    "Someone dropped or renamed it: restore it, or create a new changefeed.",
                )
            table = self._create(name, definition)
        with told(self._where):
            change = change_of(table)
        if change is not None:
            self._commit(name, table, change)

    def _commit(self, name: TableName, table: Table, change: Change) -> None:
        metadata = table.metadata
        snapshot = metadata.current_snapshot()
        requirements: tuple[TableRequirement, ...] = (
            AssertTableUUID(uuid=metadata.table_uuid),
            AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
            AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=snapshot.snapshot_id if snapshot else None),
        )
        properties = {**change.properties, EPOCH: str(self._writer.epoch)}
        ended = [mark for each in change.ended if (mark := f"{_DONE}{each}") in metadata.properties]
        removed = [RemovePropertiesUpdate(removals=ended)] if ended else []
        updates = (*change.updates, SetPropertiesUpdate(updates=properties), *removed)
        del self._known[name]
        with told(self._where):
            answer = self._catalog.commit_table(table, requirements, updates)
        table.metadata, table.metadata_location = answer.metadata, answer.metadata_location
        self._known[name] = table

    def _rename(self, before: TableName, after: TableName) -> None:
        if self._find(before) is None:
            return
        self.ask()
        self._known.pop(before, None)
        self._need_namespace(after[0])
        with told(self._where):
            self._catalog.rename_table(before, after)

    def _drop(self, name: TableName) -> None:
        if self._find(name) is None:
            return
        self.ask()
        self._known.pop(name, None)
        with told(self._where), suppress(NoSuchTableError):
            self._catalog.drop_table(name)

    def _need_namespace(self, namespace: str) -> None:
        if namespace in self._namespaces:
            return
        with told(self._where), suppress(NamespaceAlreadyExistsError):
            self._catalog.create_namespace((namespace,))
        self._namespaces.add(namespace)


def schema_change(table: Table, schema: Schema) -> list[TableUpdate]:
    """`schema` is the table's from now on."""
    same = next((each for each in table.metadata.schemas if _is_same(each, schema)), None)
    if same is not None:
        current = same.schema_id == table.metadata.current_schema_id
        return [] if current else [SetCurrentSchemaUpdate(schema_id=same.schema_id)]
    number = 1 + max(each.schema_id for each in table.metadata.schemas)
    new = Schema(*schema.fields, schema_id=number, identifier_field_ids=schema.identifier_field_ids)
    return [AddSchemaUpdate(schema=new), SetCurrentSchemaUpdate(schema_id=-1)]


def _is_same(one: Schema, other: Schema) -> bool:
    return one.fields == other.fields and sorted(one.identifier_field_ids) == sorted(other.identifier_field_ids)
