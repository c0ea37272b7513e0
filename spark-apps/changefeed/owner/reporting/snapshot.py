"""What a run knows of itself at one moment: `/status`, the resource's status and a terminal each show a part of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from changefeed.filter.coverage import Findings
from changefeed.owner.reporting.troubles import Trouble
from changefeed.spec.driver_status import DriverError, LagSample, OpenTransaction, StageRate, TableStatus
from changefeed.upstream.contract import HeldUntil


@dataclass(frozen=True)
class RunSnapshot:
    """A ts is 0 while it is unknown; what has the name of a member of DriverStatus is that."""

    at_ms: int = 0  # PD's clock, or what it would be by now
    started_ms: int = 0
    state: str = ""
    message: str = ""
    epoch: int = 0
    cluster_id: int = 0
    start_ts: int = 0
    checkpoint_ts: int = 0
    published_ts: int = 0  # the checkpoint that readers of the sink know
    resolved_ts: int = 0
    checkpoint_lag: float = 0.0  # seconds
    resolved_lag: float = 0.0  # seconds
    rows: int = 0
    files: int = 0  # committed
    stages: tuple[StageRate, ...] = ()  # puller, event store, pipeline, sink
    lags: tuple[LagSample, ...] = ()
    table_count: int = 0
    dirty: int = 0  # dispatchers with unplanned events
    tables: tuple[TableStatus, ...] = ()  # as many as were asked for
    transactions: tuple[OpenTransaction, ...] = ()  # who began first comes first
    complete: bool = False  # every span is pulled
    held: int = 0  # spans that are held back because there is no room
    sink: Trouble | None = None
    server: str = "PD"  # UpstreamSpec.server
    source: str = "the TiKV stores and the network to them"  # UpstreamSpec.source
    upstream: Trouble | None = None
    tikv: Trouble | None = None
    last_error: DriverError | None = None
    ddl: tuple[int, str] | None = None  # the newest that is written: its ts, its statement
    copied: str = ""  # how far initial copies are; "" while there are none
    mode: str = ""  # where new segments are read: Buffer or Archive; "" where there is no buffer
    rules: Findings | None = None  # what the spec says of tables to no effect; None: not known
    history: HeldUntil | None = None  # None: not held yet
    sink_uri: str = ""  # of the newest generation
    lag_threshold: float = 60.0  # seconds
    settings: Mapping[str, str] = field(default_factory=dict)  # those that it takes over while it runs, as they are

    @property
    def pulled(self) -> int:
        """Rows, by this driver."""
        return self.stages[0].rows if self.stages else 0

    @property
    def blocked(self) -> OpenTransaction | None:
        """The oldest transaction whose locks hold a resolved-ts back."""
        return next(iter(self.transactions), None)


class View(Protocol):
    """Somebody who watches a run."""

    def update(self, snapshot: RunSnapshot) -> None:
        """Show it; called from one thread, a few times a second at most."""
        ...

    def close(self) -> None:
        """Give the terminal back: the process ends now. No error when it is done already."""
