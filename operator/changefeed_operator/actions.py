"""The actions that `decide` returns, executed in order.

A failed action ends the pass, except `EmitEvent` and `KeepLog`, whose failure is only logged. The next pass observes
again, so an action may be repeated and never has to be undone.
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
    """POST: an object that must not be edited if it exists. AlreadyExists ends the pass; another follows soon."""

    manifest: Manifest


@dataclass(frozen=True)
class DeleteObject:
    """DELETE with `uid` as a precondition and background propagation.

    NotFound is success; a failed precondition (409) ends the pass. `grace_s` None: the object's own.
    """

    kind: str
    name: str
    uid: str
    grace_s: int | None = None


@dataclass(frozen=True)
class PatchStatus:
    """Server-side apply to the status subresource: `status` is always everything the operator owns there.

    `resource_version` is that of the observed Changefeed: a pass that saw stale state fails (409) instead of reverting
    an attempt or a failure count.
    """

    status: Mapping[str, Any]
    resource_version: str


@dataclass(frozen=True)
class KeepLog:
    """Server-side apply of the ConfigMap with the log of a failed attempt; a failure does not end the pass."""

    manifest: Manifest


@dataclass(frozen=True)
class SetFinalizer:
    """Merge patch of the whole list of the Changefeed's finalizers; 409 if `resource_version` is stale."""

    finalizers: tuple[str, ...]
    resource_version: str


@dataclass(frozen=True)
class EmitEvent:
    """One Kubernetes event on the Changefeed."""

    reason: Reason
    message: str

    @property
    def type(self) -> str:
        return self.reason.sent.type if self.reason.sent else "Warning"


Action = Apply | Create | DeleteObject | PatchStatus | SetFinalizer | KeepLog | EmitEvent


@dataclass(frozen=True)
class Decision:
    """What a pass decides: its actions, and when to look again.

    `requeue_after`: seconds until the key is reconciled again without an event; None: on events only.
    """

    actions: tuple[Action, ...] = ()
    requeue_after: float | None = None
