"""The last watched state of each Changefeed and its children: to filter out irrelevant events, for metrics, and for
passes with nothing to do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from changefeed_operator import api
from changefeed_operator.api import Json
from changefeed_operator.decision.conditions import DRIVERS_CONDITIONS
from changefeed_operator.decision.evidence.pods import ended
from changefeed_operator.decision.progress import unmatched
from changefeed_operator.loop.queue import Key

#: The driver's fields whose changes trigger a pass; its progress does not.
_DRIVER_FIELDS = ("epoch", "clusterId", "startTs", "eventStoreMode")

#: A report after this many seconds triggers a pass: the driver may have been reported as silent.
SILENCE = 120.0


#: How many terminated executors are kept per changefeed.
ENDS_KEPT = 5


class SeenObjects:
    """Changefeeds and their children as last seen."""

    def __init__(self) -> None:
        self._last: dict[Key, Json] = {}
        self._children: dict[Key, dict[str, str]] = {}  # by uid; as text, which takes a quarter of the memory
        self._of: dict[str, Key] = {}  # by uid of a child
        self._modes: dict[Key, str] = {}
        self._unmatched: dict[Key, str] = {}
        self._ends: dict[Key, dict[str, Json]] = {}  # by uid, the oldest first

    def note(self, key: Key, event: str, changefeed: Json) -> bool:
        """Keep it; True if the change needs a pass. `event`: ADDED, MODIFIED, DELETED, "" (listed)."""
        before = self._last.pop(key, None)
        if event == "DELETED":
            return True
        self._last[key] = api.lean(changefeed)
        if before is None or not event:
            return True
        return essence(before) != essence(changefeed) or _reported(changefeed) - _reported(before) > SILENCE

    def note_child(self, kind: api.Kind, key: Key, event: str, child: Json) -> set[Key]:
        """Keep it. Terminated executors are kept beyond their deletion: Spark deletes them before a pass can see them.

        Returns the changefeeds that it belongs to, and that it belonged to if its label has changed.
        """
        uid = api.uid_of(child)
        before = self._of.pop(uid, key)
        self._children.get(before, {}).pop(uid, None)
        if event != "DELETED":
            whole = {"apiVersion": kind.api_version, "kind": kind.kind, **api.lean(child)}
            self._children.setdefault(key, {})[uid] = json.dumps(whole, separators=(",", ":"))
            self._of[uid] = key
        if kind is api.POD:
            self._note_end(key, child)
        return {before, key}

    def _note_end(self, key: Key, pod: Json) -> None:
        if api.label_of(pod, api.ROLE_LABEL) != "executor" or not ended(pod):
            return
        ends = self._ends.setdefault(key, {})
        ends[api.uid_of(pod)] = pod
        while len(ends) > ENDS_KEPT:
            ends.pop(next(iter(ends)))

    def executor_ends(self, key: Key) -> tuple[Json, ...]:
        """The most recently terminated ones, as last seen."""
        return tuple(self._ends.get(key, {}).values())

    def children(self, key: Key) -> tuple[Json, ...]:
        """All objects labelled with its name, as last seen."""
        return tuple(json.loads(child) for child in self._children.get(key, {}).values())

    def changefeed(self, key: Key) -> Json | None:
        """Return it as last seen; None if it is not ours, or gone."""
        return self._last.get(key)

    def mode(self, key: Key) -> str:
        """The mode of its event store as a pass last saw it, "" before the first; lost when the operator restarts."""
        return self._modes.get(key, "")

    def unmatched(self, key: Key) -> str:
        """What its driver said of rules that match nothing, as a pass last saw it; lost when the operator restarts."""
        return self._unmatched.get(key, "")

    def keep_told(self, key: Key, changefeed: Json) -> None:
        """Note what a pass has seen of the driver's report. While no driver reports, rules are as they were."""
        self._modes[key] = api.text_at(changefeed, "status", "eventStoreMode")
        if (said := unmatched(changefeed)) is not None:
            self._unmatched[key] = said

    def clear(self) -> None:
        """Everything is about to be listed again: whatever isn't listed then is gone."""
        for known in (self._last, self._children, self._of):
            known.clear()

    def forget(self, key: Key) -> None:
        """It is not ours, or gone."""
        for known in (self._modes, self._unmatched, self._last, self._ends):
            known.pop(key, None)
        if not self._children.get(key):
            self._children.pop(key, None)

    def live(self) -> Mapping[Key, Json]:
        """The existing Changefeeds."""
        return dict(self._last)


def essence(changefeed: Json) -> tuple[Any, ...]:
    """The parts of a Changefeed that matter to a pass: neither the operator's own fields nor the driver's progress.

    A thousand drivers report progress every ten seconds; a pass for each report would be a hundred per second.
    """
    metadata = api.mapping_at(changefeed, "metadata")
    status = api.mapping_at(changefeed, "status")
    conditions = sorted(
        tuple(api.text_at(each, part) for part in ("type", "status", "reason"))
        for each in api.list_at(status, "conditions")
        if api.text_at(each, "type") in DRIVERS_CONDITIONS
    )
    marks = ("uid", "generation", "labels", "annotations", "deletionTimestamp", "ownerReferences", "finalizers")
    return (
        *(metadata.get(name) for name in marks),
        *(status.get(name) for name in _DRIVER_FIELDS),
        conditions,
        unmatched(changefeed),
    )


def _reported(changefeed: Json) -> float:
    """Unix seconds of the driver's last report, 0 if there is none."""
    fields = api.list_at(changefeed, "metadata", "managedFields")
    mine = (each for each in fields if api.text_at(each, "manager") == api.DRIVER_FIELD_MANAGER)
    return max((api.time_at(each, "time") or 0.0 for each in mine), default=0.0)
