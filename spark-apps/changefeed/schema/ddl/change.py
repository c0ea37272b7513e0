"""`SchemaChange`: what a DDL of any upstream does to definitions, and its statement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from changefeed.schema.ddl.actions import ALL, Action
from changefeed.schema.table_info import DatabaseInfo, TableInfo


@dataclass(frozen=True)
class ExchangeArgs:
    """Whose partition changes places with the change's own table, which has none."""

    partition_id: int
    pt_schema_id: int
    pt_table_id: int
    partition_name: str
    with_validation: bool


class Rename(NamedTuple):
    """One of a statement's. A table that is renamed twice has a name in between, which no definition need have.

    The names may be "": an older upstream does not say them.
    """

    table_id: int
    schema_id: int  # the new database's
    old_schema_name: str
    new_name: str


@dataclass(frozen=True, kw_only=True)
class SchemaChange:
    """A change that has taken effect. `table_info`, `database_info` and `table_infos` are the definitions behind it,
    without the name of their database: `schema.history` knows it by its id.

    `type` is an `Action`; schema files have the number. A newer upstream may send others (rule 29). `start_ts`: of the
    transaction that made it. `renames`: of `table_infos`, one each. `old_name`: of a table that is recovered, "": its
    own. `sql_mode`, `time_zone` and `utc_offset` are the session's in which the statement was typed.
    """

    id: int
    type: int
    schema_id: int = 0
    table_id: int = 0
    query: str = ""
    start_ts: int = 0
    table_info: TableInfo | None = None
    database_info: DatabaseInfo | None = None
    table_infos: tuple[TableInfo, ...] = ()
    exchange: ExchangeArgs | None = None
    renames: tuple[Rename, ...] = ()
    old_name: str = ""
    sql_mode: int = 0
    time_zone: str = ""  # "": not said, or that of the upstream's host
    utc_offset: int = 0  # seconds, of a session whose zone has no name

    @property
    def type_name(self) -> str:
        return Action(self.type).name if self.type in ALL else f"ACTION_{self.type}"

    def __str__(self) -> str:
        return f"DDL job {self.id} ({self.type_name}: {self.query})"
