"""Parses the source's `.option(name, value)` pairs. Pure. No option takes a secret, because Spark displays them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from changefeed.errors import InvalidSpec
from changefeed.model import tso
from changefeed.objectstore import Location
from changefeed.objectstore.open import below, canonical
from changefeed.spec.field.location import in_bucket
from changefeed.spec.field.quantity import parse_duration, parse_size
from changefeed.upstream.tikv.access import TikvAccess
from changefeed.upstream.tikv.client.channels import parse_address
from changefeed.upstream.tikv.client.tls import UpstreamTls

LATEST = "latest"
_NAMES = (
    "pdAddresses",
    "tables",
    "startingVersion",
    "endingVersion",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "tlsDir",
    "eventStore",
    "eventStoreSecretDir",
    "safepointTtl",
)
_MAX_BYTES = "256Mi"
_SAFEPOINT_TTL = "24h"
_SHORTEST_TTL_S = 600.0


@dataclass(frozen=True)
class TableName:
    schema: str
    table: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"

    def is_of(self, schema: str, table: str) -> bool:
        """TiDB's table names are case-insensitive."""
        return (self.schema.lower(), self.table.lower()) == (schema.lower(), table.lower())


@dataclass(frozen=True)
class SourceOptions:
    """`from_ts`: exclusive lower bound, None for now. `to_ts`: inclusive upper bound, None if not set.

    `max_rows`, `max_bytes`: per batch; None: unlimited. `event_store`: parent of each stream's own folder.
    """

    access: TikvAccess
    table: TableName
    from_ts: int | None
    to_ts: int | None
    max_rows: int | None
    max_bytes: int
    event_store: Location
    safepoint_ttl_s: int

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """`given`: option names in any case, as Spark passes them. Raises InvalidSpec naming the option."""
        lower = {name.lower(): value for name, value in given.items()}
        unknown = sorted(lower.keys() - {name.lower() for name in _NAMES})
        if unknown:
            raise InvalidSpec(unknown[0], "is not an option of the changefeed source", f"Allowed: {', '.join(_NAMES)}.")
        values = {name: lower[name.lower()] for name in _NAMES if name.lower() in lower}
        from_ts, to_ts = _from_ts(values.get("startingVersion", LATEST)), _to_ts(values.get("endingVersion"))
        if from_ts is not None and to_ts is not None and to_ts <= from_ts:
            raise InvalidSpec(
                "endingVersion", f"{to_ts} is below startingVersion {from_ts + 1}", "Set a later version."
            )
        return cls(
            access=_access(values),
            table=_table(_required(values, "tables")),
            from_ts=from_ts,
            to_ts=to_ts,
            max_rows=_whole("maxRowsPerTrigger", values.get("maxRowsPerTrigger")),
            max_bytes=_bytes("maxBytesPerTrigger", values.get("maxBytesPerTrigger", _MAX_BYTES)),
            event_store=_event_store(values),
            safepoint_ttl_s=_ttl(values.get("safepointTtl", _SAFEPOINT_TTL)),
        )

    def location(self, name: str) -> Location:
        """The folder for the segments of a stream or task."""
        return Location(below(self.event_store.uri, name, field="eventStore"), self.event_store.secret)


def _required(values: Mapping[str, str], name: str) -> str:
    if not values.get(name, "").strip():
        raise InvalidSpec(name, "missing", f'Set it with .option("{name}", ...).')
    return values[name]


def _access(values: Mapping[str, str]) -> TikvAccess:
    addresses = tuple(address.strip() for address in _required(values, "pdAddresses").split(","))
    for address in addresses:
        parse_address(address)
    secure = {address.startswith("https://") for address in addresses}
    tls_dir = values.get("tlsDir")
    if secure != {tls_dir is not None}:
        raise InvalidSpec(
            "pdAddresses",
            "tlsDir and https:// must be used together, for all addresses or none",
            "For TLS, use https:// addresses and set tlsDir to the directory with ca.crt (plus tls.crt and tls.key for "
            "mutual TLS). Otherwise use http:// and leave tlsDir out.",
        )
    return TikvAccess(addresses, None if tls_dir is None else UpstreamTls(_folder("tlsDir", tls_dir)))


def _folder(name: str, value: str) -> Path:
    path = Path(value)
    if not path.is_absolute():
        raise InvalidSpec(
            name, f"{value!r} is not an absolute path", "Use an absolute path: tasks run in other directories."
        )
    return path


def _table(value: str) -> TableName:
    match value.strip().split("."):
        case [schema, table] if schema and table and "," not in value:
            return TableName(schema, table)
    raise InvalidSpec(
        "tables", f"{value!r} is not one table", "Use schema.table. A stream reads one table: start a stream for each."
    )


def _from_ts(value: str) -> int | None:
    """startingVersion is inclusive, as in Delta; a puller's start ts is exclusive."""
    if value.strip().lower() == LATEST:
        return None
    return max(1, tso.ts_of(value.strip(), "startingVersion") - 1)


def _to_ts(value: str | None) -> int | None:
    if value is None:
        return None
    text = value.strip()
    ts = tso.ts_of(text, "endingVersion")
    return ts if text.isdecimal() else ts | tso.MAX_LOGICAL


def _whole(name: str, value: str | None) -> int | None:
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal() and int(value) > 0):
        raise InvalidSpec(name, f"{value!r} is not a row count", "Allowed: an integer of at least 1.")
    return int(value)


def _bytes(name: str, value: str) -> int:
    try:
        size = parse_size(value)
    except ValueError:
        size = 0
    if size <= 0:
        raise InvalidSpec(name, f"{value!r} is not a size", "Allowed: bytes, such as 268435456 or 256Mi.")
    return size


def _ttl(value: str) -> int:
    try:
        seconds = parse_duration(value)
    except ValueError:
        seconds = 0.0
    if seconds < _SHORTEST_TTL_S:
        raise InvalidSpec("safepointTtl", f"{value!r} is not a duration of at least 10m", "Examples: 10m, 24h.")
    return int(seconds)


def _event_store(values: Mapping[str, str]) -> Location:
    uri, secret = values.get("eventStore"), values.get("eventStoreSecretDir")
    if uri is None:
        folder = Path(tempfile.gettempdir()) / f"changefeed-{os.getuid()}" / "spark-source"
        return Location(folder.as_uri())
    if secret is not None and not in_bucket(uri):
        raise InvalidSpec("eventStoreSecretDir", "eventStore is not a bucket", "Leave it out.")
    return Location(canonical(uri, "eventStore"), None if secret is None else _folder("eventStoreSecretDir", secret))
