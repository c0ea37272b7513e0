"""The upstream at a ts: definitions by name, and rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from changefeed.filter.selection import Selection
from changefeed.reading.rows.formats import Format
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.row.defaults import absent_value
from changefeed.upstream.written_rows import MaskKeys
from changefeed.verify.upstream.definitions import SettledSchema
from changefeed.verify.upstream.expected import key_indexes, written_values
from changefeed.verify.upstream.standing import rows_at


@dataclass(frozen=True)
class WrittenColumns:
    """How a table's rows stand in the files of a version: in which columns, and which of them tell a row."""

    columns: tuple[ColumnInfo, ...]
    key: tuple[int, ...]
    all_rows: bool  # no event filter leaves any out


class UpstreamTables:
    def __init__(
        self, pd: PdClient, schema: SettledSchema, config: Mapping[str, Any], how: Format, mask_keys: MaskKeys
    ) -> None:
        """`config`: the effective resource."""
        self._mask_keys = mask_keys
        self._pd = pd
        self._schema = schema
        self._config = config
        self._how = how
        self._known: tuple[int, list[TableInfo]] = (0, [])

    def tables(self, ts: int) -> list[TableInfo]:
        """All of them, views too."""
        ts = max(ts, self._schema.snapshot_ts)  # a first copy stands below it
        if self._known[0] != ts:
            self._known = ts, self._schema.tables_at(ts)
        return self._known[1]

    def table(self, schema: str, table: str, ts: int) -> TableInfo | None:
        name = schema.lower(), table.lower()
        found = [each for each in self.tables(ts) if (each.schema_name.lower(), each.name.lower()) == name]
        return min(found, key=lambda each: each.source is None, default=None)  # one that is routed there comes first

    def table_of(self, id_: int, ts: int) -> TableInfo | None:
        return self._schema.table(id_, max(ts, self._schema.snapshot_ts))

    def written(self, info: TableInfo) -> WrittenColumns:
        selection = Selection.of(self._config, info)
        key = key_indexes(info, selection.columns, self._how.split_updates)
        return WrittenColumns(selection.columns, tuple(key), selection.rows.keeps_all)

    def default(self, column: ColumnInfo) -> Any:
        """What rows from before the column have of it."""
        (value,) = absent_value(column, self._how.time_zone).to_pylist()
        return value[self._how.choice] if isinstance(value, dict) else value

    async def rows(
        self, info: TableInfo, columns: tuple[ColumnInfo, ...], ts: int, met: Callable[[str], object]
    ) -> AsyncIterator[tuple[int, dict[str, pa.Array]]]:
        """(partition, c0..cn) in pieces: all rows of the table as it stood at `ts`, defined by `info`.

        Text is given as bytes; `met`: see expected.written_values.
        """
        for id_ in info.physical_ids:
            async for keys, values in rows_at(self._pd, id_, ts):
                found = await asyncio.to_thread(
                    written_values, info, columns, keys, values, self._how, met, self._mask_keys
                )
                yield id_ if info.partition_ids else 0, found


def partition_names(info: TableInfo) -> dict[str, int]:
    """Ids by names, those in lower case."""
    definitions = (info.raw.get("partition") or {}).get("definitions") or ()
    return {_name(each).lower(): int(each["id"]) for each in definitions}


def _name(definition: Mapping[str, Any]) -> str:
    name = definition.get("name")
    return str(name.get("O") if isinstance(name, Mapping) else name or "")
