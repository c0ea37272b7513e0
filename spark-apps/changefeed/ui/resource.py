"""Converts a Changefeed resource from the API server for the page. Pure. Any field may be missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from changefeed.spec.upstream_address import upstream_address
from changefeed.ui.view import ChangefeedView, ConditionView, Failure

_UNSEEN = "Not seen yet"


def of_resource(resource: Mapping[str, Any], now_ms: int) -> ChangefeedView:
    """Everything in its status. Only its driver knows the tables, transactions and lag history."""
    metadata, spec, status = (_at(resource, part) for part in ("metadata", "spec", "status"))
    return ChangefeedView(
        namespace=_text(metadata, "namespace"),
        name=_text(metadata, "name"),
        state=_text(status, "state") or _UNSEEN,
        now_ms=now_ms,
        message=_text(status, "message"),
        checkpoint_ts=_ts(_text(status, "checkpointTs")),
        resolved_ts=_ts(_text(status, "resolvedTs")),
        facts=tuple(_facts(spec, status)),
        table_count=status.get("tables") if isinstance(status.get("tables"), int) else None,
        failure=_failure(_at(status, "lastError"), _text(status, "state")),
        conditions=tuple(_conditions(status)),
    )


def _facts(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if address := upstream_address(spec):
        yield "Upstream", address
    for kind, sink in _at(spec, "sink").items():
        uri = _text(status, "sinkUri") or (_text(sink, "uri") if isinstance(sink, Mapping) else "")
        yield "Sink", f"{kind} {uri}".strip()
        break
    rules = _at(spec, "filter").get("rules")
    yield "Selected tables", ", ".join(map(str, rules)) if isinstance(rules, list) else "*.*"
    if isinstance(rows := status.get("rows"), int):
        yield "Rows written", f"{rows:,}"
    for field, title in (("initialCopy", "Initial copy"), ("eventStoreMode", "Event store")):
        if said := _text(status, field):
            yield title, said
    if ddl := _at(status, "lastDdl"):
        yield "Last DDL", f"{_text(ddl, 'statement')} ({_text(ddl, 'time')})"
    hold = _at(status, "hold")
    if isinstance(kept := hold.get("keptBytes"), int):  # by a slot, which does not expire
        yield "WAL kept by the slot", f"{kept / (1 << 20):,.1f} MiB, {_text(hold, 'walStatus')}"
    elif until := _text(hold, "until"):
        yield "History held until", until
    if "attempt" in status:
        yield "Driver", f"attempt {status['attempt']}, epoch {status.get('epoch', 'not known')}"
    if total := _at(status, "restarts").get("total"):
        yield "Restarts", str(total)


def _failure(error: Mapping[str, Any], state: str) -> Failure | None:
    if not error:
        return None
    return Failure(
        kind=_text(error, "class"),
        message=_text(error, "message"),
        at_ms=_ms(_text(error, "time")),
        over=state in ("Normal", "Finished"),
        retry_ms=_ms(_text(error, "nextRetryTime")),
    )


def _conditions(status: Mapping[str, Any]) -> Iterator[ConditionView]:
    conditions = status.get("conditions")
    for each in conditions if isinstance(conditions, list) else ():
        if isinstance(each, Mapping):
            kind, answer, reason, message = (_text(each, part) for part in ("type", "status", "reason", "message"))
            yield ConditionView(kind, answer, reason, message, _ms(_text(each, "lastTransitionTime")))


def _at(raw: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    value = raw.get(part)
    return value if isinstance(value, Mapping) else {}


def _text(raw: Mapping[str, Any], part: str) -> str:
    value = raw.get(part)
    return value if isinstance(value, str) else ""


def _ts(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 20 else 0


def _ms(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return 0
    return int(moment.timestamp() * 1000) if moment.tzinfo else 0
