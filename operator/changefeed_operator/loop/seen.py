"""What the watches last said of each Changefeed: to tell events that matter, and for metrics.

Nothing is decided from it while the object exists: passes read the API server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from changefeed_operator import api
from changefeed_operator.api import Json
from changefeed_operator.decision.evidence.pods import ended
from changefeed_operator.loop.queue import Key

#: Conditions of the driver; a change of one of them matters.
_DRIVERS = ("SinkAvailable", "UpstreamAvailable", "WithinLag")

#: A driver that is a new one, or knows its start by now, matters; how far it has got does not.
_DRIVER_FIELDS = ("epoch", "clusterId", "startTs", "eventStoreMode")

#: A driver that reports again after so many seconds was silent, which a pass has said of it or is about to.
SILENCE = 120.0


#: So many executors that ended are kept of each changefeed.
ENDS_KEPT = 5


class Seen:
    """Changefeeds as they were last seen."""

    def __init__(self) -> None:
        self._last: dict[Key, Json] = {}
        self._modes: dict[Key, str] = {}
        self._ends: dict[Key, dict[str, Json]] = {}  # by uid, the oldest first

    def note(self, key: Key, event: str, changefeed: Json) -> bool:
        """Keep it; True when something changed that a pass must see. `event`: ADDED, MODIFIED, DELETED or ""."""
        before = self._last.pop(key, None)
        if event == "DELETED":
            return True
        self._last[key] = _lean(changefeed)
        if before is None:
            return True
        return essence(before) != essence(changefeed) or _reported(changefeed) - _reported(before) > SILENCE

    def note_pod(self, key: Key, pod: Json) -> None:
        """Keep an executor that has ended: Spark deletes it at once, before a pass can see it."""
        if api.label_of(pod, api.ROLE_LABEL) != "executor" or not ended(pod):
            return
        ends = self._ends.setdefault(key, {})
        ends[api.uid_of(pod)] = pod
        while len(ends) > ENDS_KEPT:
            ends.pop(next(iter(ends)))

    def executor_ends(self, key: Key) -> tuple[Json, ...]:
        """Of the newest that have ended, as they were last seen."""
        return tuple(self._ends.get(key, {}).values())

    def mode(self, key: Key, changefeed: Json) -> str:
        """The mode of its event store as of the last call, "" at the first; a restart of the operator forgets it."""
        before = self._modes.get(key, "")
        self._modes[key] = api.text_at(changefeed, "status", "eventStoreMode")
        return before

    def forget(self, key: Key) -> None:
        """It is not ours, or is gone."""
        self._modes.pop(key, None)
        self._last.pop(key, None)
        self._ends.pop(key, None)

    def live(self) -> Mapping[Key, Json]:
        """Those that exist."""
        return dict(self._last)


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
    marks = ("uid", "generation", "labels", "annotations", "deletionTimestamp", "ownerReferences", "finalizers")
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
