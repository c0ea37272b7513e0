"""A table according to its schema files: its columns through time, and where its rows are unknown. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from changefeed.reading.rows.lines import LineShape
from changefeed.reading.schema.columns import TableColumn
from changefeed.reading.schema.schema_file import ConsumerSchemaFile
from changefeed.reading.schema.statement import key_of


@dataclass(frozen=True)
class ColumnHistory:
    """A column's values through all its names. `default`: of rows that are older than the column."""

    number: int
    type: pa.DataType
    default: Any = None

    @property
    def name(self) -> str:
        """In the database in which rows are put together."""
        return f"v{self.number}"


@dataclass(frozen=True)
class TableVersion:
    """A version of a table: rows behind `version` have these columns. `name`: the table's then. `defined`: also the
    virtual ones, of which no file has values.
    """

    version: int
    name: tuple[str, str]
    defined: tuple[TableColumn, ...]
    stored: tuple[ColumnHistory, ...]  # of `columns`

    @cached_property
    def columns(self) -> tuple[TableColumn, ...]:
        """Those of which files have values."""
        return tuple(column for column in self.defined if not column.is_virtual)

    @property
    def shape(self) -> LineShape:
        """As values stand in a file."""
        fractions = [int(column.scale or 0) for column in self.columns]
        return LineShape([column.name for column in self.columns], [stored.type for stored in self.stored], fractions)

    @property
    def key(self) -> tuple[ColumnHistory, ...]:
        """What tells a row."""
        return tuple(stored for column, stored in zip(self.columns, self.stored, strict=True) if column.is_pk)

    def of(self, name: str) -> tuple[TableColumn, ColumnHistory] | None:
        """A column by its name in lower case."""
        pairs = zip(self.columns, self.stored, strict=True)
        return next(((column, stored) for column, stored in pairs if column.name.lower() == name), None)


@dataclass(frozen=True)
class Gap:
    """`why` nobody can tell rows whose last change is at or below `upto_ts`; None: rows that are in no file.

    `of_unchanged`: of these rows those are known that have changed since.
    """

    why: str
    upto_ts: int | None = None
    of_unchanged: bool = False


@dataclass
class RestoredTable:
    """`number`: the same for the same table whenever schema files are read. `emptied`: the table that a TRUNCATE has
    emptied to make this one.
    """

    number: int
    segments: list[TableVersion] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    ddls: list[ConsumerSchemaFile] = field(default_factory=list)
    emptied: RestoredTable | None = None
    is_view: bool = False

    @property
    def now(self) -> TableVersion:
        return self.segments[-1]

    @property
    def name(self) -> str:
        return ".".join(self.now.name)

    @property
    def key(self) -> tuple[str, str]:
        """By which the catalog knows it."""
        return key_of(self.now.name)

    @property
    def never_known(self) -> str:
        """Why its rows are unknown, whatever changes come later; "" where that depends on its rows."""
        whole = next((gap.why for gap in self.gaps if gap.upto_ts is None), "")
        return whole or _keyless(self)

    def turn(self, segment: TableVersion) -> None:
        """It is so from the segment's version on."""
        if self.segments and self.now.version == segment.version:
            self.segments.pop()
        self.segments.append(segment)

    @property
    def never_followed(self) -> str:
        """Why not even those of its rows are known that have changed since the files began; "" if they are."""
        whole = next((gap.why for gap in self.gaps if gap.upto_ts is None and not gap.of_unchanged), "")
        return whole or _keyless(self)

    def gap(self, why: str, upto_ts: int | None = None, of_unchanged: bool = False) -> None:
        self.gaps.append(Gap(why, upto_ts, of_unchanged))


def _keyless(table: RestoredTable) -> str:
    return "" if table.now.key else "it has no primary key, so its rows can't be told apart"
