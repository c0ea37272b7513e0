"""What one commit does to a table's rows, by delta-rs. Rows are never Python objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.schema import Field
from deltalake.transaction import AddAction, RemoveAction
from pyarrow.fs import PyFileSystem

from changefeed.sink.delta.files import DELETED, PUT
from changefeed.sink.delta.shape import Evolution
from changefeed.sink.delta.stats import file_stats
from changefeed.sink.typed import OP


def arrow_schema(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema())


def nothing(table: DeltaTable, properties: CommitProperties) -> None:
    """A commit that brings no rows, for the sake of its marks."""
    _add(table, [], properties)


def added(table: DeltaTable, files: PyFileSystem, paths: Sequence[str], properties: CommitProperties) -> None:
    """Files of the table's folder are the table's, too. Raises FileNotFoundError."""
    actions: list[AddAction | RemoveAction] = []
    for path in paths:
        with files.open_input_file(path) as opened:
            footer, size = pq.read_metadata(opened), opened.size()
        actions.append(AddAction(path, size, {}, 0, True, file_stats(footer)))
    _add(table, actions, properties)


def _add(table: DeltaTable, actions: list[AddAction | RemoveAction], properties: CommitProperties) -> None:
    table.create_write_transaction(
        actions, mode="append", schema=table.schema(), partition_by=[], commit_properties=properties
    )


def merged(
    table: DeltaTable, files: PyFileSystem, paths: Sequence[str], key: Sequence[str], properties: CommitProperties
) -> None:
    """Rows of `files.encode_files` are put or deleted. Raises FileNotFoundError."""
    given = []
    for path in paths:
        with files.open_input_file(path) as opened:
            given.append(pq.ParquetFile(opened).read())
    source = pa.concat_tables(given)
    columns = {_quoted(name): f"s.{_quoted(name)}" for name in source.column_names if name != OP}
    on = " AND ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in key)
    (
        table.merge(source, on, source_alias="s", target_alias="t", commit_properties=properties)
        .when_matched_delete(f"s.{OP} = '{DELETED}'")
        .when_matched_update(columns)
        .when_not_matched_insert(columns, f"s.{OP} = '{PUT}'")
        .execute()
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def emptied(table: DeltaTable, schema: pa.Schema, properties: CommitProperties) -> None:
    """The table has no rows, and this schema."""
    _overwrite(table, schema, iter(()), properties)


def evolved(table: DeltaTable, to: Evolution | None, properties: CommitProperties) -> None:
    """The table has the columns that it is to have; without new data files if no column changes or goes."""
    if to is None:
        nothing(table, properties)
    elif to.added:
        fields = [Field.from_arrow(field) for field in to.added]
        table.alter.add_columns(fields, commit_properties=properties)
    else:
        _overwrite(table, to.wanted, _converted(table, to), properties)


def copied(source: DeltaTable, target: DeltaTable, properties: CommitProperties) -> None:
    """The target has the rows and the schema of `source`."""
    schema = arrow_schema(source)
    same = Evolution(schema, {name: name for name in schema.names}, ())
    _overwrite(target, schema, _converted(source, same), properties)


def _converted(table: DeltaTable, to: Evolution) -> Iterator[pa.RecordBatch]:
    """All rows, as they are read. The scan begins at once: the library can't begin one while it writes another."""
    return _as_wanted(pa.RecordBatchReader.from_stream(table.scan()), to)


def _as_wanted(batches: pa.RecordBatchReader, to: Evolution) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        arrays = [
            batch.column(to.sources[field.name]).cast(field.type)
            if field.name in to.sources
            else pa.nulls(batch.num_rows, field.type)
            for field in to.wanted
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=to.wanted)


def _overwrite(
    table: DeltaTable, schema: pa.Schema, rows: Iterator[pa.RecordBatch], properties: CommitProperties
) -> None:
    reader = pa.RecordBatchReader.from_batches(schema, rows)
    write_deltalake(table, reader, mode="overwrite", schema_mode="overwrite", commit_properties=properties)
