"""DDLs of columns, state by state: between two of them sessions go on, with the definition that is given then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from ..store.txn import KeyIsLocked, TxnError
from ..tidb.field_types import PRIMARY_KEY, FieldType, Tp
from ..tidb.schema import (
    COMING,
    DELETE_ONLY,
    GOING,
    PUBLIC,
    WRITE_ONLY,
    NamedTable,
    NewColumn,
    TidbColumn,
    TidbTable,
    ci_str,
    make_column,
    with_column,
)
from ..tidb.server import TidbServer
from .jobs import JobType
from .running import RunningJob, States, about, sql

FIRST = ""  # a position: before all columns; else the name of the column before it, None for the last position
#: The txn_source of rows that a reorganisation rewrites, which no changefeed is sent (docs/design/tikv.md, Transaction
#: sources).
_REORG = 1 << 8
_BATCH = 64
_WIDTHS = {Tp.TINY: 1, Tp.SHORT: 2, Tp.INT24: 3, Tp.LONG: 4, Tp.LONGLONG: 8}


def add_column(tidb: TidbServer, table: NamedTable, column: NewColumn, after: str | None = None) -> States:
    """Rows that are there have its default."""
    if any(each.name == column.name for each in table.info.public):
        raise ValueError(f"table {table.name} has a column {column.name}")
    info = with_column(table.info, column)
    query = f"ALTER TABLE {sql(table)} ADD COLUMN {column.sql()}{_clause(after)}"
    args = {
        "column_info": info.columns[-1].to_json({}),
        "position": _position(after),
        "offset": 0,
        "ignore_existence_err": False,
    }
    job = about(tidb, JobType.ADD_COLUMN, table, query, args)
    for state in COMING:
        yield job.show(_with(table, _of_state(info, column.name, state)))
    yield job.finish(_with(table, _moved(info, column.name, after)))[0]


def drop_column(tidb: TidbServer, table: NamedTable, name: str) -> States:
    """Raises ValueError for one of a key."""
    _check_in_no_key(table, name)
    query = f"ALTER TABLE {sql(table)} DROP COLUMN `{name}`"
    job = about(tidb, JobType.DROP_COLUMN, table, query, {"column_info": {"name": ci_str(name)}})
    yield from _dropped(job, table, _moved(table.info, name, None), name)


def _dropped(job: RunningJob, table: NamedTable, info: TidbTable, name: str) -> States:
    for state in GOING:
        yield job.show(_with(table, _of_state(info, name, state)))
    yield job.finish(_with(table, _without(info, name)))[0]


def modify_column(
    tidb: TidbServer, table: NamedTable, name: str, column: NewColumn, after: str | None = None, online: bool = True
) -> States:
    """Change type, name, default or position. A type that reads other bytes has every row rewritten first.

    `after`: None leaves it where it is. `online`: as TiDB does it since its pull request 62549, which later versions of
    7.5, 8.1 and 8.5 have too: sessions use the new column before the job is done, while the old one is on its way out.
    Raises ValueError for a column of a key.
    """
    old = table.info.column(name)
    new = replace(make_column(column, old.id, old.offset), origin_default=old.origin_default)
    verb = f"MODIFY COLUMN {column.sql()}" if column.name == name else f"CHANGE COLUMN `{name}` {column.sql()}"
    query = f"ALTER TABLE {sql(table)} {verb}{_clause(after)}"
    args = {"column": new.to_json({}), "old_column_name": ci_str(name), "position": _position(after)}
    job = about(tidb, JobType.MODIFY_COLUMN, table, query, args)
    if reads_alike(old.type, new.type):
        info = _renamed(_with_columns(table.info, (new if c.id == old.id else c for c in table.info.columns)), old, new)
        yield job.finish(_with(table, info if after is None else _moved(info, column.name, after)))[0]
        return
    _check_in_no_key(table, name)
    id_ = table.info.max_column_id + 1
    changing = replace(new, id=id_, name=f"_Col$_{name}_0", cast_of=name, offset=len(table.info.columns))
    both = replace(table.info, columns=(*table.info.columns, changing), max_column_id=id_)
    for state in COMING:
        shown = job.show(_with(table, _of_state(both, changing.name, state)))
        yield shown
    yield from _rewritten(tidb, shown)
    done = replace(changing, name=column.name, state=PUBLIC, cast_of=None)
    columns = (done if c.id == old.id else c for c in both.columns if c.id != id_)
    info = _renamed(_with_columns(both, columns), old, done)
    info = info if after is None else _moved(info, column.name, after)
    for state in (WRITE_ONLY, DELETE_ONLY) if online else ():
        going = replace(old, name=f"_Tombstone$_{name}", state=state)
        yield job.show(_with(table, _with_columns(info, (*info.columns, going))))
    yield job.finish(_with(table, info))[0]


def set_default(tidb: TidbServer, table: NamedTable, name: str, default: str | None) -> States:
    changed = [replace(c, default=default) if c.name == name else c for c in table.info.columns]
    to = "DROP DEFAULT" if default is None else f"SET DEFAULT '{default}'"
    args = {"column_info": next(column for column in changed if column.name == name).to_json({})}
    job = about(tidb, JobType.SET_DEFAULT_VALUE, table, f"ALTER TABLE {sql(table)} ALTER COLUMN `{name}` {to}", args)
    yield job.finish(_with(table, _with_columns(table.info, changed)))[0]


def change_several(tidb: TidbServer, table: NamedTable, added: NewColumn, dropped: str) -> States:
    """ADD COLUMN and DROP COLUMN in one statement, which is one job. Raises ValueError for a column of a key."""
    _check_in_no_key(table, dropped)
    info = with_column(table.info, added)
    query = f"ALTER TABLE {sql(table)} ADD COLUMN {added.sql()}, DROP COLUMN `{dropped}`"
    sub_jobs: list[tuple[JobType, dict[str, Any]]] = [
        (JobType.ADD_COLUMN, {"column_info": info.columns[-1].to_json({}), "position": _position(None)}),
        (JobType.DROP_COLUMN, {"column_info": {"name": ci_str(dropped)}}),
    ]
    job = RunningJob(tidb, JobType.MULTI_SCHEMA_CHANGE, table.db, (table.id, table.info.name), query, sub_jobs=sub_jobs)
    for state in COMING:
        yield job.show(_with(table, _of_state(info, added.name, state)))
    # One step shows all that the statement leads to; what is left is to let the dropped column go.
    yield from _dropped(job, table, _moved(info, dropped, None), dropped)


def reads_alike(old: FieldType, new: FieldType) -> bool:
    """Tell whether rows of the old type are rows of the new one."""
    if old.unsigned != new.unsigned or old.is_text != new.is_text:
        return False
    if old.is_text and old.tp == new.tp and not old.elems:
        return new.flen >= old.flen
    is_wider = new.tp == old.tp or ({old.tp, new.tp} <= _WIDTHS.keys() and _WIDTHS[new.tp] >= _WIDTHS[old.tp])
    return is_wider and (old.tp in _WIDTHS or (old.flen, old.decimal, old.elems) == (new.flen, new.decimal, new.elems))


def _rewritten(tidb: TidbServer, table: NamedTable) -> Iterator[NamedTable]:
    """Writes the column that takes another's place into all rows, some at a time; waits for rows that are locked."""
    todo: list[Any] = []
    is_read = False
    while todo or not is_read:
        try:
            if not is_read:
                todo, is_read = sorted(tidb.snapshot(table, tidb.now())), True
            with tidb.begin(source=_REORG) as txn:
                for pk in todo[:_BATCH]:
                    if txn.get(table, pk) is not None:
                        txn.update(table, dict(zip(table.address, pk if isinstance(pk, tuple) else (pk,), strict=True)))
            todo = todo[_BATCH:]
        except (KeyIsLocked, TxnError):
            pass
        yield table


def _with(table: NamedTable, info: TidbTable) -> NamedTable:
    return replace(table, info=info)


def _with_columns(info: TidbTable, columns: Iterable[TidbColumn]) -> TidbTable:
    return replace(info, columns=tuple(replace(column, offset=n) for n, column in enumerate(columns)))


def _of_state(info: TidbTable, name: str, state: int) -> TidbTable:
    return _with_columns(info, (replace(c, state=state) if c.name == name else c for c in info.columns))


def _without(info: TidbTable, name: str) -> TidbTable:
    return _with_columns(info, (column for column in info.columns if column.name != name))


def _moved(info: TidbTable, name: str, after: str | None) -> TidbTable:
    (moved,) = (column for column in info.columns if column.name == name)
    others = [column for column in info.columns if column is not moved]
    names = [column.name for column in others]
    index = len(others) if after is None else 0 if after == FIRST else names.index(after) + 1
    return _with_columns(info, [*others[:index], moved, *others[index:]])


def _renamed(info: TidbTable, old: TidbColumn, new: TidbColumn) -> TidbTable:
    indexes = tuple(
        replace(index, columns=tuple(new.name if name == old.name else name for name in index.columns))
        for index in info.indexes
    )
    return replace(info, indexes=indexes)


def _check_in_no_key(table: NamedTable, name: str) -> None:
    column = table.info.column(name)
    if column.type.flag & PRIMARY_KEY or any(name in index.columns for index in table.info.indexes):
        raise ValueError(f"column {name} of {table.name} is part of a key")


def _clause(after: str | None) -> str:
    return "" if after is None else " FIRST" if after == FIRST else f" AFTER `{after}`"


def _position(after: str | None) -> dict[str, Any]:
    """ColumnPosition: none, first, or after one."""
    kind = 0 if after is None else 1 if after == FIRST else 2
    column = {"Name": {"O": after, "L": after.lower()}} if after else None
    return {"Tp": kind, "RelativeColumn": column}
