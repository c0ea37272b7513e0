"""Deletes segments that are no longer needed. What can't be deleted is logged and retried next time."""

from __future__ import annotations

from changefeed.errors import ChangefeedError
from changefeed.eventstore.run_folder import RunFolder
from changefeed.objectstore.patience import PASSING
from changefeed.owner.patience import in_thread
from changefeed.owner.pulling.known_files import KnownFiles
from changefeed.owner.reporting.meter import Meter

_WHO = "deletion"


class Deletion:
    """Deletes segments of one run; a segment counts for the quota of the event store until it is gone."""

    def __init__(self, run_folder: RunFolder, files: KnownFiles, meter: Meter) -> None:
        self._run_folder = run_folder
        self._files = files
        self._meter = meter
        self._left: list[str] = []

    async def delete(self, uris: list[str]) -> None:
        """These, and what is left. Waits for nothing. Raises NeedsHuman."""
        self._left += uris
        if not self._left:
            return
        wanted = self._left.copy()
        error = await in_thread(self._delete, self._left)
        for uri in wanted[len(self._left) :]:
            self._files.deleted(uri)
        if error is None:
            self._meter.store_works(_WHO)
        else:
            self._meter.store_failed(_WHO, error)

    def _delete(self, uris: list[str]) -> ChangefeedError | None:
        try:
            while uris:
                self._run_folder.delete_segment(uris[-1])
                uris.pop()
        except PASSING as error:
            return error
        return None
