"""What `decide` asks for: the shapes of its actions, in the order in which they are done.

An action that fails ends the pass (`Event` and `KeepLog` aside, whose failure is logged only); the next pass observes
anew, so an action may be done twice, and never has to be undone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from changefeed.spec.reasons import Reason

Manifest = Mapping[str, Any]


@dataclass(frozen=True)
class Apply:
    """Server-side apply (`fieldManager: changefeed-operator`, force, `fieldValidation: Strict`) of a whole child."""

    manifest: Manifest


@dataclass(frozen=True)
class Create:
    """POST: an object that must not be edited when it is there. AlreadyExists ends the pass: observe again, soon."""

    manifest: Manifest


@dataclass(frozen=True)
class Delete:
    """DELETE with `uid` as precondition, background propagation.

    NotFound is success; a failed precondition (409) ends the pass. `grace_s` None: the object's own.
    """

    kind: str
    name: str
    uid: str
    grace_s: int | None = None


@dataclass(frozen=True)
class PatchStatus:
    """Server-side apply to the status subresource: `status` is all that the operator owns there, each time.

    `resource_version` is that of the Changefeed observed: a pass which saw an old state fails (409) instead of taking
    an attempt or a count of failures back.
    """

    status: Mapping[str, Any]
    resource_version: str


@dataclass(frozen=True)
class KeepLog:
    """Server-side apply of the ConfigMap that keeps the log of a failed attempt; that it fails ends nothing."""

    manifest: Manifest


@dataclass(frozen=True)
class SetFinalizer:
    """Merge patch of the Changefeed's finalizers, whole, over the `resource_version` observed; else 409."""

    finalizers: tuple[str, ...]
    resource_version: str


@dataclass(frozen=True)
class Event:
    """One Kubernetes event on the Changefeed."""

    reason: Reason
    message: str

    @property
    def type(self) -> str:
        return self.reason.sent.type if self.reason.sent else "Warning"


Action = Apply | Create | Delete | PatchStatus | SetFinalizer | KeepLog | Event


@dataclass(frozen=True)
class Decision:
    """`requeue_after`: seconds until the key must be looked at again though nothing happened; None: on events alone."""

    actions: tuple[Action, ...] = ()
    requeue_after: float | None = None
