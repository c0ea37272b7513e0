"""What may become of columns that are written otherwise than upstream: by an edit of the spec, and by DDLs. Pure.

1. *What is masked stays masked*: nothing may end that unnoticed, as a rename does to a name which no entry is for.
2. *What is written stays comparable*: a DDL after which rows of before would be hashed to something else is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from changefeed.errors import NeedsHuman
from changefeed.schema import table_info as ti
from changefeed.schema.ddl.actions import Action
from changefeed.schema.ddl.change import SchemaChange
from changefeed.schema.history import Touched
from changefeed.schema.masks import Mask
from changefeed.schema.table_info import ColumnInfo, TableInfo

_Treatment = tuple[str | None, Mask | None]  # the written name, None: left out


def first_difference(was: TableInfo, now: TableInfo) -> str:
    """How a column is written otherwise in `now`, of one definition upstream; "": none is."""
    before, after = _treatments(was), _treatments(now)
    for column in was.decoded_by.columns:
        if column.id in after and before.get(column.id) != after[column.id]:
            return f"its column {column.name} is {_said(*before[column.id])}, but would be {_said(*after[column.id])}"
    return ""


def check_ddl(change: SchemaChange, touched: Touched, *, is_told: bool) -> None:
    """Raises NeedsHuman for a DDL after which a column would not be masked as before, or can't be told as it is.

    `touched`: routed. `is_told`: readers are told the statement.
    """
    for was, now in _pairs(change, touched):
        if was.stored is None and now.stored is None:
            continue
        before, after = _treatments(was), _treatments(now)
        masks = dict(now.masks)
        by_name_only = change.type == Action.EXCHANGE_TABLE_PARTITION
        for column in now.decoded_by.columns:
            if column.hidden:
                continue
            mask = masks.get(column.id)
            if (old := _same(was.decoded_by, column, by_name_only)) is None:
                if is_told and mask is not None and (why := _unknown_to_older_rows(column, mask)):
                    raise _refused(was, f"adds column {column.name}, which is {mask}: {why}", _ADD)
                continue
            one, other = before[old.id], after[column.id]
            if (one[0] is None, one[1]) != (other[0] is None, other[1]):
                what = f"leaves column {column.name} {_said(*other)}, but until then {old.name} is {_said(*one)}"
                raise _refused(was, what, _COVER)
            if is_told and mask is not None and mask.kind == "hash" and _is_hashed_otherwise(old, column):
                raise _refused(was, f"changes the type of column {column.name}, which is {mask}", _COPY)


_COVER = (
    "Have an entry of spec.columns for the new name as well, then start again; or exclude the table "
    "(spec.filter.rules)."
)
_ADD = (
    "Keep the DDL from readers by an event filter (spec.filter.eventFilters, ignoreEvent) and add the column by hand "
    "downstream; or exclude the column by a rule with ! in spec.columns."
)
_COPY = (
    "Its hashes of before would not be those of the same values now. Exclude the table (spec.filter.rules), and write "
    "it by a new changefeed."
)


def _refused(table: TableInfo, what: str, next_step: str) -> NeedsHuman:
    return NeedsHuman(f"spec.columns: a DDL of {'.'.join(table.upstream_name)} {what}.", next_step)


def _pairs(change: SchemaChange, touched: Touched) -> Iterator[tuple[TableInfo, TableInfo]]:
    if change.type == Action.EXCHANGE_TABLE_PARTITION:
        yield from ((was, now) for was in touched.before for now in touched.after)
        return
    for now in touched.after:
        same_name = (each for each in touched.before if each.upstream_name == now.upstream_name)
        if (was := touched.was(now) or next(same_name, None)) is not None:
            yield was, now


def _same(was: TableInfo, column: ColumnInfo, by_name_only: bool) -> ColumnInfo | None:
    """The column before: TiDB gives one another id when it rewrites its values."""
    by_id = None if by_name_only else next((each for each in was.columns if each.id == column.id), None)
    named = (each for each in was.columns if each.name.lower() == column.name.lower() and not each.hidden)
    return by_id or next(named, None)


def _treatments(table: TableInfo) -> dict[int, _Treatment]:
    written, masks = {column.id: column.name for column in table.columns}, dict(table.masks)
    there = (column for column in table.decoded_by.columns if not column.hidden)
    return {column.id: (written.get(column.id), masks.get(column.id)) for column in there}


def _said(name: str | None, mask: Mask | None) -> str:
    if name is None:
        return "dropped"
    return f"written as {name}" if mask is None else f"{mask}, as {name}"


def _unknown_to_older_rows(column: ColumnInfo, mask: Mask) -> str:
    """Why older rows would not get downstream what they have upstream; "": they do."""
    if column.is_generated:
        return "older rows have a value of it that no change says"
    has_value = not column.nullable or column.origin_default is not None or column.origin_default_bit is not None
    if mask.kind == "hash" and has_value:
        return "older rows get the default's hash, which no statement can say"
    return ""


def _is_hashed_otherwise(old: ColumnInfo, new: ColumnInfo) -> bool:
    if {old.type, new.type} <= ti.INTEGERS:
        return False
    if {old.type, new.type} <= ti.STRINGS | ti.BLOBS and old.is_binary == new.is_binary:
        return old.is_binary and (old.type, old.flen) != (new.type, new.flen)
    shapes = ((each.type, each.flen, each.decimal, each.elems, each.is_unsigned) for each in (old, new))
    return len(set(shapes)) > 1
