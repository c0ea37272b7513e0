"""A changefeed's claim on its sink: what a driver needs from each kind of sink, in the order of use (prepare)."""

# ruff: noqa: B027 -- what a kind does not define does nothing
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from changefeed.log.state import State
from changefeed.objectstore.patience import Patience
from changefeed.schema.table_info import TableInfo
from changefeed.sink.contract import Outputs, SinkDriver, SinkJob

Versions = Iterable[tuple[int, TableInfo, int, bool]]
"""(dispatcher, definition, table version, whether readers have not been told of it) of the tables that a run has."""


@dataclass(frozen=True)
class Taken:
    """By whom, for what: `state` is the log's with this driver's epoch, which is at `state_uri`."""

    state: State
    state_uri: str


class SinkClaim(ABC):
    """Opens, checks and takes over a sink, and describes it to the tasks. What a kind does not define does nothing.

    Every method may block. Raises Unavailable, Refused, NeedsHuman, InvalidSpec.
    """

    in_order: bool
    """Whether a dispatcher's entries must be written one after the other."""

    may_leave_out = False
    """Whether what is planned may stay unwritten: tasks' work shows only when the driver commits it, in order."""

    outputs: Outputs = Outputs()

    fingerprint: str
    """What the bytes depend on beyond plan and config (rule 10)."""

    file_size = 16 << 20
    """Bytes of an entry, about."""

    uri: str
    """The URI of what is written now."""

    def open(self) -> None:
        """Find out whether it can be used, and hold it. Raises Conflict when another process of this machine does."""

    def check_free(self, state: State, identity: str, state_uri: str) -> None:
        """Whether it is this changefeed's or nobody's. Nothing is written."""

    @abstractmethod
    def check_rewind(self, state: State, state_uri: str) -> None:
        """Whether it can be written again from an earlier ts. Nothing is written."""

    def check_newest(self, taken: Taken) -> None:
        """What is published is in the log (rule 11)."""

    def settle_in(self, taken: Taken, tables: Versions) -> None:
        """The first effects, all after this driver's own epoch record."""

    @abstractmethod
    def job(self) -> SinkJob: ...

    def driver(self, taken: Taken, poll_fence: Callable[[], object], patience: Patience) -> SinkDriver:
        """`poll_fence` asks the log who drives: raises Fenced."""
        return SinkDriver()

    def expired(self, before: str) -> Iterator[Callable[[], None]]:
        """What deletes each file of a day before `before`; none where nothing expires."""
        return iter(())

    def release(self) -> None:
        """What `open` holds."""


def identity_downstream(state: State) -> str:
    """Return what a downstream knows the changefeed by: no other log that ever was has it."""
    return f"{state.uid}/{state.origin}"
