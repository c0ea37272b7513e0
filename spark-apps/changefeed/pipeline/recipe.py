"""How a table's rows become what its sink is shown: what follows from its definition and the plan's config; kept.

Parsing both again costs a small file more than its rows do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from changefeed.filter.selection import Selection
from changefeed.pipeline.mounter import mount
from changefeed.pipeline.work import Work
from changefeed.schema.table_info import TableInfo
from changefeed.sink.records import Mounting, Records
from changefeed.spec.sink.choice import kind_and_options
from changefeed.upstream.written_rows import NO_KEYS, MaskKeys

KEPT = 1024

#: How a sink wants rows, by its options and the time zone: `sink.contract.SinkJob.mounting`.
Mounts = Callable[[Mapping[str, Any], str], Mounting]


@dataclass(frozen=True)
class Recipe:
    table: TableInfo
    selection: Selection
    mounting: Mounting
    options: Mapping[str, Any]  # of the sink
    integrity: Mapping[str, Any]  # of the effective spec
    mask_keys: MaskKeys = NO_KEYS

    @cached_property
    def likeness(self) -> str | None:
        """What tables of one plan share when their rows are selected and mounted alike. None: it has to be known whose
        rows they are.
        """
        if not self.selection.rows.keeps_all or self.integrity["level"] != "None":
            return None
        shape = self.table.to_json()
        for definition in (shape, shape.get("shaped_from", {"index_info": []})):
            for name in ("schema_name", "id", "name", "partition", "routed_from"):
                definition.pop(name, None)
            for index in definition["index_info"]:  # of PostgreSQL's, names and ids are the database's
                del index["id"], index["idx_name"]
        return json.dumps([shape, [column.id for column in self.selection.columns]])

    def mount(self, rows: pa.RecordBatch) -> Records:
        """See `mounter.mount`."""
        return mount(
            rows,
            self.table,
            self.mounting.time_zone,
            written=self.selection.columns,
            halve_updates=self.mounting.halve_updates,
            with_old=self.mounting.with_old,
            mask_keys=self.mask_keys,
        )

    @classmethod
    def of(cls, config: Mapping[str, Any], table: TableInfo, mounts: Mounts, mask_keys: MaskKeys = NO_KEYS) -> Recipe:
        """`config`: the effective resource."""
        spec, (_, options) = config["spec"], kind_and_options(config)
        mounting = mounts(options, spec["timeZone"])
        return cls(table, Selection.of(config, table), mounting, options, spec["integrity"], mask_keys)


class Recipes:
    """Those of one config at a time: only what an earlier run has planned has another one. Thread-safe."""

    def __init__(self, mounts: Mounts, mask_keys: MaskKeys = NO_KEYS) -> None:
        self._mounts = mounts
        self._mask_keys = mask_keys
        self._known: tuple[str, Mapping[str, Any], dict[str, Recipe]] = ("", {}, {})  # by text, and what it says

    def of(self, work: Work, table_info: str) -> Recipe:
        """`table_info`: the definition's hash, under which `work` has it."""
        text, config, recipes = self._known
        if text != work.config or len(recipes) >= KEPT:
            config, recipes = json.loads(work.config), {}
            self._known = work.config, config, recipes
        found = recipes.get(table_info)
        if found is None:
            table = TableInfo.from_json(json.loads(work.table_infos[table_info]))
            found = recipes[table_info] = Recipe.of(config, table, self._mounts, self._mask_keys)
        return found
