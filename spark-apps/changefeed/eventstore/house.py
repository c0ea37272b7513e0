"""Where segments stand: each driver run has a house of its own, `<state>/events/<epoch>-<nonce>/` (rule 21).

It must never delete another run's segments, except those of lower epochs.
"""

from __future__ import annotations

import errno
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from changefeed.errors import Unavailable
from changefeed.objectstore.open import local_path

_HOUSE_NAME = re.compile(r"(\d+)-(.+)")
_TASK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_BEING_WRITTEN = (errno.ENOTEMPTY, errno.ENOENT)


@dataclass(frozen=True)
class House:
    """The segments of one driver run. `state`: the changefeed's own state URI, `file://...`."""

    state: str
    epoch: int
    nonce: str

    @property
    def run(self) -> str:
        """`<epoch>-<nonce>`, the name by which footers and manifests know the run."""
        return f"{self.epoch}-{self.nonce}"

    @property
    def folder(self) -> Path:
        return self._events / self.run

    def segment_path(self, task: str, seq: int) -> Path:
        """`task`: one task attempt, unique in the run. `seq`: 1, 2, 3 ... within it."""
        if not _TASK_NAME.fullmatch(task):
            raise ValueError(f"not a task attempt's name: {task!r}")
        return self.folder / task / f"{seq:020}.arrow"

    def delete_segment(self, uri: str) -> None:
        """Delete a segment of this run that no plan needs any more; no error when it is gone already.

        Raises ValueError for a segment that is not this run's, Unavailable.
        """
        path = local_path(uri)
        if self.folder not in path.parents:
            raise ValueError(f"{uri} is not a segment of run {self.run}")
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise _unavailable(path, error) from error

    def delete_lower_epochs(self) -> list[str]:
        """Delete the houses of lower epochs; only after this driver's own epoch record (rule 21). Their names.

        A house into which a late task still writes may stay: the next driver deletes it. Raises Unavailable.
        """
        deleted = []
        for house in sorted(self._events.glob("*-*")):
            name = _HOUSE_NAME.fullmatch(house.name)
            if name is None or int(name[1]) >= self.epoch:
                continue
            try:
                shutil.rmtree(house)
            except OSError as error:
                if error.errno not in _BEING_WRITTEN:
                    raise _unavailable(house, error) from error
            else:
                deleted.append(house.name)
        return deleted

    @property
    def _events(self) -> Path:
        return local_path(self.state) / "events"


def _unavailable(path: Path, error: OSError) -> Unavailable:
    return Unavailable(f"Cannot delete {path}: {error.strerror}.", "Let this user write there, then start again.")
