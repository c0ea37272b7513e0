"""What the watches last said of each Changefeed: to tell events that matter, for metrics, and for one that is gone.

Nothing is decided from it while the object exists: passes read the API server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from changefeed_operator import api
from changefeed_operator.api import Json
from changefeed_operator.queue import Key

#: Conditions of the driver; a change of one of them matters.
_DRIVERS = ("SinkAvailable", "UpstreamAvailable", "WithinLag")

#: A driver that is a new one, or knows its start by now, matters; how far it has got does not.
_DRIVER_FIELDS = ("epoch", "clusterId", "startTs")

#: A driver that reports again after so many seconds was silent, which a pass has said of it or is about to.
SILENCE = 120.0


class Seen:
    """Changefeeds as they were last seen, deleted ones too until they are forgotten."""

    def __init__(self) -> None:
        self._last: dict[Key, Json] = {}
        self._live: set[Key] = set()

    def note(self, key: Key, event: str, changefeed: Json) -> bool:
        """Keep it; True when something changed that a pass must see. `event`: ADDED, MODIFIED, DELETED or ""."""
        before = self._last.get(key)
        self._last[key] = _lean(changefeed)
        if event == "DELETED":
            self._live.discard(key)
            return True
        known = key in self._live
        self._live.add(key)
        if not known or before is None:
            return True
        return essence(before) != essence(changefeed) or _reported(changefeed) - _reported(before) > SILENCE

    def last(self, key: Key) -> Json | None:
        """As it was last seen, alive or not."""
        return self._last.get(key)

    def forget(self, key: Key) -> None:
        """All has been done for it."""
        self._last.pop(key, None)
        self._live.discard(key)

    def live(self) -> Mapping[Key, Json]:
        """Those that exist."""
        return {key: self._last[key] for key in self._live}


def essence(changefeed: Json) -> tuple[Any, ...]:
    """What of a Changefeed matters to a pass. Not the operator's own fields, nor the driver's progress.

    A thousand drivers write their progress every ten seconds; a pass for each would be a hundred a second.
    """
    metadata = api.mapping_at(changefeed, "metadata")
    status = api.mapping_at(changefeed, "status")
    conditions = sorted(
        tuple(api.text_at(each, part) for part in ("type", "status", "reason"))
        for each in api.list_at(status, "conditions")
        if api.text_at(each, "type") in _DRIVERS
    )
    marks = ("uid", "generation", "labels", "annotations", "deletionTimestamp", "ownerReferences")
    return (
        *(metadata.get(name) for name in marks),
        *(status.get(name) for name in _DRIVER_FIELDS),
        conditions,
    )


def _reported(changefeed: Json) -> float:
    """Unix seconds of the driver's last report, 0 for none."""
    fields = api.list_at(changefeed, "metadata", "managedFields")
    mine = (each for each in fields if api.text_at(each, "manager") == api.DRIVER_FIELD_MANAGER)
    return max((api.time_at(each, "time") or 0.0 for each in mine), default=0.0)


def _lean(changefeed: Json) -> Json:
    """Without the managed fields of all but the driver, which are most of it."""
    fields = api.list_at(changefeed, "metadata", "managedFields")
    kept = [each for each in fields if api.text_at(each, "manager") == api.DRIVER_FIELD_MANAGER]
    return {**changefeed, "metadata": {**api.mapping_at(changefeed, "metadata"), "managedFields": kept}}
