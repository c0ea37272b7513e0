"""DDLs of indexes and keys. A record does not change, so no changefeed is sent a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..store.txn import AlreadyExist
from ..tidb.field_types import MULTIPLE_KEY, NOT_NULL, PRIMARY_KEY, UNIQUE_KEY
from ..tidb.rows import handle_of
from ..tidb.schema import PRIMARY, NamedTable, TidbColumn, TidbIndex, TidbTable
from ..tidb.server import TidbServer
from ..tidb.transaction import index_key
from .jobs import JobType
from .running import about, sql


def add_index(tidb: TidbServer, table: NamedTable, name: str, columns: Sequence[str], is_unique: bool) -> NamedTable:
    """Raises ValueError if rows have the same values in a unique one: the job fails then."""
    kind = JobType.ADD_PRIMARY_KEY if name == PRIMARY else JobType.ADD_INDEX
    of = ", ".join(f"`{column}`" for column in columns)
    clause = f"PRIMARY KEY ({of}) NONCLUSTERED" if name == PRIMARY else f"{'UNIQUE ' * is_unique}INDEX `{name}` ({of})"
    job = about(tidb, kind, table, f"ALTER TABLE {sql(table)} ADD {clause}")
    id_ = table.info.max_index_id + 1
    added = TidbIndex(id_, name, tuple(columns), is_unique)
    after = _with_flags(replace(table.info, indexes=(*table.info.indexes, added), max_index_id=id_))
    try:
        _fill(tidb, replace(table, info=after), added)
    except AlreadyExist as duplicate:
        job.roll_back(table)
        raise ValueError(f"rows of {table.name} have the same {', '.join(columns)}") from duplicate
    return job.finish(replace(table, info=after))[0]


def drop_index(tidb: TidbServer, table: NamedTable, name: str) -> NamedTable:
    """Drop the index; its keys stay in the store, as in TiKV before GC."""
    kind = JobType.DROP_PRIMARY_KEY if name == PRIMARY else JobType.DROP_INDEX
    what = "PRIMARY KEY" if name == PRIMARY else f"INDEX `{name}`"
    kept = tuple(index for index in table.info.indexes if index.name != name)
    job = about(tidb, kind, table, f"ALTER TABLE {sql(table)} DROP {what}")
    return job.finish(replace(table, info=_with_flags(replace(table.info, indexes=kept))))[0]


def rename_index(tidb: TidbServer, table: NamedTable, name: str, to: str) -> NamedTable:
    job = about(tidb, JobType.RENAME_INDEX, table, f"ALTER TABLE {sql(table)} RENAME INDEX `{name}` TO `{to}`")
    return job.finish(_changed(table, name, lambda index: replace(index, name=to)))[0]


def hide_index(tidb: TidbServer, table: NamedTable, name: str) -> NamedTable:
    """Hide it: no plan uses it any more, but it is kept up."""
    query = f"ALTER TABLE {sql(table)} ALTER INDEX `{name}` INVISIBLE"
    job = about(tidb, JobType.ALTER_INDEX_VISIBILITY, table, query)
    return job.finish(_changed(table, name, lambda index: replace(index, is_visible=False)))[0]


def _changed(table: NamedTable, name: str, change: Callable[[TidbIndex], TidbIndex]) -> NamedTable:
    indexes = tuple(change(index) if index.name == name else index for index in table.info.indexes)
    return replace(table, info=replace(table.info, indexes=indexes))


def _with_flags(info: TidbTable) -> TidbTable:
    """The columns' flags as the indexes are; an integer primary key is none of them."""

    def flagged(column: TidbColumn) -> TidbColumn:
        flag = column.type.flag & ~(UNIQUE_KEY | MULTIPLE_KEY)
        is_handle = column.name == info.pk or column.name in info.clustered
        flag = flag if is_handle else flag & ~PRIMARY_KEY
        for index in info.indexes:
            if index.is_primary and column.name in index.columns:
                flag |= PRIMARY_KEY | NOT_NULL
            elif index.is_unique and index.columns == (column.name,):
                flag |= UNIQUE_KEY
            elif index.columns[0] == column.name:
                flag |= MULTIPLE_KEY
        return replace(column, type=replace(column.type, flag=flag))

    return replace(info, columns=tuple(map(flagged, info.columns)))


def _fill(tidb: TidbServer, table: NamedTable, index: TidbIndex) -> None:
    with tidb.begin() as txn:
        for row in tidb.snapshot(table, txn.start_ts).values():
            handle = handle_of(table.info, row)
            key, is_taken_once = index_key(table, index, handle, row)
            if is_taken_once and txn.read(key) is not None:
                raise AlreadyExist(key)
            txn.write(key, b"0")
