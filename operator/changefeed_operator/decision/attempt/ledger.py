"""What the operator must remember, kept in the Changefeed's status and written before it acts.

No decision depends on anything else from earlier passes. A damaged status is read as far as it makes sense; it never
raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from changefeed.spec.reasons import Reason

from changefeed_operator import api
from changefeed_operator.api import Json
from changefeed_operator.decision.attempt.restart import FAILURES, is_exhausted, wait_s

_LONGEST_MESSAGE = 1000
_LONGEST_CAUSE = 128


class Phase(StrEnum):
    """How far the newest attempt has got."""

    CLAIMED = "Claimed"  # it has a number; its SparkApplication may or may not exist
    CREATED = "Created"  # its SparkApplication was seen
    ENDED = "Ended"  # it is over and being cleaned up


class AttemptOutcome(StrEnum):
    """How the newest attempt ended."""

    STOPPED = "Stopped"  # as requested: paused, or the spec changed
    FINISHED = "Finished"  # targetTs has been reached
    FAILED = "Failed"  # the next one is due at nextRetryTime
    STALLED = "Stalled"  # requires manual intervention


@dataclass(frozen=True)
class AttemptError:
    """What failed. `cause`: CamelCase; `message`: with the next step; `time`: Unix seconds; `next_retry`: whole Unix
    seconds, None when no retry is due."""

    cause: str
    message: str
    time: float
    next_retry: float | None = None


@dataclass(frozen=True)
class AttemptLedger:
    """What the status records of attempts.

    `attempt`: the newest number, 0 before the first. `spec_hash`: of the spec it was created from.
    """

    attempt: int = 0
    phase: Phase = Phase.ENDED
    outcome: AttemptOutcome | None = None
    spec_hash: str = ""
    state_uri: str = ""
    failed: int = 0  # attempts, since the changefeed was created
    failures: Mapping[str, int] = field(default_factory=dict)  # in a row, by class
    last_error: AttemptError | None = None

    @staticmethod
    def read(status: Json) -> AttemptLedger:
        attempt = max(0, api.whole_at(status, "attempt"))
        phase, outcome = api.text_at(status, "attemptPhase"), api.text_at(status, "attemptOutcome")
        counts = api.mapping_at(status, "restarts", "failures")
        return AttemptLedger(
            attempt=attempt,
            phase=Phase(phase) if phase in list(Phase) else Phase.CREATED if attempt else Phase.ENDED,
            outcome=AttemptOutcome(outcome) if outcome in list(AttemptOutcome) else None,
            spec_hash=api.text_at(status, "effectiveSpecHash"),
            state_uri=api.text_at(status, "stateUri"),
            failed=max(0, api.whole_at(status, "restarts", "total")),
            failures={name: api.whole_at(counts, name) for name in FAILURES if api.whole_at(counts, name) > 0},
            last_error=read_error(api.mapping_at(status, "lastError")),
        )

    def or_of(self, application: Json, uid: str) -> AttemptLedger:
        """This ledger; or, if the status was lost (a restored backup), what owner `uid`'s SparkApplication tells."""
        number = api.label_of(application, api.ATTEMPT_LABEL)
        if self.attempt or uid not in api.owner_uids(application) or not (number.isdecimal() and len(number) < 10):
            return self
        return AttemptLedger(int(number), Phase.CREATED, spec_hash=api.label_of(application, api.SPEC_HASH_LABEL))

    def fields(self) -> dict[str, Any]:
        """The status fields; unset ones are left out."""
        fields: dict[str, Any] = {"attempt": self.attempt, "attemptPhase": str(self.phase)}
        if self.outcome is not None:
            fields["attemptOutcome"] = str(self.outcome)
        if self.spec_hash:
            fields["effectiveSpecHash"] = self.spec_hash
        if self.state_uri:
            fields["stateUri"] = self.state_uri
        restarts: dict[str, Any] = {"total": self.failed}
        if self.failures:
            restarts["failures"] = {str(name): count for name, count in self.failures.items()}
        fields["restarts"] = restarts
        if self.last_error is not None:
            fields["lastError"] = error_fields(self.last_error)
        return fields

    @property
    def retry_at(self) -> float:
        """Unix seconds before which no new attempt with the same spec starts."""
        error = self.last_error
        return error.next_retry or 0.0 if self.outcome is AttemptOutcome.FAILED and error is not None else 0.0

    @property
    def is_crash_looping(self) -> bool:
        return max(self.failures.values(), default=0) >= 3

    def claimed(self, spec_hash: str, state_uri: str) -> AttemptLedger:
        """The next attempt; a changed spec gets a full budget."""
        error = self.last_error
        return replace(
            self,
            attempt=self.attempt + 1,
            phase=Phase.CLAIMED,
            outcome=None,
            spec_hash=spec_hash,
            state_uri=state_uri,
            failures=self.failures if spec_hash == self.spec_hash else {},
            last_error=error and replace(error, next_retry=None),
        )

    def created(self) -> AttemptLedger:
        return replace(self, phase=Phase.CREATED)

    def stopped(self) -> AttemptLedger:
        error = self.last_error
        return replace(
            self,
            phase=Phase.ENDED,
            outcome=AttemptOutcome.STOPPED,
            failures={},
            last_error=error and replace(error, next_retry=None),
        )

    def finished(self) -> AttemptLedger:
        return replace(self, phase=Phase.ENDED, outcome=AttemptOutcome.FINISHED, failures={}, last_error=None)

    def stalled(self, cause: str, message: str, now: float) -> AttemptLedger:
        error = AttemptError(cause[:_LONGEST_CAUSE], _clip(message), now)
        return replace(
            self, phase=Phase.ENDED, outcome=AttemptOutcome.STALLED, failed=self.failed + 1, last_error=error
        )

    def failed_with(self, failure: Reason, cause: str, message: str, now: float, seed: str) -> AttemptLedger:
        """The attempt failed: a retry is due later, or manual intervention is required."""
        count = self.failures.get(failure, 0) + 1
        ended = replace(
            self, phase=Phase.ENDED, failed=self.failed + 1, failures={**self.failures, str(failure): count}
        )
        error = AttemptError(cause[:_LONGEST_CAUSE], _clip(message), now)
        if is_exhausted(failure, count):
            return replace(ended, outcome=AttemptOutcome.STALLED, last_error=error)
        retry = float(round(now + wait_s(failure, count, seed)))
        return replace(ended, outcome=AttemptOutcome.FAILED, last_error=replace(error, next_retry=retry))

    def behind(self, newest: int, message: str, now: float) -> AttemptLedger:
        """The log has attempt `newest`, unknown to this status, as after a restore: the next one starts above it, now.

        This can't loop: the number rises each time.
        """
        error = AttemptError(str(Reason.FENCED), _clip(message), now, next_retry=now)
        return replace(self, attempt=newest, phase=Phase.ENDED, outcome=AttemptOutcome.FAILED, last_error=error)

    def healthy(self) -> AttemptLedger:
        """The attempt has run long enough to forget earlier failures."""
        return replace(self, failures={}, last_error=None)


def _clip(message: str) -> str:
    return message if len(message) <= _LONGEST_MESSAGE else message[: _LONGEST_MESSAGE - 3] + "..."


def read_error(raw: Json) -> AttemptError | None:
    """Read an error from its form in the status."""
    if not raw:
        return None
    return AttemptError(
        api.text_at(raw, "class"),
        api.text_at(raw, "message"),
        api.time_at(raw, "time") or 0.0,
        api.time_at(raw, "nextRetryTime"),
    )


def error_fields(error: AttemptError) -> dict[str, str]:
    """Return the error as the status has it."""
    fields = {"class": error.cause, "message": error.message, "time": api.time_text(error.time)}
    if error.next_retry is not None:
        fields["nextRetryTime"] = api.time_text(error.next_retry)
    return fields
