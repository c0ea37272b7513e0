"""Every word that the operator has for what happens to a changefeed, in one table; docs/reference/events.md is made of
it.

A word may stand in three places: as the reason of Ready, Reconciling and Stalled, as the reason of an event, and as the
class of a failure in `status.restarts`. `HistoryHeld`, which is about something else, has words of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Self

State = Literal["Pending", "Normal", "Warning", "Failed", "Stopped", "Finished"]


@dataclass(frozen=True)
class Shown:
    """What the conditions and the state are with a word. `beside`: also while the checkpoint follows all the same."""

    means: str
    state: State
    is_ready: bool = False
    is_stalled: bool = False
    beside: bool = False

    @property
    def is_reconciling(self) -> bool:
        return not self.is_ready and not self.is_stalled


@dataclass(frozen=True)
class Sent:
    """The event with a word: sent when something changes, and once for each change."""

    means: str
    todo: str = "Nothing."
    type: Literal["Normal", "Warning"] = "Warning"


@dataclass(frozen=True)
class Policy:
    """After a failure of that class. `budget`: failures in a row after which a person is needed; None: never. Waits
    double from `first_s`."""

    means: str
    first_s: float
    most_s: float
    budget: int | None = None


class Reason(StrEnum):
    """A word and its places; None where it does not stand.

    A driver that stopped for a person gives its own class as the reason of the conditions instead of `STALLED`.
    """

    shown: Shown | None
    sent: Sent | None
    policy: Policy | None

    def __new__(
        cls, word: str, shown: Shown | None = None, sent: Sent | None = None, policy: Policy | None = None
    ) -> Self:
        made = str.__new__(cls, word)
        made._value_ = word
        made.shown, made.sent, made.policy = shown, sent, policy
        return made

    ATTEMPT_CREATED = (
        "AttemptCreated",
        None,
        Sent("A SparkApplication was made; its number and its spec's hash are in the message.", type="Normal"),
    )
    ATTEMPT_FAILED = (
        "AttemptFailed",
        None,
        Sent(
            "An attempt ended by itself; the message says why.",
            "Nothing, unless it comes again: `status.lastError` holds the error and the time of the next attempt.",
        ),
    )
    RUNNING = (
        "Running",
        Shown("The checkpoint moves.", "Normal", is_ready=True),
        Sent("The driver reports, and the checkpoint moves.", type="Normal"),
    )
    IDLE = "Idle", Shown("It moves, and the selected tables do not change.", "Normal", is_ready=True)
    CATCHING_UP = "CatchingUp", Shown("The lag is above `spec.lagThreshold`.", "Warning", is_ready=True)
    BLOCKED_BY_LOCK = (
        "BlockedByLock",
        Shown("A transaction's locks hold the checkpoint back.", "Warning", is_ready=True),
        Sent("A transaction's locks hold the checkpoint back.", "Commit it or roll it back."),
    )
    PAUSED = (
        "Paused",
        Shown("As asked: nothing runs.", "Stopped", is_ready=True),
        Sent(
            "The pause is reached: nothing runs. A CronJob renews the hold on the upstream's history.",
            "Set `spec.paused: false` to go on.",
            "Normal",
        ),
    )
    FINISHED = (
        "Finished",
        Shown("`spec.targetTs` is reached.", "Finished", is_ready=True),
        Sent(
            "Everything up to `spec.targetTs` is in the sink.", "Raise it to go on, or delete the changefeed.", "Normal"
        ),
    )
    STARTING = "Starting", Shown("An attempt is on its way to its first report.", "Pending")
    REFUSED = (
        "Refused",
        Shown("The API server refuses an object or a pod of the changefeed.", "Warning", beside=True),
        Sent(
            "The API server refuses an object of the changefeed, or a pod that Spark creates: a quota, a LimitRange, a "
            "policy, Pod Security, a webhook, a missing right. The message has its words.",
            "Ask for less in `spec.spark`, or have that rule changed.",
        ),
    )
    DRIVER_PENDING = (
        "DriverPending",
        Shown("The driver's pod is on a node and does not start; after 10 minutes it is made anew.", "Warning"),
        Sent(
            "The driver's pod is on a node and does not start; the message has the kubelet's words, such as the name "
            "of a Secret that is missing.",
            "Create what is missing; the pod starts by itself then.",
        ),
    )
    UNSCHEDULABLE = (
        "Unschedulable",
        Shown("No node takes the driver's pod; after 15 minutes it is made anew.", "Warning"),
        Sent("No node takes the driver's pod.", "Make room, or ask for less in `spec.spark`."),
        Policy("No node took it in 15 minutes.", 60, 600),
    )
    IMAGE_PULL_FAILED = (
        "ImagePullFailed",
        Shown("The image can't be pulled; after 5 minutes the pod is made anew.", "Warning"),
        Sent("The data plane's image can't be pulled.", "Mend `spec.spark.image`, or the access to its registry."),
    )
    EXECUTORS_PENDING = (
        "ExecutorsPending",
        Shown("An executor's pod does not start, or Spark has not made it.", "Warning"),
        Sent("The driver runs, an executor's pod does not start.", "As for the driver's pod."),
    )
    EXECUTOR_OUT_OF_MEMORY = (
        "ExecutorOutOfMemory",
        Shown("An executor was killed for its memory within the last five minutes.", "Warning", beside=True),
        Sent(
            "An executor was killed for its memory, and Spark replaces it.",
            "Raise `spec.spark.executor.memory` if it comes again.",
        ),
    )
    SINK_UNAVAILABLE = (
        "SinkUnavailable",
        Shown("The driver can't write.", "Warning"),
        Sent("The driver can't write to the sink; it tries again.", "Look at the sink, and at the credentials."),
    )
    UPSTREAM_UNAVAILABLE = (
        "UpstreamUnavailable",
        Shown("PD or TiKV does not answer.", "Warning"),
        Sent("PD or TiKV does not answer the driver; it tries again.", "Look at the upstream and the network to it."),
    )
    BUFFER_OVERFLOWED = (
        "BufferOverflowed",
        None,
        Sent(
            "Changes came faster than they were written: the pullers' memory for new segments is full, and they go "
            "through the archive.",
            "Nothing while `WithinLag` is True; else raise `spec.eventStore.bufferSize`, or give it more executors.",
        ),
    )
    BUFFER_IN_USE = (
        "BufferInUse",
        None,
        Sent("The archive is read up; new segments are read in memory again.", type="Normal"),
    )
    DRIVER_SILENT = (
        "DriverSilent",
        Shown("No report for 5 minutes, or none 3 minutes after the start.", "Warning"),
        Sent("The driver runs, but reports nothing.", "Look at its log, and at its way to the API server."),
    )
    DRAINING = (
        "Draining",
        Shown("The driver was asked to stop.", "Pending"),
        Sent(
            "The driver was asked to stop: a pause, or another spec. It has `spec.drainTimeout` for it.",
            "Wait.",
            "Normal",
        ),
    )
    CLEANING_UP = (
        "CleaningUp",
        Shown("What is left of the attempt before goes away; the next one waits for it.", "Pending"),
    )
    BACK_OFF = (  # AttemptFailed has told of it
        "BackOff",
        Shown("The attempt failed; `status.lastError.nextRetryTime` says when the next one starts.", "Warning"),
    )
    DELETING = (
        "Deleting",
        Shown("Its driver drains, then a Job closes its log; the message says what is waited for.", "Pending"),
    )
    INVALID_SPEC = (
        "InvalidSpec",
        Shown("The spec can't run.", "Failed", is_stalled=True),
        Sent(
            "The spec can't run; the message names the field and what is allowed.",
            "Mend it. What ran before goes on running.",
        ),
    )
    STALLED = (
        "Stalled",
        Shown("A person is needed.", "Failed", is_stalled=True),
        Sent("A person is needed; the message says for what.", "Do that, then give `spec.restartNonce` another value."),
    )
    POD_FORCE_DELETED = (
        "PodForceDeleted",
        None,
        Sent(
            "A pod on a lost node was asked to go, or one outlived its grace by two minutes: it was deleted by force. "
            "What lives on there is fenced by the log and writes nothing.",
            "Look at the node.",
        ),
    )
    RECONCILE_PAUSED = (
        "ReconcilePaused",
        None,
        Sent(
            "The annotation `changefeed.dev/reconcile: paused` is set: the operator changes, repairs and restarts "
            "nothing.",
            "Remove the annotation to hand the changefeed back.",
        ),
    )
    CHILD_REPAIRED = (
        "ChildRepaired",
        None,
        Sent(
            "A child of the changefeed was deleted, or its data differed from what the operator had written; the "
            "message names it and the fields. It was put back within a minute. The changefeed runs its accepted "
            "spec all the while.",
            "Find out who did it: `kubectl get KIND NAME -o yaml --show-managed-fields`.",
        ),
    )
    HOLD_FAILED = (
        "HoldFailed",
        None,
        Sent(
            "A Job could not renew the hold on the upstream's history; the message and `status.hold.lastError` say "
            "why.",
            "What the message says. `status.hold.until` is the time that is left.",
        ),
    )
    HOLD_LOST = (
        "HoldLost",
        None,
        Sent(
            "The hold has ended, or GC has already passed it: the upstream may have cleaned up what is still to be "
            "read.",
            "[ChangefeedHistoryNotHeld](../runbooks/ChangefeedHistoryNotHeld.md).",
        ),
    )
    CLOSED = (
        "Closed",
        None,
        Sent("The changefeed was deleted: its log is closed, the upstream may clean up.", type="Normal"),
    )
    CLOSE_FAILED = (
        "CloseFailed",
        None,
        Sent(
            "It is being deleted and its log could not be closed; the message says why. It is tried again for an hour.",
            "What the message says, or set `spec.deletionPolicy: Retain` to give it up.",
        ),
    )
    CLOSE_GIVEN_UP = (
        "CloseGivenUp",
        None,
        Sent("It was deleted without closing its log.", "`changefeed gc --state URI` finds what is left."),
    )
    SUBMISSION = (
        "Submission",
        None,
        None,
        Policy(
            "The Spark operator did not take the SparkApplication up in 3 minutes, or could not submit it: the API "
            "server refused the driver's pod, or did not answer.",
            10,
            300,
        ),
    )
    DRIVER_START = (
        "DriverStart",
        None,
        None,
        Policy("The driver's pod did not start in 10 minutes; often a Secret that is missing.", 10, 300),
    )
    IMAGE_PULL = "ImagePull", None, None, Policy("The image could not be pulled in 5 minutes.", 60, 600)
    FAST_FAIL = "FastFail", None, None, Policy("The driver ended within a minute of its start.", 10, 600)
    CRASH = "Crash", None, None, Policy("The driver ended with an error.", 5, 600)
    HUNG = (
        "Hung",
        None,
        None,
        Policy("The driver did not answer its liveness probe, and the kubelet killed it.", 5, 300),
    )
    OOM = (
        "OutOfMemory",
        None,
        None,
        Policy("The driver was killed for its memory: raise `spec.spark.driver.memory`.", 10, 300, budget=4),
    )
    UNAVAILABLE = (
        "Unavailable",
        None,
        None,
        Policy("Upstream or sink did not answer for longer than the driver waits (exit 69).", 10, 300),
    )
    FENCED = (
        "Fenced",
        None,
        None,
        Policy(
            "Another driver took the changefeed over (exit 75): a second operator, or a local run. Or, as class "
            "`ForeignConfig` of `status.lastError`: the driver found another config than the accepted one, which the "
            "operator puts back.",
            10,
            300,
        ),
    )
    LOST = (
        "Lost",
        None,
        None,
        Policy("Somebody took the SparkApplication or the driver's pod away: an eviction, `kubectl delete`.", 1, 60),
    )
    STUCK = (
        "Stuck",
        None,
        None,
        Policy(
            "The SparkApplication stayed without a driver pod for 3 minutes, as PENDING_RERUN or INVALIDATING.", 5, 300
        ),
    )


class Held(StrEnum):
    """The reasons of HistoryHeld, each with the condition's status."""

    status: Literal["True", "False", "Unknown"]
    means: str

    def __new__(cls, word: str, status: Literal["True", "False", "Unknown"], means: str) -> Self:
        made = str.__new__(cls, word)
        made._value_ = word
        made.status, made.means = status, means
        return made

    HELD = "Held", "True", "By the driver, which renews it each minute, or by a Job."
    NOT_RENEWED = "NotRenewed", "True", "It still lasts; the last renewal failed, and the message says why."
    NOT_HELD_YET = "NotHeldYet", "Unknown", "Nobody has said so yet: a start is under way."
    NOT_HELD = "NotHeld", "False", "It could never be held; the message says why."
    LAPSED = "Lapsed", "False", "It has ended. A driver or a Job that gets it back in time mends this."
    LOST = "SnapshotLostByGC", "False", "GC has passed it."
    NOTHING_TO_HOLD = "NothingToHold", "False", "It has not started and has no `startTs`."
    FINISHED = "Finished", "False", "`spec.targetTs` is reached."
