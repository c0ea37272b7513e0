"""Tables of Apache Iceberg."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import ValidationInfo, field_validator

from changefeed.spec.field.fields import Bytes, Seconds, Warehouse, duration, one_of, server_of, size, text
from changefeed.spec.field.kind import fixed, rule, wrong
from changefeed.spec.field.section import FROM_CREATION, Credentials, Section, SinkTls, ruled
from changefeed.spec.sink.section import InClearText, SinkSection
from changefeed.spec.sink.staying import STAYS, as_created, stays

_CATALOGS = ("http", "https", "mysql", "postgresql", "sqlite")
_CATALOG_ALLOWED = (
    "https://host:port/path, postgresql://host:port/database, mysql://host:port/database or sqlite:///path"
)


_SPEAKS_TLS = ("https", "mysql", "postgresql")
_NEEDS_TLS = f"none unless the uri begins with {', '.join(f'{scheme}://' for scheme in _SPEAKS_TLS)}"


class IcebergCatalog(Section):
    """The catalog that the tables stand in."""

    model_config = ruled(rule(f"!has(self.tls) || self.uri.matches('^({'|'.join(_SPEAKS_TLS)})://')", _NEEDS_TLS))

    uri: Annotated[str, server_of(_CATALOGS, _CATALOG_ALLOWED), STAYS, fixed(FROM_CREATION)]
    """A REST catalog (http or https), or a database used as a JDBC catalog."""
    name: Annotated[str, text(r"[A-Za-z0-9_.\-]*", "letters, digits and _ . -", 255)] = ""
    """
    REST: the warehouse to ask the catalog for. Database: the catalog name under which tables are registered; readers
    use the same one. Empty: changefeed.
    """
    credentials: Credentials | None = None
    """Database: username, password. REST: token, or credential (id:secret)."""
    tls: SinkTls | None = None
    """
    TLS to the catalog. Without it, the certificate of a REST catalog is checked against the system's CAs, and that of a
    database is not checked.
    """

    @field_validator("tls")
    @classmethod
    def _where_it_is_spoken(cls, tls: SinkTls | None, info: ValidationInfo) -> SinkTls | None:
        if tls is not None and not str(info.data.get("uri", _SPEAKS_TLS[0])).startswith(_SPEAKS_TLS):
            raise wrong(_NEEDS_TLS)
        return tls


class Iceberg(SinkSection):
    """Tables of Apache Iceberg, one for each table of the upstream."""

    model_config = ruled(as_created("mode", "'append'"), as_created("namespacePrefix", "''"))

    warehouse: Annotated[Warehouse, stays("warehouse"), fixed(FROM_CREATION)]
    """Root folder of the tables' files."""
    catalog: IcebergCatalog
    """Where readers find the tables."""
    mode: Annotated[str, one_of("append", "upsert"), fixed(FROM_CREATION)] = "append"
    """append: each table is a changelog of all changes. upsert: each table mirrors the upstream's current rows."""
    namespace_prefix: Annotated[str, text("[A-Za-z0-9_]*", "letters, digits and _", 64), fixed(FROM_CREATION)] = ""
    """Prefix added to a database's name to form its namespace."""
    flush_interval: Annotated[Seconds, duration("100ms", "1h")] = 60.0
    """Longest time a change waits before it is committed. Every commit adds a snapshot and a file."""
    file_size: Annotated[Bytes, size("1Mi", "512Mi")] = 64 << 20
    """Approximate size at which a file is written. Transactions are never split."""
    credentials: Credentials | None = None
    """Credentials to write to the warehouse."""

    @property
    def uri(self) -> str:
        """Say where the changes go."""
        return self.warehouse

    def servers(self) -> tuple[str, ...]:
        return (self.catalog.uri,)

    def stores(self) -> tuple[str, ...]:
        return (self.warehouse,)

    def folders(self) -> tuple[tuple[str, str], ...]:
        return (("spec.sink.iceberg.warehouse", self.warehouse),)

    def in_clear_text(self) -> Iterator[InClearText]:
        if self.catalog.credentials is not None and self.catalog.tls is None:
            catalog = urlsplit(self.catalog.uri)
            mend = "Use https in its uri." if catalog.scheme == "http" else "Set spec.sink.iceberg.catalog.tls."
            if catalog.scheme in ("http", "mysql", "postgresql"):
                yield InClearText("spec.sink.iceberg.catalog.credentials", catalog.hostname or "", False, mend)
