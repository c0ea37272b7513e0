"""Drivers' words for pages, and pages as a browser's parser sees them."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

from changefeed.spec.driver_status import (
    DriverError,
    DriverStatus,
    LagSample,
    OpenTransaction,
    StageRate,
    TableStatus,
)

NOW_MS = 1_795_802_400_000  # 2026-11-27 18:00:00 UTC
_LOGICAL_BITS = 18
_VOID = {"meta", "link", "br"}


def ts(seconds_ago: float) -> int:
    return (NOW_MS - int(seconds_ago * 1000)) << _LOGICAL_BITS


def status(tables: int = 2, text: str = "", **changes: object) -> DriverStatus:
    """A driver's; table number i is i seconds behind, the furthest first. `text`: stands in every text of it."""
    values: dict[str, object] = {
        "namespace": "shop",
        "name": "orders",
        "epoch": 3,
        "state": "Normal",
        "message": text or "Running, epoch 3.",
        "version": text or "0.1.0",
        "at_ms": NOW_MS,
        "started_ms": NOW_MS - 60_000,
        "upstream": text or "http://pd:2379",
        "sink": text or "s3://lake/orders",
        "start_ts": ts(3600),
        "checkpoint_ts": ts(2.5),
        "resolved_ts": ts(0.5),
        "rows": 12_345,
        "lags": (
            LagSample(at_ms=NOW_MS - 10_000, pull=1, plan=2, write=3),
            LagSample(at_ms=NOW_MS, pull=0.5, plan=0.5, write=1.5),
        ),
        "stages": (StageRate(name=text or "puller", rows=5, rows_per_second=2, bytes=1_500, bytes_per_second=3),),
        "table_count": tables,
        "tables": tuple(
            TableStatus(name=text or f"shop.t{n}", dispatcher=100 + n, written_ts=ts(n), resolved_ts=ts(0.5))
            for n in range(tables, 0, -1)
        ),
        "transactions": (OpenTransaction(table=text or "shop.t1", puller=0, start_ts=ts(90), ttl_ms=120_000),),
        "last_error": DriverError(
            kind=text or "StoreAway",
            message=text or "No answer.",
            next_step=text or "Look at it.",
            at_ms=NOW_MS - 5_000,
        ),
    }
    return DriverStatus.model_validate(values | changes)


@dataclass
class Seen(HTMLParser):
    """A page, parsed: fails when its elements don't nest."""

    page: str
    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[str] = []
        self.feed(self.page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(data.strip())

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]
