"""One small class per kind of failure, named for what the caller must do about it.

A message names the thing, the value and the next step, and never contains a secret. `exit_code` is the process's exit
code if the error ends it (docs/running.md, Exit codes).
"""

from __future__ import annotations

from typing import TypeVar

E = TypeVar("E", bound="ChangefeedError")


class ChangefeedError(Exception):
    """A known kind of failure; `next_step` says what to do about it."""

    exit_code = 1
    #: For a store: True if it answered with an error, False if it did not answer. None: unknown, or not about a store.
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
    """Marks an error of the local file system, which always answers."""
    error.answered = True
    return error


class Transient(ChangefeedError):
    """Retry the same thing after `retry_after` seconds."""

    exit_code = 69

    def __init__(self, message: str, next_step: str = "", retry_after: float = 0.1) -> None:
        super().__init__(message, next_step)
        self.retry_after = retry_after


class Unavailable(ChangefeedError):
    """An upstream or a sink did not answer before the deadline: check it, then start again."""

    exit_code = 69


class Conflict(ChangefeedError):
    """Someone else changed it first: read it again, then decide."""


class AlreadyExists(Conflict):
    """A create-if-absent found that the object exists: read it, then decide."""


class NotFound(ChangefeedError):
    """No such object exists."""


class OutcomeUnknown(ChangefeedError):
    """A write may or may not have happened: read back and compare; never clean up after it (rule 16)."""


class InvalidSpec(ChangefeedError):
    """The resource is invalid: fix `field`."""

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
        """`newest_attempt`: the attempt that the log names, if that is the reason; otherwise 0."""
        super().__init__(message, next_step)
        self.newest_attempt = newest_attempt

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.message, self.next_step, self.newest_attempt))


class StateInUse(Unavailable):
    """The driver of another resource with the same state id is running: wait for it to end, or use another id."""


class ForeignConfig(Fenced):
    """The config file is not the one that the operator accepted: exit without another effect; it is restored."""


class OutputConflict(ChangefeedError):
    """An output object exists with bytes other than its plan entry gives (rule 10): requires manual intervention."""


class NeedsHuman(ChangefeedError):
    """The changefeed requires manual intervention: do what `next_step` says, then start it again."""


class ExecuteByHand(NeedsHuman):
    """A DDL can't be written for the downstream's server: do there what it means, by hand, then start again."""

    def __init__(self, message: str, next_step: str = "") -> None:
        by_hand = (
            "Do downstream by hand what the DDL means, then start again; if nothing is to be done, set is_done = 1"
        )
        super().__init__(message, next_step or f"{by_hand} in its row of the table ddls.")


class UnclearDdl(NeedsHuman):
    """Nobody can tell whether a DDL was executed downstream before a driver died: look there, then say that it was."""


class OtherDefinition(NeedsHuman):
    """A downstream table is not as the upstream's definition says, so that rows could be lost, changed or merged: mend
    it by the statement that `next_step` has."""


class StatementRefused(NeedsHuman):
    """A database refuses a statement: mend downstream what its error names."""

    number = 0  # of the database's error


class DuplicateKey(StatementRefused):
    """Another row downstream has the key of one that is to be written: mend the collation, or find out whose row it
    is."""


class UnknownThing(StatementRefused):
    """A statement names a database, table or column that is not downstream: bring it back with its rows."""


class StatementTooLarge(StatementRefused):
    """A row makes a statement that is larger than what the database takes at once: raise the database's limit."""


class SinkOwned(NeedsHuman):
    """Another changefeed, or TiCDC, writes to the sink, or has: choose another one, or adopt it."""


class SnapshotLostByGC(NeedsHuman):
    """GC removed changes that were not pulled yet (rule 14): start a new changefeed, unless they are written by now."""


class Superseded(NeedsHuman):
    """Another resource with the same state id has taken over the changefeed: delete one of the two."""


class Refused(NeedsHuman):
    """A store or the upstream denies access, or can't be trusted. At start this requires manual intervention; a running
    changefeed waits, because it may be fixed meanwhile."""

    answered = True


def stopping() -> dict[str, type[ChangefeedError]]:
    """Classes by name, of this module, of what stops a changefeed until a person has done something about it."""
    kinds = (InvalidSpec, OutputConflict, NeedsHuman)
    found: dict[str, type[ChangefeedError]] = {
        name: each for name, each in globals().items() if isinstance(each, type) and issubclass(each, kinds)
    }
    del found[Refused.__name__]  # whoever is refused may be let in later
    return found


class InvalidRequest(ChangefeedError):
    """A request to the upstream was refused by our own checks and not sent (upstream/tikv/client/requests): a
    defect of ours."""


class ProtocolViolation(ChangefeedError):
    """A peer broke its protocol: drop what was built on that registration or stream and start it again."""


def first_error(error: BaseException) -> BaseException:
    """The root cause in an exception group: the first error of our own if there is one."""
    while isinstance(error, BaseExceptionGroup):
        named = [each for each in error.exceptions if isinstance(each, ChangefeedError)]
        error = (named or error.exceptions)[0]
    return error
