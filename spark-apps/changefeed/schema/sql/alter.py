"""ALTER TABLE: the difference of two definitions of a table.

1. Columns are the same by their id, else by their name, else by what the statement changes (CHANGE old new): TiDB gives
   a column another id when it rewrites it.
2. A column that is added or has moved stands behind the nearest one that has not; of several behind the same the last
   one comes first. So no clause needs a column of another clause, which TiDB refuses.
3. Indexes are the same by their name and parts, else they are renamed if their id and parts are the same.
4. Foreign keys are the same by their name: what they refer to changes its name without them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from datetime import UTC, tzinfo

from changefeed.schema.sql.columns import column_text, older_rows_default
from changefeed.schema.sql.definition import Column, Definition, Index
from changefeed.schema.sql.dialect import TIDB, Dialect
from changefeed.schema.sql.keys import foreign_key_text, index_text, made
from changefeed.schema.sql.tables import changed_options
from changefeed.schema.sql.text import quoted
from changefeed.schema.sql_type import SqlType

Pairs = list[tuple[Column | None, Column]]  # a column after, and what it was


class Alteration:
    """Between two versions of a table, partitions aside. `renamed`: columns by their old name in lower case."""

    def __init__(self, before: Definition, after: Definition, dialect: Dialect, renamed: Mapping[str, str]) -> None:
        self._before, self._after, self._dialect = before, after, dialect
        self._pairs = _paired(before.columns, after.columns, renamed)
        kept = {old.info.id for old, _ in self._pairs if old is not None}
        self._dropped = [column for column in before.columns if column.info.id not in kept]
        names = {old.name: new.name for old, new in self._pairs if old is not None}
        self._indexes = tuple(index.of_columns(names) for index in made(before)), made(after)

    @property
    def cast(self) -> list[str]:
        """Old names of the columns whose values another time zone would turn into others."""
        return [old.name for old, new in self._pairs if old is not None and _depends_on_zone(old, new)]

    def clauses(self, zone: tzinfo = UTC) -> list[str]:
        """Return the clauses of one ALTER TABLE; none: for this server they are the same.

        `zone`: the session's. Raises ExecuteByHand.
        """
        old, new = self._indexes
        renamed = _renamed(old, new) if self._dialect.renames_indexes else {}
        same = {index.name.lower() for index in new if _same(index, old)}
        names = {index.name.lower() for index in renamed.values()}
        gone = [each for each in old if each.name.lower() not in same and each.name not in renamed]
        come = [each for each in new if each.name.lower() not in same | names]
        had, has = ([key.name for key in each.foreign_keys] for each in (self._before, self._after))
        return [
            *(f"DROP FOREIGN KEY {quoted(name)}" for name in had if name not in has),
            *("DROP PRIMARY KEY" if each.is_primary else f"DROP KEY {quoted(each.name)}" for each in gone),
            *(f"RENAME KEY {quoted(name)} TO {quoted(to.name)}" for name, to in renamed.items()),
            *(f"DROP COLUMN {quoted(column.name)}" for column in self._dropped),
            *self._column_clauses(zone),
            *(f"ADD {index_text(each, self._dialect, self._after)}" for each in come),
            *(self._shown(each) for each in new if self._is_shown_otherwise(each, old, renamed)),
            *(f"ADD {foreign_key_text(key)}" for key in self._after.foreign_keys if key.name not in had),
            *changed_options(self._before, self._after, self._dialect),
        ]

    def defaults(self, zone: tzinfo = UTC) -> list[str]:
        """Clauses of an ALTER TABLE behind it, which may be repeated: of new columns whose older rows have another
        value than the default, as of CURRENT_TIMESTAMP.
        """
        texts = (column_text(new, self._dialect, zone) for old, new in self._pairs if _is_two_steps(old, new, zone))
        return [f"MODIFY COLUMN {text}" for text in texts]

    # -- columns

    def _column_clauses(self, zone: tzinfo) -> list[str]:
        fixed = self._in_place()
        clauses: list[str] = []
        waiting: list[tuple[Column | None, Column]] = []  # behind `anchor`
        anchor: Column | None = None
        for old, new in self._pairs:
            if old is None or old.info.id not in fixed:
                waiting.append((old, new))
                continue
            clauses += self._placed(waiting, anchor, zone)
            waiting, anchor = [], new
            clauses += self._changed(old, new, "", zone)
        if all(old is None for old, _ in waiting):
            return clauses + [self._added(new, "", zone) for _, new in waiting]
        return clauses + self._placed(waiting, anchor, zone)

    def _placed(self, columns: Pairs, anchor: Column | None, zone: tzinfo) -> list[str]:
        position = " FIRST" if anchor is None else f" AFTER {quoted(anchor.name)}"
        found: list[str] = []
        for old, new in reversed(columns):
            found += [self._added(new, position, zone)] if old is None else self._changed(old, new, position, zone)
        return found

    def _added(self, column: Column, position: str, zone: tzinfo) -> str:
        return f"ADD COLUMN {column_text(column, self._dialect, zone, older_rows_default(column, zone))}{position}"

    def _changed(self, old: Column, new: Column, position: str, zone: tzinfo) -> list[str]:
        if not position and old.name == new.name and self._is_unchanged(old, new):
            return []
        text = column_text(new, self._dialect, zone)
        verb = "MODIFY COLUMN" if old.name == new.name else f"CHANGE COLUMN {quoted(old.name)}"
        return [f"{verb} {text}{position}"]

    def _is_unchanged(self, old: Column, new: Column) -> bool:
        """Apart from NOT NULL, where a primary key that is added says it too."""
        if any(column_text(old, each) == column_text(new, each) for each in (TIDB, self._dialect)):
            return True  # TiDB first, which knows all
        primary = self._after.primary
        if primary is None or self._before.primary is not None or new.name not in primary.columns:
            return False
        text = column_text(new, self._dialect).replace(" NOT NULL", " NULL", 1)
        return column_text(old, self._dialect) == text

    def _in_place(self) -> frozenset[int]:
        """Old ids of the columns that have not moved: the longest run in the old order."""
        order = {column.info.id: number for number, column in enumerate(self._before.columns)}
        ids = [old.info.id for old, _ in self._pairs if old is not None]
        ends: list[int] = []  # the smallest number at which a run of each length ends
        lengths: list[int] = []
        for id_ in ids:
            length = bisect_left(ends, order[id_])
            ends[length : length + 1] = [order[id_]]
            lengths.append(length)
        kept: list[int] = []
        wanted = len(ends) - 1
        for id_, length in zip(reversed(ids), reversed(lengths), strict=True):
            if length == wanted and (not kept or order[id_] < order[kept[-1]]):
                kept.append(id_)
                wanted -= 1
        return frozenset(kept)

    # -- indexes

    def _is_shown_otherwise(self, index: Index, old: Sequence[Index], renamed: Mapping[str, Index]) -> bool:
        names = {new.name: name for name, new in renamed.items()}
        was = next((each for each in old if each.name == names.get(index.name, index.name)), None)
        is_kept = was is not None and was.shape == index.shape
        return is_kept and was is not None and was.is_hidden != index.is_hidden and self._dialect.hides_indexes

    def _shown(self, index: Index) -> str:
        return f"ALTER INDEX {quoted(index.name)} {'INVISIBLE' if index.is_hidden else 'VISIBLE'}"


def _paired(before: Sequence[Column], after: Sequence[Column], renamed: Mapping[str, str]) -> Pairs:
    by_id = {column.info.id: column for column in before}
    taken = {column.info.id for column in after} & by_id.keys()
    by_name = {column.name.lower(): column for column in before if column.info.id not in taken}
    old_names = {new.lower(): old for old, new in renamed.items()}
    pairs: Pairs = []
    for column in after:
        name = column.name.lower()
        old = by_id.get(column.info.id) or by_name.pop(name, None) or by_name.pop(old_names.get(name, ""), None)
        pairs.append((old, column))
    return pairs


def _depends_on_zone(old: Column, new: Column) -> bool:
    return (old.info.type == SqlType.TIMESTAMP) != (new.info.type == SqlType.TIMESTAMP)


def _is_two_steps(old: Column | None, new: Column, zone: tzinfo) -> bool:
    return old is None and older_rows_default(new, zone) is not None


def _same(index: Index, among: Sequence[Index]) -> bool:
    return any(each.name.lower() == index.name.lower() and each.shape == index.shape for each in among)


def _renamed(old: Sequence[Index], new: Sequence[Index]) -> dict[str, Index]:
    """Those after, by their old name."""
    by_id = {each.id: each for each in new if not each.is_primary}
    found = {each.name: by_id[each.id] for each in old if each.id in by_id and not each.is_primary}
    return {name: to for name, to in found.items() if name != to.name and _shape_of(name, old) == to.shape}


def _shape_of(name: str, among: Sequence[Index]) -> tuple[object, ...]:
    return next(each.shape for each in among if each.name == name)
