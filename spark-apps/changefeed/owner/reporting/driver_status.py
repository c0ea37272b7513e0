"""The driver's response on `/status` (spec.driver_status), built on request. Pure."""

from __future__ import annotations

from changefeed.owner.reporting.snapshot import RunSnapshot
from changefeed.spec.driver_status import FINDINGS_MAX, DriverStatus
from changefeed.spec.model import Changefeed


def driver_status(changefeed: Changefeed, seen: RunSnapshot, version: str) -> DriverStatus:
    """`version`: of this program."""
    return DriverStatus(
        version=version,
        namespace=changefeed.metadata.namespace,
        name=changefeed.metadata.name,
        epoch=seen.epoch,
        state=seen.state,
        message=seen.message,
        at_ms=seen.at_ms,
        started_ms=seen.started_ms,
        upstream=changefeed.spec.upstream.address,
        sink=seen.sink_uri,
        start_ts=seen.start_ts,
        checkpoint_ts=seen.checkpoint_ts,
        resolved_ts=seen.resolved_ts,
        rows=seen.rows,
        lags=seen.lags,
        stages=seen.stages,
        table_count=seen.table_count,
        tables=seen.tables,
        transactions=seen.transactions,
        last_error=seen.last_error,
        findings=tuple(said for _, said in seen.rules.findings[:FINDINGS_MAX]) if seen.rules else (),
    )
