"""A table as a consumer has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from changefeed.reading.rows.lines import LineShape
from changefeed.reading.schema.columns import TableColumn
from changefeed.reading.schema.statement import key_of
from changefeed.schema.table_info import TableInfo
from changefeed.verify.consumer.rows import ConsumerColumn
from changefeed.verify.consumer.upstream import WrittenColumns


@dataclass
class ConsumerTable:
    """One that a consumer has. `stored`: of written columns, by their names in lower case.

    `unknown`: why nobody can follow its rows, "" if one can.
    """

    schema: str
    table: str
    version: int = 0
    columns: tuple[TableColumn, ...] = ()
    written: WrittenColumns = field(default_factory=lambda: WrittenColumns((), (), True))
    stored: dict[str, ConsumerColumn] = field(default_factory=dict)
    rows: str = ""
    unknown: str = ""
    is_view: bool = False
    last: tuple[int, int] = (0, 0)  # commit ts and index of the newest row
    id: int = 0  # the upstream's

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def key(self) -> tuple[str, str]:
        """By which the catalog knows it."""
        return key_of((self.schema, self.table))

    @property
    def order(self) -> list[ConsumerColumn]:
        """As the values stand in a file."""
        return [self.stored[column.name.lower()] for column in self.written.columns]

    @property
    def shape(self) -> LineShape:
        """As the values stand in a file."""
        columns = self.written.columns
        fractions = [max(column.decimal, 0) for column in columns]
        return LineShape([column.name for column in columns], [stored.type for stored in self.order], fractions)


def differing(columns: Sequence[TableColumn], info: TableInfo) -> str:
    """How columns of a schema file are not those of a definition, "" if they are."""
    wanted = [TableColumn.expected(column) for column in info.columns]
    names = [[column.name for column in each] for each in (columns, wanted)]
    if names[0] != names[1]:
        return f"does not name the columns of {info.full_name}: {', '.join(names[1])}."
    for column, want in zip(columns, wanted, strict=True):
        if column.shape != want.shape:
            return f"says {column}: the upstream has {want} in {info.full_name}."
        if column.is_virtual and not want.is_virtual:
            return f"says that {column} is virtual: in {info.full_name} it is not."
    return ""


def why_unknown(table: ConsumerTable) -> str:
    if not table.written.all_rows:
        return "event filters drop changes"
    return "" if table.written.key else "it has no key in its files"
