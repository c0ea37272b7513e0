"""A folder for what Spark keeps on this machine while a run lasts, and the removal of those that killed runs have left.

A driver holds a lock on its folder for its life. The kernel drops it however the driver ends, so a folder without a
lock is nobody's. A folder that is still somebody's must never be removed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "changefeed-scratch-"


class Scratch:
    """`folder` is this run's own; `log` is a file beside it, for Spark's output."""

    def __init__(self, root: Path | None = None) -> None:
        """`root`: the system's folder for temporary files. What killed runs have left there is removed."""
        root = root or Path(tempfile.gettempdir())
        for left in root.glob(f"{_PREFIX}*/"):
            _remove_if_nobodys(left)
        lock = None
        while lock is None:  # another start may take it for a left one before we have locked it
            self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
            lock = _lock(self.folder)
        self._lock = lock
        self.log = _log(self.folder)

    def remove(self, keep_log: bool) -> None:
        """The run is over; `keep_log`: somebody was told to read it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if not keep_log:
            self.log.unlink(missing_ok=True)
        os.close(self._lock)


def _log(folder: Path) -> Path:
    return folder.with_suffix(".log")


def _remove_if_nobodys(folder: Path) -> None:
    lock = _lock(folder)
    if lock is not None:
        shutil.rmtree(folder, ignore_errors=True)
        _log(folder).unlink(missing_ok=True)
        os.close(lock)


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the folder; None when another process does, or it is gone or not ours."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except (FileNotFoundError, PermissionError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_uid == os.geteuid() and folder.exists():
            return descriptor
    except BlockingIOError:
        pass
    os.close(descriptor)
    return None
