"""A standing changefeed that writes to tables of Delta Lake.

They are read by their logs as the protocol has them: delta-rs starts threads, and this process is forked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from changefeed.log.state import State
from integration_delta import by_log, changelog, sink, state
from integration_standing_lake import LakeWorld, Rows


@dataclass
class DeltaWorld(LakeWorld):
    inside_a_plan = ("commit rows: done", 1)

    def spec(self) -> dict[str, Any]:
        return {"sink": sink(self.folder, self.mode)}

    def sink(self) -> dict[str, bytes]:
        """Rows; how many versions have brought them is a matter of time."""
        return {name: repr(rows).encode() for name, rows in self.tables().items()}

    def downstream(self) -> Mapping[str, Any]:
        """Which version of each table is the newest."""
        return {folder.name: len(list((folder / "_delta_log").glob("*.json"))) for folder in self._folders()}

    def written(self, state: State) -> str:
        folders = self._folders()
        files = sum(len(list(folder.rglob("*.parquet"))) for folder in folders)
        versions, rows = sum(self.downstream().values()), sum(len(each) for each in self.tables().values())
        return f"{files} data files, {len(folders)} tables with {versions} versions and {rows} rows"

    def tables(self) -> dict[str, Rows]:
        found = {folder.name: by_log(folder) for folder in self._folders()}
        if self.mode == "append":
            return {name: changelog(rows) for name, rows in found.items()}
        return {name: self._shown(name, list(state(rows, "id").values())) for name, rows in found.items()}

    def problem(self) -> str:
        """Left to tests of processes that nobody forks."""
        return ""

    def _folders(self) -> list[Path]:
        return sorted(path.parent.parent for path in (self.folder / "lake").glob(f"*/*/_delta_log/{0:020}.json"))
