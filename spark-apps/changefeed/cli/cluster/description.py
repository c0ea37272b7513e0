"""Formats a cluster's Changefeeds: as a table row, a page, or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from changefeed.cli.cluster.kube import Resource
from changefeed.spec.upstream_address import upstream_address

HEAD = ("NAMESPACE", "NAME", "STATE", "READY", "CHECKPOINT", "SINK", "AGE", "REASON")
_MIB = 1 << 20


def condition(resource: Resource, kind: str) -> dict[str, Any]:
    """The condition of that type; {} when there is none."""
    conditions = resource.get("status", {}).get("conditions", [])
    return next((condition for condition in conditions if condition.get("type") == kind), {})


def summary(resource: Resource) -> dict[str, Any]:
    """Return what a script wants to know; what is not known yet is None."""
    metadata, status, ready = resource["metadata"], resource.get("status", {}), condition(resource, "Ready")
    shown = {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "paused": resource["spec"].get("paused", False),
        "state": status.get("state"),
        "ready": ready.get("status"),
        "reason": ready.get("reason"),
        "message": status.get("message"),
        "created": metadata["creationTimestamp"],
    }
    copied = ("sink", "checkpointTs", "checkpointTime", "resolvedTs", "lagSeconds", "tables", "rows")
    return shown | {field: status.get(field) for field in copied}


def row(resource: Resource, now: datetime) -> list[str]:
    """The words under HEAD."""
    shown = summary(resource)
    checkpoint, created = _ago(shown["checkpointTime"], now), _ago(shown["created"], now)
    words = [shown[field] or "" for field in ("namespace", "name", "state", "ready")]
    return [*words, checkpoint, shown["sink"] or "", created, shown["reason"] or ""]


def description(resource: Resource, events: Sequence[Resource], now: datetime) -> Iterator[str]:
    """The lines of the page."""
    spec, status, shown = resource["spec"], resource.get("status", {}), summary(resource)
    yield f"{shown['namespace']}/{shown['name']}: {shown['state'] or 'not seen by an operator yet'}"
    if shown["message"]:
        yield f"  {shown['message']}"
    yield from _pairs(_facts(spec, status, now))
    if status.get("lastError"):
        error = status["lastError"]
        yield f"Last error, {_ago(error.get('time'), now) or 'some time'} ago: {error.get('class', '')}"
        yield f"  {error.get('message', '')}"
        if error.get("nextRetryTime"):
            yield f"  The next attempt starts at {error['nextRetryTime']}."
    yield "Conditions"
    yield from _rows_or_none([_condition_row(each, now) for each in status.get("conditions", [])])
    yield "Events"
    yield from _rows_or_none([_event_row(each, now) for each in events])


def _condition_row(each: Resource, now: datetime) -> list[str]:
    return ["", each["type"], each["status"], each["reason"], _ago(each["lastTransitionTime"], now), each["message"]]


def _event_row(each: Resource, now: datetime) -> list[str]:
    words = [each[field] or "" for field in ("type", "reason")]
    return ["", *words, _age(now - each["last"]), f"x{each['count']}", each["message"] or ""]


def _rows_or_none(rows: list[list[str]]) -> Iterator[str]:
    return table(rows) if rows else iter(["  none"])


def _facts(spec: Resource, status: Resource, now: datetime) -> Iterator[tuple[str, str]]:
    kind, sink = next(iter(spec["sink"].items()))
    protocol = f" ({sink['protocol']})" if "protocol" in sink else ""
    cluster = f", cluster {status['clusterId']}" if "clusterId" in status else ""
    yield "Upstream", upstream_address(spec) + cluster
    yield "Tables", ", ".join(spec.get("filter", {}).get("rules", ["*.*"]))
    yield "Sink", f"{kind} {sink.get('uri', '')}".strip() + protocol
    if "checkpointTs" in status:
        is_driven = status.get("state") in ("Normal", "Warning")  # otherwise the lag is of the last write
        behind = f", {status['lagSeconds']}s behind" if is_driven and "lagSeconds" in status else ""
        written = f" ({_ago(status.get('checkpointTime'), now) or '?'} ago{behind})"
        yield "Checkpoint", status["checkpointTs"] + written
    for field, title in (("resolvedTs", "Resolved"), ("startTs", "Start"), ("tables", "Followed"), ("rows", "Rows")):
        if field in status:
            yield title, str(status[field])
    if ddl := status.get("lastDdl"):
        yield "Last DDL", f"{ddl.get('ts', '?')} ({_ago(ddl.get('time'), now) or '?'} ago) {ddl.get('statement', '')}"
    if hold := status.get("hold"):
        since = f"after {hold['ts']}, " if "ts" in hold else ""
        until = _kept(hold) if "keptBytes" in hold else f"until {hold['until']}" if "until" in hold else "not held"
        why = f"; {hold['lastError'].get('message', '')}" if "lastError" in hold else ""
        yield "History", f"{since}{until}{why}"
    if "attempt" in status:
        epoch = f", epoch {status['epoch']}" if "epoch" in status else ""
        yield "Driver", f"attempt {status['attempt']}{epoch}"
    if "image" in status:
        version = f", version {status['version']}" if "version" in status else ""
        yield "Image", status["image"] + version


def _kept(hold: Resource) -> str:
    """What a slot keeps, which does not expire."""
    most = f" of {hold['mostBytes'] / _MIB:,.0f} MiB at most" if hold.get("mostBytes") else ""
    gone = f", lost at {hold['goneAt']} as things go" if hold.get("goneAt") else ""
    return f"in a slot that keeps {hold['keptBytes'] / _MIB:,.1f} MiB of WAL{most} ({hold['walStatus']}){gone}"


def _pairs(facts: Iterator[tuple[str, str]]) -> Iterator[str]:
    for title, text in facts:
        yield f"  {title:<11} {text}"


def table(rows: list[list[str]]) -> Iterator[str]:
    """Lines with columns as wide as they must be."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()


def _ago(written: str | None, now: datetime) -> str:
    return _age(now - datetime.fromisoformat(written)) if written else ""


def _age(span: timedelta) -> str:
    """The largest unit: "3d", "12s". A clock that is ahead gives "0s"."""
    seconds = max(0, int(span.total_seconds()))
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length or (seconds >= length and unit == "d"):
            return f"{seconds // length}{unit}"
    return f"{seconds}s"
