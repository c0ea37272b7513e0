"""Every reason the operator reports for a changefeed, in one table; docs/reference/events.md is generated from it.

A reason can appear in three ways: on the conditions Ready, Reconciling and Stalled, on an event, and as a failure
class in `status.restarts`. The condition `HistoryHeld` has its own set.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Self

State = Literal["Pending", "Normal", "Warning", "Failed", "Stopped", "Finished"]


@dataclass(frozen=True)
class Shown:
    """The conditions and state that go with a reason. `beside`: it can also appear while the changefeed is Ready."""

    means: str
    state: State
    is_ready: bool = False
    is_stalled: bool = False
    beside: bool = False
    todo: str = "Nothing."  # where no event says it

    @property
    def is_reconciling(self) -> bool:
        return not self.is_ready and not self.is_stalled


@dataclass(frozen=True)
class Sent:
    """The event that goes with a reason; sent once per change."""

    means: str
    todo: str = "Nothing."
    type: Literal["Normal", "Warning"] = "Warning"


@dataclass(frozen=True)
class Policy:
    """How failures of a class are retried: waits double from `first_s` up to `most_s`. More than `budget` failures in a
    row require manual intervention; None: retried forever."""

    means: str
    first_s: float
    most_s: float
    budget: int | None = None


class Reason(StrEnum):
    """A reason and where it appears; None where it doesn't.

    When the driver stopped with an error that requires manual intervention, the conditions carry the error's class
    instead of `STALLED`.
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
        Sent("A SparkApplication was created; the message has the attempt number and the spec hash.", type="Normal"),
    )
    ATTEMPT_FAILED = (
        "AttemptFailed",
        None,
        Sent(
            "An attempt failed; the message says why.",
            "Nothing, unless it recurs. `status.lastError` has the error and the time of the next attempt.",
        ),
    )
    RUNNING = (
        "Running",
        Shown("The checkpoint is advancing.", "Normal", is_ready=True),
        Sent("The driver is reporting and the checkpoint is advancing.", type="Normal"),
    )
    IDLE = "Idle", Shown("The checkpoint is advancing; the selected tables have no changes.", "Normal", is_ready=True)
    CATCHING_UP = (
        "CatchingUp",
        Shown(
            "The checkpoint lags by more than `spec.lagThreshold`.",
            "Warning",
            is_ready=True,
            todo="After a start or a pause, wait; otherwise see [ChangefeedLagging](../runbooks/ChangefeedLagging.md).",
        ),
    )
    BLOCKED_BY_LOCK = (
        "BlockedByLock",
        Shown("An open transaction's locks hold back the checkpoint.", "Warning", is_ready=True),
        Sent(
            "An open transaction's locks hold back the checkpoint.",
            "Commit the transaction or roll it back "
            "([ChangefeedBlockedByTransaction](../runbooks/ChangefeedBlockedByTransaction.md)).",
        ),
    )
    PAUSED = (
        "Paused",
        Shown("Paused as requested; nothing is running. The upstream's history is held.", "Stopped", is_ready=True),
        Sent(
            "The changefeed is paused and nothing is running. A CronJob renews the hold on the upstream's history.",
            "Set `spec.paused: false` to resume. Delete it rather than leave it paused for weeks.",
            "Normal",
        ),
    )
    FINISHED = (
        "Finished",
        Shown("`spec.targetTs` has been reached.", "Finished", is_ready=True),
        Sent(
            "Everything up to `spec.targetTs` is in the sink.",
            "Raise it to continue, or delete the changefeed.",
            "Normal",
        ),
    )
    STARTING = "Starting", Shown("An attempt is starting; its driver has not reported yet.", "Pending")
    NO_SPARK_OPERATOR = (
        "NoSparkOperator",
        Shown("The cluster serves no SparkApplications that the operator may use; nothing can be started.", "Warning"),
        Sent(
            "The cluster serves no SparkApplications that the operator may use; nothing can be started, paused or "
            "closed.",
            "Install the Spark operator that the message names, or change the chart's `spark.operator`.",
        ),
    )
    REFUSED = (
        "Refused",
        Shown(
            "The API server rejects one of the changefeed's objects or pods; the message quotes it.",
            "Warning",
            beside=True,
        ),
        Sent(
            "The API server rejects one of the changefeed's objects, or a pod that Spark creates, because of a quota, "
            "a LimitRange, a policy, Pod Security, a webhook or a missing permission. The message quotes it.",
            "Request less in `spec.spark`, or have the rule changed.",
        ),
    )
    DRIVER_PENDING = (
        "DriverPending",
        Shown("The driver's pod is scheduled but does not start; it is replaced after 10 minutes.", "Warning"),
        Sent(
            "The driver's pod is scheduled but does not start; the message quotes the kubelet, such as the name of a "
            "missing Secret.",
            "Create what is missing; the pod then starts on its own.",
        ),
    )
    UNSCHEDULABLE = (
        "Unschedulable",
        Shown("The driver's pod can't be scheduled; it is replaced after 15 minutes.", "Warning"),
        Sent("The driver's pod can't be scheduled.", "Free up capacity, or request less in `spec.spark`."),
        Policy("The driver's pod could not be scheduled within 15 minutes.", 60, 600),
    )
    IMAGE_PULL_FAILED = (
        "ImagePullFailed",
        Shown("The image can't be pulled; the pod is replaced after 5 minutes.", "Warning"),
        Sent("The driver's image can't be pulled.", "Fix `spec.spark.image`, its registry or the pull secrets."),
    )
    EXECUTORS_PENDING = (
        "ExecutorsPending",
        Shown("An executor's pod does not start, or Spark has not created it.", "Warning"),
        Sent(
            "The driver is running, but an executor's pod does not start or Spark has not created it.",
            "As for the driver's pod, in `spec.spark.executor`.",
        ),
    )
    EXECUTOR_OUT_OF_MEMORY = (
        "ExecutorOutOfMemory",
        Shown("An executor was OOM-killed within the last 5 minutes.", "Warning", beside=True),
        Sent(
            "An executor was OOM-killed; Spark replaces it.",
            "Raise `spec.spark.executor.memory` if it recurs.",
        ),
    )
    SINK_UNAVAILABLE = (
        "SinkUnavailable",
        Shown("The driver can't write to the sink.", "Warning"),
        Sent(
            "The driver can't write to the sink; it keeps retrying.", "Check the store, its credentials and its quota."
        ),
    )
    UPSTREAM_UNAVAILABLE = (
        "UpstreamUnavailable",
        Shown("PD, TiKV or PostgreSQL does not respond, or a store sends no changes or not all.", "Warning"),
        Sent(
            "PD, TiKV or PostgreSQL does not respond, or a store sends no changes or not all; the driver keeps "
            "retrying.",
            "Follow the message; check the upstream, and network policies on the way to it.",
        ),
    )
    BUFFER_OVERFLOWED = (
        "BufferOverflowed",
        None,
        Sent(
            "Changes arrived faster than they were written: the pullers' in-memory buffer is full, and new segments "
            "are read from the archive.",
            "Nothing while `WithinLag` is True; otherwise raise `spec.eventStore.bufferSize`, or add executors.",
        ),
    )
    BUFFER_IN_USE = (
        "BufferInUse",
        None,
        Sent("The backlog in the archive is drained; new segments are read from memory again.", type="Normal"),
    )
    RULES_UNMATCHED = (
        "RulesUnmatched",
        None,
        Sent(
            "A rule of the spec matches no table, names one that does not exist, or hides all that it selects. The "
            "condition `RulesMatch` is False until that changes.",
            "Fix the rule, or create the table ([event-filters.md](../event-filters.md#rules-that-match-nothing)).",
        ),
    )
    DRIVER_SILENT = (
        "DriverSilent",
        Shown("The driver has not reported for 5 minutes, or not within 3 minutes of starting.", "Warning"),
        Sent("The driver is running but not reporting.", "Check its log and its connection to the API server."),
    )
    DRAINING = (
        "Draining",
        Shown("The driver writes what is resolved, then stops.", "Pending"),
        Sent(
            "The driver is draining, because of a pause or a changed spec. It has `spec.drainTimeout` to finish.",
            "Wait.",
            "Normal",
        ),
    )
    CLEANING_UP = (
        "CleaningUp",
        Shown(
            "The previous attempt is being cleaned up; the next one waits for that.",
            "Pending",
            todo="If its pods don't terminate, check their node.",
        ),
    )
    BACK_OFF = (  # AttemptFailed is its event
        "BackOff",
        Shown(
            "An attempt failed; the message says why, and `status.lastError.nextRetryTime` when the next one starts.",
            "Warning",
            todo="Nothing, unless it recurs: see [the classes](#failures-and-their-budgets).",
        ),
    )
    DELETING = (
        "Deleting",
        Shown(
            "The driver drains, then a Job closes the log; the message says which step is pending.",
            "Pending",
            todo="Wait, or [give up](../operator/changefeeds.md#deletion).",
        ),
    )
    INVALID_SPEC = (
        "InvalidSpec",
        Shown("The spec is invalid; the message names the field.", "Failed", is_stalled=True),
        Sent(
            "The spec is invalid; the message names the field and the allowed values.",
            "Fix it. The last valid spec keeps running meanwhile.",
        ),
    )
    STALLED = (
        "Stalled",
        Shown("Requires manual intervention.", "Failed", is_stalled=True),
        Sent("Requires manual intervention; the message says what to do.", "Do that, then change `spec.restartNonce`."),
    )
    POD_FORCE_DELETED = (
        "PodForceDeleted",
        None,
        Sent(
            "A pod on a lost node was being deleted, or a pod outlived its grace period by two minutes: it was "
            "force-deleted. A driver still running there is fenced by the log and can't advance the changefeed.",
            "Check the node.",
        ),
    )
    RECONCILE_PAUSED = (
        "ReconcilePaused",
        None,
        Sent(
            "The annotation `changefeed.dev/reconcile: paused` is set: the operator does not change, repair or restart "
            "anything.",
            "Remove the annotation to hand the changefeed back.",
        ),
    )
    CHILD_REPAIRED = (
        "ChildRepaired",
        None,
        Sent(
            "A child of the changefeed was deleted or modified by someone else and has been restored; the message "
            "names the object and the fields. The changefeed keeps running its accepted spec throughout.",
            "Find out who did it: `kubectl get KIND NAME -o yaml --show-managed-fields`.",
        ),
    )
    HOLD_FAILED = (
        "HoldFailed",
        None,
        Sent(
            "A Job could not renew the hold on the upstream's history; the message and `status.hold.lastError` say "
            "why.",
            "Follow the message. The hold lasts until `status.hold.until`.",
        ),
    )
    HOLD_LOST = (
        "HoldLost",
        None,
        Sent(
            "The hold has expired, or GC has already passed it: the upstream may have garbage-collected changes that "
            "have not been read yet. Or PostgreSQL's slot is gone, or has lost its history.",
            "[ChangefeedHistoryNotHeld](../runbooks/ChangefeedHistoryNotHeld.md).",
        ),
    )
    CREDENTIALS_IN_CLEAR_TEXT = (
        "CredentialsInClearText",
        None,
        Sent(
            "Credentials of the sink go over the network without encryption, to a host other than the pod's own. "
            "The condition of this name stays until they no longer do.",
            "Do what the message says, and change the password or token.",
        ),
    )
    CLOSED = (
        "Closed",
        None,
        Sent(
            "The changefeed was deleted: its log is closed and the hold on the upstream's history released.",
            type="Normal",
        ),
    )
    CLOSE_FAILED = (
        "CloseFailed",
        None,
        Sent(
            "The changefeed is being deleted, but its log could not be closed; the message says why. Retried for up to "
            "an hour.",
            "Follow the message, or set `spec.deletionPolicy: Retain` to give up.",
        ),
    )
    CLOSE_GIVEN_UP = (
        "CloseGivenUp",
        None,
        Sent("The changefeed was deleted without closing its log.", "Run `changefeed gc --state URI` to clean up."),
    )
    SUBMISSION = (
        "Submission",
        None,
        None,
        Policy(
            "The Spark operator did not pick up the SparkApplication within 3 minutes, or could not submit it because "
            "the API server rejected the driver's pod or did not respond.",
            10,
            300,
        ),
    )
    DRIVER_START = (
        "DriverStart",
        None,
        None,
        Policy("The driver's pod did not start within 10 minutes, often because a Secret is missing.", 10, 300),
    )
    IMAGE_PULL = "ImagePull", None, None, Policy("The image could not be pulled within 5 minutes.", 60, 600)
    FAST_FAIL = "FastFail", None, None, Policy("The driver exited within a minute of starting.", 10, 600)
    CRASH = "Crash", None, None, Policy("The driver exited with an error.", 5, 600)
    HUNG = (
        "Hung",
        None,
        None,
        Policy("The driver failed its liveness probe and was killed by the kubelet.", 5, 300),
    )
    OOM = (
        "OutOfMemory",
        None,
        None,
        Policy("The driver was OOM-killed; raise `spec.spark.driver.memory`.", 10, 300, budget=4),
    )
    UNAVAILABLE = (
        "Unavailable",
        None,
        None,
        Policy("The upstream or the sink did not respond for longer than the driver waits (exit 69).", 10, 300),
    )
    FENCED = (
        "Fenced",
        None,
        None,
        Policy(
            "Another driver took over the changefeed (exit 75): a second operator, or a local run. Or, if the class in "
            "`status.lastError` is `ForeignConfig`: the config the driver found was not the accepted one, which the "
            "operator restores.",
            10,
            300,
        ),
    )
    LOST = (
        "Lost",
        None,
        None,
        Policy(
            "The SparkApplication was edited, or it or the driver's pod was removed, as by an eviction or "
            "`kubectl delete`.",
            1,
            60,
        ),
    )
    STUCK = (
        "Stuck",
        None,
        None,
        Policy(
            "The SparkApplication had no driver pod for 3 minutes, for instance in PENDING_RERUN or INVALIDATING.",
            5,
            300,
        ),
    )


class HeldReason(StrEnum):
    """The reasons of HistoryHeld, each with the status of the condition."""

    status: Literal["True", "False", "Unknown"]
    means: str

    def __new__(cls, word: str, status: Literal["True", "False", "Unknown"], means: str) -> Self:
        made = str.__new__(cls, word)
        made._value_ = word
        made.status, made.means = status, means
        return made

    HELD = "Held", "True", "The driver renews the hold every minute, or a Job does."
    NOT_RENEWED = "NotRenewed", "True", "The last renewal failed; the hold has not expired yet. The message says why."
    RUNNING_OUT = (
        "RunningOut",
        "True",
        "The upstream keeps more than half of what it may keep, or the slot has been idle for half of what it may be. "
        "The message says what to do, `status.hold` how much it is and when it would be lost.",
    )
    NOT_HELD_YET = "NotHeldYet", "Unknown", "Not known yet; the changefeed is starting."
    NOT_HELD = "NotHeld", "False", "No hold has ever been acquired; the message says why."
    LAPSED = "Lapsed", "False", "The hold has expired. It recovers if a driver or a Job renews it before GC gets there."
    LOST = (
        "SnapshotLostByGC",
        "False",
        "GC has already removed history that the changefeed still needs, or PostgreSQL's slot is gone or has lost it.",
    )
    NOTHING_TO_HOLD = "NothingToHold", "False", "The changefeed has not started and has no `startTs`."
    FINISHED = "Finished", "False", "`spec.targetTs` has been reached."
