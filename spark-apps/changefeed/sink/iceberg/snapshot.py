"""Snapshots of a table: writes the manifests, and builds the catalog request that commits them.

Nothing counts until the catalog has accepted it. Files of a failed commit are left for orphan removal, because it is
not always known whether a commit failed (rule 16).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    pyarrow_to_schema,
)
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, SnapshotSummaryCollector, Summary, update_snapshot_summaries
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, TableUpdate
from pyiceberg.typedef import Record, TableVersion
from pyiceberg.types import IcebergType, IntegerType, ListType, NestedField, StructType

from changefeed.errors import NeedsHuman

_CODEC: Literal["deflate"] = "deflate"


@dataclass(frozen=True)
class Added:
    """What one snapshot brings. Deletes take effect on rows of earlier snapshots alone."""

    rows: tuple[DataFile, ...] = ()
    deletes: tuple[DataFile, ...] = ()


def add_snapshots(table: Table, added: Iterable[Added], told: Mapping[str, str]) -> list[TableUpdate]:
    """Each of `added` as a snapshot on those before it; what is in the table stays. `told`: for their summaries."""
    return _snapshots(table, added, told, _current(table))


def same_snapshot(table: Table, told: Mapping[str, str]) -> list[TableUpdate]:
    """A snapshot with the same rows, which makes a commit that brings none depend on what was looked at."""
    return add_snapshots(table, [Added()], told)


def empty_snapshot(table: Table, told: Mapping[str, str]) -> list[TableUpdate]:
    """A snapshot without any row."""
    return _snapshots(table, [Added()], told, [])


def plain_spec(table: Table) -> PartitionSpec:
    """The one with which the table was made: whatever others have added, our files are not partitioned."""
    for spec in table.metadata.partition_specs:
        if spec.is_unpartitioned():
            return spec
    raise NeedsHuman(
        f"Table {'.'.join(table.name())} has no partition spec without fields any more, and this changefeed needs it.",
        "Remove its partition fields (ALTER TABLE ... DROP PARTITION FIELD).",
    )


def _current(table: Table) -> list[ManifestFile]:
    snapshot = table.metadata.current_snapshot()
    return [] if snapshot is None else list(snapshot.manifests(table.io))


def _snapshots(
    table: Table, added: Iterable[Added], told: Mapping[str, str], manifests: list[ManifestFile]
) -> list[TableUpdate]:
    metadata = table.metadata
    if not isinstance(metadata, TableMetadataV2):
        raise NeedsHuman(
            f"Table {'.'.join(table.name())} has format version {metadata.format_version}, which can't be written yet.",
            "A table's version can't be lowered: drop the table without purging it, and register its last metadata "
            "file of version 2 under its name.",
        )
    parent, sequence = metadata.current_snapshot(), metadata.last_sequence_number
    updates: list[TableUpdate] = []
    for each in added:
        sequence += 1
        made = _TableSnapshot(table, metadata.new_snapshot_id(), sequence, parent)
        parent = made.write(each, told, manifests)
        manifests = made.manifests
        updates.append(AddSnapshotUpdate(snapshot=parent))
    if updates and parent is not None:
        updates.append(
            SetSnapshotRefUpdate(ref_name=MAIN_BRANCH, type=SnapshotRefType.BRANCH, snapshot_id=parent.snapshot_id)
        )
    return updates


class _DeletesWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}

    def _with_partition(self, format_version: TableVersion) -> Schema:
        """With `equality_ids` as the specification has them, list<int>: pyiceberg's longs make Java readers fail."""
        schema = super()._with_partition(format_version)
        return Schema(*(_typed(field, "data_file", _with_int_ids) for field in schema.fields))


def _with_int_ids(file: StructType) -> StructType:
    return StructType(*(_typed(field, "equality_ids", _of_ints) for field in file.fields))


def _of_ints(list_: ListType) -> ListType:
    return ListType(list_.element_id, IntegerType(), element_required=list_.element_required)


def _typed(field: NestedField, name: str, typed: Callable[[Any], IcebergType]) -> NestedField:
    """The field; if it has this name, with the type that `typed` makes of its own."""
    return field.model_copy(update={"field_type": typed(field.field_type)}) if field.name == name else field


class _TableSnapshot:
    def __init__(self, table: Table, id_: int, sequence: int, parent: Snapshot | None) -> None:
        self._table, self._id, self._sequence, self._parent = table, id_, sequence, parent
        self._uuid = uuid.uuid4()
        self.manifests: list[ManifestFile] = []

    def write(self, added: Added, told: Mapping[str, str], before: Sequence[ManifestFile]) -> Snapshot:
        new = [
            self._manifest(number, writer, files)
            for number, (writer, files) in enumerate(((ManifestWriterV2, added.rows), (_DeletesWriter, added.deletes)))
            if files
        ]
        path = self._location(f"snap-{self._id}-0-{self._uuid}.avro")
        with write_manifest_list(
            2, self._table.io.new_output(path), self._id, self._parent_id, self._sequence, _CODEC
        ) as writer:
            writer.add_manifests([*new, *before])
        for manifest in new:  # as the list has it, for the next snapshot
            manifest.sequence_number = manifest.min_sequence_number = self._sequence
        self.manifests = [*new, *before]
        return Snapshot(
            snapshot_id=self._id,
            parent_snapshot_id=self._parent_id,
            manifest_list=path,
            sequence_number=self._sequence,
            summary=self._summary(added, told, starts_anew=not before),
            schema_id=self._table.metadata.current_schema_id,
        )

    @property
    def _parent_id(self) -> int | None:
        return self._parent.snapshot_id if self._parent else None

    def _location(self, name: str) -> str:
        return self._table.location_provider().new_metadata_location(name)

    def _manifest(self, number: int, kind: type[ManifestWriterV2], files: Sequence[DataFile]) -> ManifestFile:
        output = self._table.io.new_output(self._location(f"{self._uuid}-m{number}.avro"))
        with kind(plain_spec(self._table), self._table.schema(), output, self._id, _CODEC) as writer:
            for file in files:
                writer.add(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self._id,
                        sequence_number=None,
                        file_sequence_number=None,
                        data_file=file,
                    )
                )
        return writer.to_manifest_file()

    def _summary(self, added: Added, told: Mapping[str, str], *, starts_anew: bool) -> Summary:
        collected = SnapshotSummaryCollector()
        for file in (*added.rows, *added.deletes):
            collected.add_file(file, self._table.schema(), plain_spec(self._table))
        before = self._parent.summary if self._parent and not starts_anew else None
        is_append = not added.deletes and (added.rows or before is not None or self._parent is None)
        operation = Operation.APPEND if is_append else Operation.OVERWRITE if added.rows else Operation.DELETE
        return update_snapshot_summaries(Summary(operation=operation, **collected.build(), **told), before)


def data_file(table: Table, location: str, equality_ids: Sequence[int] = ()) -> DataFile | None:
    """What a manifest says of a Parquet file, from its footer; None when it has no rows. `equality_ids`: it says what
    is deleted, by these fields.
    """
    opened = table.io.new_input(location)
    with opened.open() as stream:
        footer = pq.read_metadata(stream)
    if footer.num_rows == 0:
        return None
    schema = pyarrow_to_schema(footer.schema.to_arrow_schema())
    statistics = data_file_statistics_from_parquet_metadata(
        footer, compute_statistics_plan(schema, table.metadata.properties), parquet_path_to_id_mapping(schema)
    )
    return DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES if equality_ids else DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        file_size_in_bytes=len(opened),
        sort_order_id=None,
        spec_id=plain_spec(table).spec_id,
        equality_ids=list(equality_ids) or None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )
