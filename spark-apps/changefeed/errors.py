"""Every way of failing, one small class each, named for what the caller must do (DESIGN.md 5).

A message names the thing, the value and the next step. None may hold a secret. `exit_code` is the process's exit code
when the error ends it (INTERFACES.md, exit codes).
"""

from __future__ import annotations

from typing import TypeVar

E = TypeVar("E", bound="ChangefeedError")


class ChangefeedError(Exception):
    """Something failed in a way that has a name; `next_step` says what to do about it."""

    exit_code = 1
    #: Of a store: it has answered, with an error, or it is away. None: of something else, or nobody knows.
    answered: bool | None = None

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.message, self.next_step))

    def __str__(self) -> str:
        if not self.next_step:
            return self.message
        return f"{self.message}{'' if self.message.endswith(('.', '?')) else '.'} {self.next_step}"


def by_disk(error: E) -> E:
    """The error, of a file system, which answers always."""
    error.answered = True
    return error


class Transient(ChangefeedError):
    """Try the same thing again after `retry_after` seconds."""

    exit_code = 69

    def __init__(self, message: str, next_step: str = "", retry_after: float = 0.1) -> None:
        super().__init__(message, next_step)
        self.retry_after = retry_after


class Unavailable(ChangefeedError):
    """An upstream or a sink did not answer before the deadline: look at it, then start again."""

    exit_code = 69


class Conflict(ChangefeedError):
    """Somebody else changed it first: read again, then decide."""


class AlreadyExists(Conflict):
    """A create-if-absent found the name taken: read it, then decide."""


class NotFound(ChangefeedError):
    """There is no such object."""


class OutcomeUnknown(ChangefeedError):
    """A write may or may not have happened: read back and compare, never clean up after it (rule 16)."""


class InvalidSpec(ChangefeedError):
    """The resource is wrong: mend `field`."""

    exit_code = 2

    def __init__(self, field: str, why: str, next_step: str = "") -> None:
        super().__init__(f"{field}: {why}", next_step)
        self.field = field
        self.why = why

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.field, self.why, self.next_step))


class Fenced(ChangefeedError):
    """A newer driver owns the changefeed: exit without another effect (rule 6)."""

    exit_code = 75

    def __init__(self, message: str, next_step: str = "", newest_attempt: int = 0) -> None:
        """`newest_attempt`: the one in the log, for whoever counts them; 0: that is not why."""
        super().__init__(message, next_step)
        self.newest_attempt = newest_attempt

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.message, self.next_step, self.newest_attempt))


class StateInUse(Unavailable):
    """The driver of another resource with the same state id is alive: wait until it has ended, or use another id."""


class ForeignConfig(Fenced):
    """The config file is not the one that the operator accepted: exit without another effect, it is put back."""


class OutputConflict(ChangefeedError):
    """An output object exists with other bytes than its plan entry gives (rule 10): a person must look."""


class NeedsHuman(ChangefeedError):
    """The changefeed can't go on by itself: do what `next_step` says, then start it again."""


class SnapshotLostByGC(NeedsHuman):
    """GC has taken changes that were to be pulled (rule 14): start a new changefeed, unless they are written by now."""


class Superseded(NeedsHuman):
    """Another resource with the same state id has taken the changefeed over: delete one of the two."""


class Refused(NeedsHuman):
    """A store or the upstream does not let us in, or we don't trust it: at start a person must mend that; a run waits,
    as it may be mended meanwhile."""

    answered = True


class ProtocolViolation(ChangefeedError):
    """A peer broke its protocol: drop what was built on that registration or stream and start it anew."""
