"""Where segments stand: each driver run has a folder of its own, `<state>/events/<epoch>-<nonce>/` (rule 21).

It must never delete another run's segments, except those of lower epochs.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from changefeed.eventstore.files import EVENTS, Fill, LocalSegments, SegmentFiles, StoredSegments
from changefeed.objectstore import Location
from changefeed.objectstore.local import LocalStore
from changefeed.objectstore.open import open_store
from changefeed.objectstore.patience import Patience

_RUN_NAME = re.compile(r"(\d+)-(.+)")
_TASK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class RunFolder:
    """The segments of one driver run. `state`: the changefeed's own state; nothing is opened before it is needed.

    `patience`: of creating and opening segments; what can't be deleted raises at once.
    """

    state: Location
    epoch: int
    nonce: str
    patience: Patience = field(default_factory=Patience, compare=False)

    @property
    def run(self) -> str:
        """`<epoch>-<nonce>`, the name by which footers and manifests know the run."""
        return f"{self.epoch}-{self.nonce}"

    @property
    def spool_folder(self) -> Path:
        """Say where tasks of this run spool, on this machine. A later driver on it clears what a killed one left."""
        return self._files.scratch / self.run / "spool"

    @property
    def compression(self) -> str | None:
        return self._files.compression

    @property
    def is_mapped(self) -> bool:
        """Tell whether segments are files of this machine, which are read where they stand."""
        return isinstance(self._files, LocalSegments)

    def create_segment(self, task: str, seq: int, fill: Fill) -> tuple[str, int]:
        """(URI, size) of a new segment, written by `fill`. Raises AlreadyExists, Unavailable; nothing is left then.

        `task`: one task attempt, unique in the run. `seq`: 1, 2, 3 ... within it.
        """
        uri = self.segment_uri(task, seq)
        return uri, self._files.create(self._path(uri, EVENTS), fill)

    def segment_uri(self, task: str, seq: int) -> str:
        """Say where a segment stands once it is created."""
        if not _TASK_NAME.fullmatch(task):
            raise ValueError(f"not a task attempt's name: {task!r}")
        return f"{self._root}/{EVENTS}/{self.run}/{task}/{seq:020}.arrow"

    def open_segment(self, uri: str, size: int) -> contextlib.AbstractContextManager[pa.NativeFile]:
        """A segment of the changefeed for random access. See `SegmentFiles.open` for errors."""
        return self._files.open(self._path(uri, EVENTS), size)

    def delete_segment(self, uri: str) -> None:
        """Delete a segment of this run that no plan needs any more; no error when it is gone already.

        Raises ValueError for a segment that is not this run's, Unavailable, Transient.
        """
        self._files.delete(self._path(uri, f"{EVENTS}/{self.run}"))

    def delete_lower_epochs(self) -> list[str]:
        """Delete the folders of lower epochs; only after this driver's own epoch record (rule 21). Their names.

        A folder into which a late task still writes may stay: the next one deletes it. Raises Unavailable, Transient.
        """
        lower = []
        for name in self._files.run_folders():
            found = _RUN_NAME.fullmatch(name)
            if found is not None and int(found[1]) < self.epoch:
                lower.append(name)
        return [name for name in lower if self._files.delete_run_folder(name)]

    def delete(self) -> None:
        """Delete it with all segments left: nobody reads any of this run any more. Raises Unavailable, Transient."""
        self._files.delete_run_folder(self.run)

    def clear_spool(self) -> None:
        """Remove what this run has spooled on this machine; at its end."""
        shutil.rmtree(self.spool_folder, ignore_errors=True)

    @cached_property
    def _files(self) -> SegmentFiles:
        store = open_store(self.state.uri, "spec.state.uri", self.state.secret)
        if isinstance(store, LocalStore):
            return LocalSegments(store.root, self.patience)
        return StoredSegments(store, self.patience)

    @property
    def _root(self) -> str:
        """Return the root of segments' URIs, without parameters: these say how to get there, not what it is."""
        return self._files.uri.partition("?")[0]

    def _path(self, uri: str, folder: str) -> str:
        path = uri.removeprefix(f"{self._root}/")
        if path == uri or not path.startswith(f"{folder}/"):
            raise ValueError(f"{uri} is not a segment of run {self.run}")
        return path
