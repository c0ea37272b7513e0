"""The driver's response on `/status` (spec.driver_status), built on request. Pure."""

from __future__ import annotations

from changefeed.owner.owner import Owner
from changefeed.owner.reporting.progress import Meter
from changefeed.owner.reporting.view import Progress, StageProgress
from changefeed.spec.driver_status import (
    TABLES_MAX,
    TRANSACTIONS_MAX,
    DriverStatus,
    OpenTransaction,
    StageRate,
    TableStatus,
)
from changefeed.spec.model import Changefeed

_STAGES = ("puller", "event_store", "pipeline", "sink")


def driver_status(
    changefeed: Changefeed, owner: Owner, meter: Meter, now: float, version: str, sink_uri: str
) -> DriverStatus:
    """`now`: monotonic seconds; `sink_uri`: of the newest generation."""
    progress, state = meter.progress(now), owner.state
    return DriverStatus(
        version=version,
        namespace=changefeed.metadata.namespace,
        name=changefeed.metadata.name,
        epoch=state.epoch.number,
        state=meter.word,
        message=progress.state,
        at_ms=meter.clock(now),
        started_ms=meter.started_ms,
        upstream=", ".join(changefeed.spec.upstream.pd_addresses),
        sink=sink_uri,
        start_ts=state.asked_ts,
        checkpoint_ts=state.checkpoint_ts,
        resolved_ts=progress.resolved_ts,
        rows=state.rows,
        lags=meter.lags.samples(),
        stages=tuple(_rate(name, progress) for name in _STAGES),
        table_count=len(owner.dispatchers),
        tables=tuple(_table(owner, *reached) for reached in owner.furthest_behind(TABLES_MAX)),
        transactions=_transactions(owner, meter),
        last_error=meter.last_error,
    )


def _rate(name: str, progress: Progress) -> StageRate:
    stage: StageProgress = getattr(progress, name)
    return StageRate(
        name=name.replace("_", " "),
        rows=stage.rows,
        rows_per_second=stage.rows_per_s,
        bytes=stage.bytes,
        bytes_per_second=stage.bytes_per_s,
    )


def _table(owner: Owner, dispatcher: int, written_ts: int) -> TableStatus:
    return TableStatus(
        name=owner.table_name(dispatcher),
        dispatcher=dispatcher,
        written_ts=written_ts,
        resolved_ts=owner.spans.resolved_ts(dispatcher),
        held=dispatcher in owner.spans.held,
    )


def _transactions(owner: Owner, meter: Meter) -> tuple[OpenTransaction, ...]:
    """Who began first comes first."""
    oldest = sorted(meter.blocked.items(), key=lambda each: (each[1].start_ts, each[0]))
    return tuple(
        OpenTransaction(
            table=owner.table_name(blocked.span_id), puller=puller, start_ts=blocked.start_ts, ttl_ms=blocked.ttl_ms
        )
        for puller, blocked in oldest[:TRANSACTIONS_MAX]
    )
