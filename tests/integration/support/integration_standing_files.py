"""A standing changefeed (integration_standing) that writes files."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

from changefeed.log.state import State
from changefeed.objectstore.local import LocalStore
from changefeed.sink.storage.layout import CLAIM
from changefeed.verify.storage.report import verify
from integration_observer import Observer, format_of
from integration_standing import Broken, Watch, World


class FileWorld(World):
    inside_a_plan = ("create data file: done", 1)  # one of a plan's two files is put

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    def spec(self) -> dict[str, Any]:
        return {}

    def die_inside_a_plan(self) -> None:
        """Once; from then on its folder is copied."""
        template = self.folder.with_name("killed-inside-a-plan")
        if not template.exists():
            super().die_inside_a_plan()
            open_ = self.log().open_entries()
            assert sorted((self.lake / entry.output["path"]).exists() for _, entry in open_) == [False, True]
            shutil.copytree(self.folder, template)
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(template, self.folder, symlinks=True)

    def data_files(self) -> dict[Path, tuple[int, bytes]]:
        """(inode, bytes): a file that is written again is another one."""
        return {path: (path.stat().st_ino, path.read_bytes()) for path in self.lake.rglob("CDC*.csv")}

    def sink(self) -> dict[str, bytes]:
        """All objects by path, but for the claim, which names the state's folder."""
        store = LocalStore(self.lake)
        return {path: store.get(path).body for path, _ in store.list() if path != CLAIM}

    def plans(self, state: State) -> str:
        if not state.plans:
            return super().plans(state)
        open_ = [entry for _, entry in state.open_entries()]
        there = sum((self.lake / entry.output["path"]).exists() for entry in open_)
        return f"{super().plans(state)}, {there} of {len(open_)} files"

    def written(self, state: State) -> str:
        files = f"{len(self.data_files())} data files, {len(list(self.lake.rglob('CDC.index')))} indexes"
        if not published(self):
            return f"{files}; no metadata"
        return f"{files}; metadata {'at' if published(self) == state.checkpoint_ts else 'behind'} the log"

    def watch(self) -> Watch:
        return FileWatch(self)

    def check(self) -> None:
        result = asyncio.run(verify(self.lake.as_uri(), [f"http://{self.history.cluster.pd_address}"]))
        if not result.ok:
            raise Broken(f"verify: {result.first_problem}")
        if result.rows != self.history.rows:
            raise Broken(f"{result.rows} rows are in files, not {self.history.rows}")
        if published(self) != self.history.target_ts:
            raise Broken(f"not all is published: {self.found()}")


def published(world: FileWorld) -> int:
    try:
        return int(json.loads((world.lake / "metadata").read_text())["checkpoint-ts"])
    except FileNotFoundError:
        return 0


class FileWatch(Watch):
    """Remembers what it has seen."""

    def __init__(self, world: FileWorld) -> None:
        super().__init__(world)
        self._files_of = world
        self._observer = Observer(world.lake.as_uri(), format_of())
        self._files: dict[Path, tuple[int, bytes]] = {}

    def look(self) -> None:
        """Raises Broken when metadata or an index has gone back, a file has come late or was written again (O2)."""
        self._observer.look()
        for problem in self._observer.problems:
            raise Broken(problem)
        now = self._files_of.data_files()
        for path, was in self._files.items():
            if now.get(path) != was:
                raise Broken(f"{path.relative_to(self._files_of.folder)} was written again or is gone")
        self._files = now
