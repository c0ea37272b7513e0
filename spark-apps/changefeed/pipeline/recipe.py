"""How a table's rows become a file: what follows from the table's definition and the plan's config, and is kept.

Parsing both again costs a small file more than its rows do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from changefeed.filter.selection import Selection
from changefeed.model.record import Work
from changefeed.pipeline.codec.choice import Codec, codec_of
from changefeed.schema.table_info import TableInfo

_MOST = 1024


@dataclass(frozen=True)
class Recipe:
    table: TableInfo
    codec: Codec
    selection: Selection
    split: bool  # updates of unique keys into a delete and an insert
    time_zone: str
    integrity: Mapping[str, Any]  # of the effective spec

    @classmethod
    def of(cls, config: Mapping[str, Any], table: TableInfo) -> Recipe:
        """`config`: the effective resource."""
        spec = config["spec"]
        storage = spec["sink"]["storage"]
        return cls(
            table=table,
            codec=codec_of(storage),
            selection=Selection.of(config, table),
            split=not storage["outputRawChangeEvent"],
            time_zone=spec["timeZone"],
            integrity=spec["integrity"],
        )


class Recipes:
    """Those of one config at a time: only what an earlier run has planned has another one. Thread-safe."""

    def __init__(self) -> None:
        self._known: tuple[Mapping[str, Any], dict[str, Recipe]] = ({}, {})

    def of(self, work: Work, table_info: str) -> Recipe:
        """`table_info`: the definition's hash, under which `work` has it."""
        config, recipes = self._known
        if config != work.config or len(recipes) >= _MOST:
            recipes = {}
            self._known = work.config, recipes
        found = recipes.get(table_info)
        if found is None:
            table = TableInfo.from_json(work.table_infos[table_info])
            found = recipes[table_info] = Recipe.of(work.config, table)
        return found
