"""Decides whether a changefeed can continue in a folder that TiCDC wrote (rule 7). Pure.

TiCDC's directories are for table versions below startTs, a changefeed's for startTs and later ones. So neither writes
to the other's, no names collide, and numbers start at 1 in each (rule 15). A folder for which this would not hold,
because TiCDC has executed a DDL that its `metadata` does not cover, is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from changefeed.errors import InvalidSpec, NeedsHuman
from changefeed.schema.table_info import TableInfo
from changefeed.sink.storage.layout import (
    Directory,
    Layout,
    directory_of_index,
    index_file,
    index_of,
    is_schema_file,
    parse_directory,
    parse_schema_path,
    table_path,
)

_FIELD = "spec.sink.storage"


def check_fits(
    uri: str, paths: Iterable[str], layout: Layout, start_ts: int, tables: Collection[TableInfo]
) -> tuple[int, int]:
    """How many data files TiCDC has written below `uri`, and of how many tables.

    `tables`: those that are selected, as they are at `start_ts`. Raises InvalidSpec when a changefeed of this layout
    would put files elsewhere than TiCDC has; NeedsHuman when it would write into directories that are there.
    """
    directories: dict[str, Directory] = {}
    newest: dict[str, int] = {}  # version of a table
    files = 0
    for path in paths:
        if is_schema_file(path) and (schema := parse_schema_path(path)):
            table, version = f"{schema.schema}/{schema.table}", schema.table_version
        elif (found := directory_of_index(path)) is not None or index_of(path.rpartition("/")[2]) is not None:
            files += found is None
            where = path.rpartition("/")[0] if found is None else found
            if where not in directories:
                directories[where] = _parsed(uri, where, layout)
            _check_name(uri, path, where, layout, is_index=found is not None)
            table, version = directories[where].table, directories[where].version
        else:
            continue
        if version >= start_ts:
            raise _ran_ahead(uri, path, version, start_ts)
        newest[table] = max(newest.get(table, 0), version)
    partitioned = {table_path(info): bool(info.partition_ids) for info in tables}
    for directory in directories.values():
        table = directory.table
        # Earlier versions may have had partitions, or none.
        if directory.version == newest[table] and directory.has_partition != partitioned.get(
            table, directory.has_partition
        ):
            raise _misplaced(uri, directory.path, layout)
    return files, len({directory.table for directory in directories.values()})


def _parsed(uri: str, path: str, layout: Layout) -> Directory:
    found = parse_directory(path, layout.date_separator)
    if found is None or not found.table:
        raise _misplaced(uri, path, layout)
    return found


def _check_name(uri: str, path: str, directory: str, layout: Layout, *, is_index: bool) -> None:
    index = index_of(path.rpartition("/")[2]) or 1
    wanted = index_file(directory) if is_index else layout.data_file(directory, index)
    if path != wanted:
        raise InvalidSpec(
            _FIELD,
            f"with it this file would be named {wanted}, but {uri} has {path}",
            "Give protocol, compression and fileIndexWidth as TiCDC had them. Names with the id of a dispatcher "
            "(enable-table-across-nodes) can't be continued: choose an empty folder instead.",
        )


def _misplaced(uri: str, directory: str, layout: Layout) -> InvalidSpec:
    date = "" if layout.date_separator == "none" else "/<date>"
    return InvalidSpec(
        f"{_FIELD}.dateSeparator",
        f"{layout.date_separator}: files would stand in <schema>/<table>/<version>[/<partition>]{date}, but {uri} has "
        f"{directory}",
        "Give TiCDC's date-separator. A folder of use-table-id-as-path, or with partitioned tables and without "
        "enable-partition-separator, can't be continued: choose an empty folder instead.",
    )


def _ran_ahead(uri: str, path: str, version: int, start_ts: int) -> NeedsHuman:
    return NeedsHuman(
        f"{path} in {uri} is of table version {version}, which is not below startTs {start_ts}: TiCDC has executed a "
        "DDL there that its `metadata` does not cover, or has not advanced since it started.",
        "Let TiCDC run until `metadata` is above that, pause it and try again. Or, if `cdc cli changefeed query` "
        "shows a checkpoint above it, name that as spec.startTs.",
    )
