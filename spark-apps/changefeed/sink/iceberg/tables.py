"""The tables in their catalog. Every change is conditional on the state that was last read.

Exactly once, and who may write:

1. *A table itself says what is in it.* Its properties name our log and, for each dispatcher, the last entry that it has
   (`done`). A commit sets them together with its snapshot. A dispatcher's entries come in order without a gap, so an
   entry at or below its mark is in the table, and one above it is not, whatever became of the snapshot since: expiry
   and compaction keep a table's properties. So does a rollback, which takes rows away: the last snapshot of ours, whose
   id is there too, then no longer leads to the one that is shown, and nothing is written on top of that.
2. *A commit counts only on top of the snapshot that was read* (assert-ref-snapshot-id), and it is done when the table,
   read again, has it: neither an error nor its absence says so. What the table has by then is left out of the next.
3. *What was relied on stays there.* Once the log may say that an entry is in a table, a table that is read and lacks it
   has lost it: its catalog has gone back, or somebody has registered older metadata. Nothing is written on top of that.
   The log's commit records say what earlier drivers have relied on.
4. *A superseded driver.* All that it can still commit are entries of plans that its successor has read in the log. If
   such a commit comes before the successor's first snapshot of a table, it writes what was due next anyway, and the
   successor finds it by the marks. If it comes later, it fails, because the snapshot has changed. The same is true of a
   DDL, before which all entries below it were committed: afterwards the schema, or the table, has changed. When the old
   driver reads the table again, it finds a higher epoch and exits.
5. *No catalog can make a rename or a drop conditional.* The log is checked right before; what remains is a driver that
   stalls between the two for so long that another one takes over, does the same, and creates another table with that
   name.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
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

from changefeed.errors import NeedsHuman, SinkOwned
from changefeed.objectstore.patience import Patience
from changefeed.sink.iceberg.endpoint import TableName, told
from changefeed.sink.iceberg.marks import (
    DONE,
    EPOCH,
    LOG,
    TABLE,
    VERSION,
    done,
    id_of,
    lost,
    rolled_back,
    snapshot_property,
    version_of,
)
from changefeed.sink.table_format.relied import Relied

_SETTINGS = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    "write.parquet.compression-codec": "zstd",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
}
_FORMAT = 2
#: What the library raises when it does not know what to do with a table.
_UNABLE = (ValueError, LookupError, TypeError, NotImplementedError, ValidationError)
RESTORE = (
    "Register the table's newest metadata file (in its folder metadata) under its name again, or create a new "
    "changefeed with a namespacePrefix of its own."
)


@dataclass(frozen=True)
class TableWriter:
    """`log`: names the changefeed's log. `poll_fence`: asks it who drives: raises Fenced."""

    log: str
    epoch: int
    poll_fence: Callable[[], object]


@dataclass(frozen=True)
class InitialTable:
    """What a table begins with. `version`: see contract.Entry.table_version. `was`: its id before the DDL of that."""

    schema: Schema
    location: str
    table_id: int
    version: int
    was: int = 0


@dataclass(frozen=True)
class Change:
    """`ended`: dispatchers whose marks nobody needs any more."""

    updates: list[TableUpdate] = field(default_factory=list)
    properties: Mapping[str, str] = field(default_factory=dict)
    ended: Iterable[int] = ()


ChangeOf = Callable[[Table], Change | None]


class LakeTables:
    """A table is read after each change, and the next builds on that; what is out of date fails, and is read again.

    Thread-safe for different tables. Raises Fenced, NeedsHuman (somebody else's table, or one that has lost what is
    relied on), Unavailable.
    """

    def __init__(
        self,
        catalog: Catalog,
        where: str,
        writer: TableWriter,
        patience: Patience,
        relied: Mapping[int, Mapping[int, Relied]] | None = None,
    ) -> None:
        """`relied`: what the log says of each table, by the id of the upstream's and by dispatcher."""
        self._catalog, self._where, self._writer, self._patience = catalog, where, writer, patience
        self._relied = dict(relied or {})
        self._known: dict[TableName, Table] = {}  # as last read, without its history
        self._namespaces: set[str] = set()

    @property
    def log(self) -> str:
        return self._writer.log

    def find(self, name: TableName) -> Table | None:
        """As it is now, if it is there and ours."""
        return self._call(partial(self._find, name))

    def create(self, name: TableName, definition: InitialTable) -> None:
        """It is there. Raises NeedsHuman when another table of that name is."""
        self._call(partial(self._create, name, definition))

    def change(self, name: TableName, definition: InitialTable, change_of: ChangeOf) -> None:
        """What `change_of` makes of the table as it is; None: nothing is to be done, which is relied on from now on.

        It is asked again of the table as it is afterwards, or when somebody has changed it meanwhile. `definition`:
        with which it is made if it was never there.
        """
        self._call(partial(self._change, name, definition, change_of))

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
        with self._telling(name):
            try:
                table = self._catalog.load_table(name)
            except NoSuchTableError:
                return None
        self._check(name, table)
        return table

    def _check(self, name: TableName, table: Table) -> None:
        properties = table.metadata.properties
        if properties.get(LOG) != self._writer.log:
            raise SinkOwned(
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
        if (lacking := lost(table, self._relied.get(id_of(table), {}))) is not None:
            dispatcher, last = lacking
            raise NeedsHuman(
                f"Table {'.'.join(name)} in {self._where} has lost changes that it had: entry {last.plan}/{last.entry} "
                f"of dispatcher {dispatcher} was in it, and {table.metadata_location} does not have it.",
                "The catalog has lost commits, or it was restored from a copy, or somebody has registered older "
                f"metadata. {RESTORE}",
            )
        if (ours := rolled_back(table)) is not None:
            procedure = f"set_current_snapshot('{'.'.join(name)}', {ours})"
            raise NeedsHuman(
                f"Table {'.'.join(name)} in {self._where} was rolled back: it lacks what snapshot {ours} of this "
                "changefeed has, and perhaps more.",
                f"Have Spark run CALL <catalog>.system.{procedure}. If that snapshot has expired, those rows are gone: "
                "create a new changefeed with a namespacePrefix of its own.",
            )

    def _create(self, name: TableName, definition: InitialTable) -> Table:
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
        if found is None:
            raise self._forgotten(name)
        return found

    def _staged(self, name: TableName, definition: InitialTable) -> StagedTable:
        metadata = new_table_metadata(
            definition.schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, definition.location
        )
        io = self._catalog._load_file_io({}, definition.location)
        return StagedTable(name, metadata, f"{definition.location}/metadata", io, self._catalog)

    def _made(self, definition: InitialTable) -> tuple[TableUpdate, ...]:
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

    def _change(self, name: TableName, definition: InitialTable, change_of: ChangeOf) -> None:
        table = self._known.pop(name, None) or self._find(name) or self._make(name, definition)
        with self._telling(name):
            change = change_of(table)
            if change is not None:
                self._commit(table, change)
        table = self._read_again(name, change_of)
        self._known[name] = _without_history(table)
        self._relied[id_of(table)] = {each: Relied(version_of(table), last) for each, last in done(table).items()}

    def _read_again(self, name: TableName, change_of: ChangeOf) -> Table:
        """The table, which has what was just committed: whatever the answer was, only this is relied on."""
        table = self._find(name)
        with self._telling(name):
            if table is None or change_of(table) is not None:
                raise self._forgotten(name)
        return table

    def _make(self, name: TableName, definition: InitialTable) -> Table:
        if definition.table_id in self._relied or definition.was in self._relied:
            raise NeedsHuman(
                f"Table {'.'.join(name)} is not in {self._where}, and this changefeed has written to it.",
                f"Somebody has dropped or renamed it, or the catalog was restored from a copy. {RESTORE}",
            )
        return self._create(name, definition)

    def _commit(self, table: Table, change: Change) -> None:
        metadata = table.metadata
        snapshot = metadata.current_snapshot()
        requirements: tuple[TableRequirement, ...] = (
            AssertTableUUID(uuid=metadata.table_uuid),
            AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
            AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=snapshot.snapshot_id if snapshot else None),
        )
        made = [each.snapshot for each in change.updates if isinstance(each, AddSnapshotUpdate)]
        last = snapshot_property(made[-1]) if made else {}
        properties = {**change.properties, **last, EPOCH: str(self._writer.epoch)}
        ended = [mark for each in change.ended if (mark := f"{DONE}{each}") in metadata.properties]
        removed = [RemovePropertiesUpdate(removals=ended)] if ended else []
        updates = (*change.updates, SetPropertiesUpdate(updates=properties), *removed)
        try:
            self._catalog.commit_table(table, requirements, updates)
        except _UNABLE:
            # Perhaps it has become what it can't be, while nothing that is required of it has changed.
            if self._catalog.load_table(table.name()).metadata_location == table.metadata_location:
                raise
            raise CommitFailedException("it is to be read again") from None

    @contextmanager
    def _telling(self, name: TableName) -> Iterator[None]:
        """As `told`, and what the library can't do with a table, which others may have changed."""
        try:
            with told(self._where):
                yield
        except _UNABLE as error:
            # Those of libraries may quote a catalog's answer, which may have secrets.
            said = f": {error}" if type(error).__module__ == "builtins" else ""
            raise NeedsHuman(
                f"Table {'.'.join(name)} in {self._where} can't be written: {type(error).__name__}{said}.",
                "If somebody has changed it, undo that, or register its last metadata file from before that under its "
                "name; report it as a bug otherwise.",
            ) from None

    def _forgotten(self, name: TableName) -> NeedsHuman:
        return NeedsHuman(
            f"{self._where} has confirmed a change of table {'.'.join(name)} and does not have it when it is read.",
            "It loses commits, or reads are answered from a copy that is behind: let the changefeed have the catalog "
            "itself, then start again.",
        )

    def _rename(self, before: TableName, after: TableName) -> None:
        if self._find(before) is None:
            return
        self.ask()
        self._known.pop(before, None)
        self._need_namespace(after[0])
        with told(self._where):
            self._catalog.rename_table(before, after)
        if self._find(before) is not None or self._find(after) is None:
            raise self._forgotten(before)

    def _drop(self, name: TableName) -> None:
        table = self._find(name)
        if table is None:
            return
        self.ask()
        self._known.pop(name, None)
        with told(self._where), suppress(NoSuchTableError):
            self._catalog.drop_table(name)
        if self._find(name) is not None:
            raise self._forgotten(name)
        self._relied.pop(id_of(table), None)

    def _need_namespace(self, namespace: str) -> None:
        if namespace in self._namespaces:
            return
        with told(self._where), suppress(NamespaceAlreadyExistsError):
            self._catalog.create_namespace((namespace,))
        self._namespaces.add(namespace)


def _without_history(table: Table) -> Table:
    """The same table, with a metadata of the same size however many snapshots it has."""
    metadata, now = table.metadata, table.metadata.current_snapshot()
    shown = {"snapshots": [now] if now else [], "snapshot_log": [], "metadata_log": []}
    slim = metadata.model_copy(update=shown)
    return Table(table.name(), slim, table.metadata_location, table.io, table.catalog, table.config)


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
