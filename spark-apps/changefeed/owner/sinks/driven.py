"""What a driver needs from each kind of sink, in the order of use (prepare)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from changefeed.log.state import State
from changefeed.objectstore.patience import Patience
from changefeed.schema.table_info import TableInfo
from changefeed.sink.contract import DdlSink, Outputs, SinkJob

Versions = Iterable[tuple[int, TableInfo, int, bool]]
"""(dispatcher, definition, table version, whether readers have not been told of it) of the tables that a run has."""


@dataclass(frozen=True)
class Taken:
    """By whom, for what: `state` is the log's with this driver's epoch, which is at `state_uri`."""

    state: State
    state_uri: str


class DrivenSink(Protocol):
    """Every method may block. Raises Unavailable, Refused, NeedsHuman, InvalidSpec."""

    @property
    def uri(self) -> str:
        """Of what is written now."""
        ...

    @property
    def in_order(self) -> bool:
        """Whether a dispatcher's entries must be written one after the other."""
        ...

    @property
    def may_leave_out(self) -> bool:
        """Whether what is planned may stay unwritten: tasks' work shows only when the driver commits it, in order."""
        ...

    @property
    def outputs(self) -> Outputs: ...

    @property
    def fingerprint(self) -> str:
        """What the bytes depend on beyond plan and config (rule 10)."""
        ...

    @property
    def file_size(self) -> int:
        """Bytes of an entry, about."""
        ...

    def open(self) -> None:
        """Find out whether it can be used, and hold it. Raises Conflict when another process of this machine does."""
        ...

    def check_free(self, state: State, identity: str, state_uri: str) -> None:
        """Whether it is this changefeed's or nobody's. Nothing is written."""
        ...

    def check_rewind(self, state: State, state_uri: str) -> None:
        """Whether it can be written again from an earlier ts. Nothing is written."""
        ...

    def check_newest(self, taken: Taken) -> None:
        """What is published is in the log (rule 11)."""
        ...

    def settle_in(self, taken: Taken, tables: Versions) -> None:
        """The first effects, all after this driver's own epoch record."""
        ...

    def job(self) -> SinkJob: ...

    def ddl_sink(self, taken: Taken, poll_fence: Callable[[], object], patience: Patience) -> DdlSink:
        """`poll_fence` asks the log who drives: raises Fenced."""
        ...

    def expired(self, before: str) -> Iterator[Callable[[], None]]:
        """What deletes each file of a day before `before`; none where nothing expires."""
        ...

    def release(self) -> None: ...


def name_of(state: State) -> str:
    """Of the changefeed, to a downstream that remembers it: no other log that ever was has it."""
    return f"{state.uid}/{state.origin}"
