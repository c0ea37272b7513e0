"""What a table sink is compared with: the upstream tables that its changefeed replicates."""

from __future__ import annotations

from changefeed.filter.selection import Selection
from changefeed.owner.transaction_log.state import State
from changefeed.schema.table_info import TableInfo
from changefeed.upstream.pd import PdClient
from changefeed.verify.recorded import rules_of
from changefeed.verify.result import RowsVerdict
from changefeed.verify.upstream.definitions import Definitions, SettledSchema
from changefeed.verify.upstream.meta import read_meta


async def matching_tables(pd: PdClient, state: State) -> list[TableInfo]:
    """Those that the filter's rules match, as they are downstream: after the last DDL that was executed, which is at
    most one barrier ahead of the checkpoint.
    """
    rules = rules_of(state)
    schema_ts = max(state.checkpoint_ts, state.last_ddl[0] if state.last_ddl else 0)
    schema = SettledSchema(schema_ts, Definitions(await read_meta(pd, schema_ts, schema_ts)))
    tables = [info for info in schema.tables_at(schema_ts) if not (info.is_view or info.is_sequence)]
    return [info for info in tables if rules.matches(info.schema_name, info.name)]


def has_all_changes(info: TableInfo, state: State, result: RowsVerdict) -> bool:
    """Whether event filters keep all that happens to the table; if not, the result says so."""
    if Selection.of(state.epoch.config, info).rows.keeps_all:
        return True
    result.note(f"Event filters drop changes of {info.full_name}: it was not compared.")
    return False
