"""Where an Iceberg sink is: the warehouse, and the catalog with its tables."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NoSuchTableError,
    OAuthError,
    RESTError,
    UnauthorizedError,
)
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from sqlalchemy import Dialect, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from changefeed.errors import E, OutcomeUnknown, Refused, Transient
from changefeed.objectstore import Location
from changefeed.objectstore.open import bucket_location, local_path
from changefeed.objectstore.remote.secret import s3_credentials
from changefeed.schema.table_info import TableInfo
from changefeed.secret_files import optional, tls_context, tls_files, user_and_password
from changefeed.sink.iceberg.layout import WAREHOUSE
from changefeed.spec.field.location import in_bucket

CATALOG = "spec.sink.iceberg.catalog"

_NAME = "changefeed"  # of a database's tables, where the resource says none
_DRIVERS = {"mysql": "mysql+pymysql", "postgresql": "postgresql+pg8000", "sqlite": "sqlite"}
#: Who is silent for so long gets the request again, or is told of as away; pyiceberg itself would wait for ever.
ANSWER_S = 60
PATIENCE = {"mysql": ("connect_timeout", "read_timeout"), "postgresql": ("timeout",)}
_TLS = {"mysql": "ssl", "postgresql": "ssl_context"}
_OF_CERTIFICATES = re.compile("CERTIFICATE|UNKNOWN_CA")  # as OpenSSL names reasons and alerts
_REGION = "us-east-1"
_S3_KEYS = {"access_key_id": "access-key-id", "secret_access_key": "secret-access-key", "token": "session-token"}

TableName = tuple[str, str]  # namespace, table


class _Adapter(HTTPAdapter):
    def __init__(self, tls: Path | None) -> None:
        self._tls = tls
        super().__init__()

    def send(self, request: PreparedRequest, **options: Any) -> Response:  # type: ignore[override] # as sessions call it
        options["timeout"] = options.get("timeout") or ANSWER_S
        if self._tls is not None:  # by its files alone: a context of ours would be given the system's CAs too
            ca, certificate, key = map(_path, tls_files(self._tls))
            options |= {"verify": ca, "cert": certificate and (certificate, key)}
        return super().send(request, **options)


def _path(file: Path | None) -> str | None:
    return None if file is None else str(file)


class _RestCatalog(RestCatalog):
    def __init__(self, tls: Path | None, **properties: str) -> None:
        self._tls = tls
        super().__init__(_NAME, **properties)

    def _create_session(self) -> Session:
        if self._tls is not None:
            tls_context(self._tls)  # refuses files that can't be used
        session = super()._create_session()
        for scheme in ("http://", "https://"):
            session.mount(scheme, _Adapter(self._tls))
        return session


class _SqlCatalog(SqlCatalog):
    def __init__(self, name: str, tls: Path | None, **properties: str) -> None:
        self._tls = tls
        super().__init__(name, **properties)

    def _init_catalog(self) -> None:
        # No connection is used twice. After a COMMIT that has failed, SQLAlchemy puts a connection back into its pool
        # with the transaction still open: whoever gets it next reads what was never committed, and then undoes it.
        self.engine = create_engine(self.properties["uri"], poolclass=NullPool)
        event.listen(self.engine, "do_connect", self._prepare)
        super()._init_catalog()

    def _prepare(self, dialect: Dialect, _: object, __: object, parameters: dict[str, Any]) -> None:
        """Give each connection what can't stand in a URL: PostgreSQL's driver takes no number from there."""
        parameters.update(dict.fromkeys(PATIENCE.get(dialect.name, ()), ANSWER_S))
        if self._tls is not None:
            parameters[_TLS[dialect.name]] = tls_context(self._tls)


@dataclass(frozen=True)
class IcebergEndpoint:
    """Holds no secret itself: `catalog_secret` and `catalog_tls` are folders of Secrets' files."""

    warehouse: Location
    catalog_uri: str
    catalog_name: str = ""
    catalog_secret: Path | None = None
    prefix: str = ""
    catalog_tls: Path | None = None

    def open(self) -> Catalog:
        """Raises Refused, OutcomeUnknown (it does not answer)."""
        properties = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO", **self._store()}
        with told(self.catalog_uri):
            if urlsplit(self.catalog_uri).scheme in ("http", "https"):
                asked = {"warehouse": self.catalog_name} if self.catalog_name else {}
                given = {"uri": self.catalog_uri, **asked, **self._rest_secret(), **properties}
                return _RestCatalog(self.catalog_tls, **given)
            return _SqlCatalog(self.catalog_name or _NAME, self.catalog_tls, uri=self._sql(), **properties)

    def name(self, table: TableInfo) -> TableName:
        return f"{self.prefix}{table.schema_name}", table.name

    def location(self, path: str) -> str:
        """Return the location of an object of the warehouse, as Iceberg writes it."""
        uri = self.warehouse.uri
        if not in_bucket(uri):
            return f"file://{local_path(uri, WAREHOUSE)}/{path}"
        found = bucket_location(uri, WAREHOUSE)
        return "/".join(part for part in (f"s3://{found.bucket}", found.prefix, path) if part)

    def _store(self) -> dict[str, str]:
        if not in_bucket(self.warehouse.uri):
            return {}
        found = bucket_location(self.warehouse.uri, WAREHOUSE)
        properties = {"s3.region": found.region or _REGION}
        if found.endpoint:
            properties["s3.endpoint"] = found.endpoint
        if not found.path_style:
            properties["s3.force-virtual-addressing"] = "true"
        if self.warehouse.secret is not None:
            keys = s3_credentials(self.warehouse.secret)()
            properties |= {f"s3.{name}": str(keys[key]) for key, name in _S3_KEYS.items() if keys[key]}
        return properties

    def _rest_secret(self) -> dict[str, str]:
        if self.catalog_secret is None:
            return {}
        given = {name: optional(self.catalog_secret, name) for name in ("token", "credential")}
        return {name: value for name, value in given.items() if value is not None}

    def _sql(self) -> str:
        from sqlalchemy import URL, make_url

        parts = urlsplit(self.catalog_uri)
        driver = _DRIVERS[parts.scheme]
        if parts.scheme == "sqlite":
            return self.catalog_uri
        url = make_url(urlunsplit(parts._replace(scheme=driver)))
        if self.catalog_secret is not None:
            user, password = user_and_password(self.catalog_secret)
            url = URL.set(url, username=user, password=password)
        elif parts.scheme == "postgresql" and not url.username:  # its driver has no default
            raise Refused(f"{self.catalog_uri} needs a user.", f"Set {CATALOG}.credentials.")
        return url.render_as_string(hide_password=False)


@contextmanager
def told(where: str) -> Iterator[None]:
    """Failures of the libraries as ours. What they say may quote secrets: none of it goes on but a kind.

    Raises Transient (nothing has happened), OutcomeUnknown, Refused.
    """
    try:
        yield
    except (CommitFailedException, NoSuchTableError) as error:
        raise _answered(Transient(f"A table of {where} was changed by someone else: {error}"), True) from None
    except (UnauthorizedError, ForbiddenError, AuthorizationExpiredError, OAuthError) as error:
        raise Refused(
            f"{where} does not let us in: {type(error).__name__}.", f"Look at {CATALOG}.credentials and its rights."
        ) from None
    except (CommitStateUnknownException, RESTError, DBAPIError, OSError) as error:
        if mistrust := _mistrust(error):
            raise Refused(
                f"{where}: TLS has failed: {mistrust}.", f"Look at its certificate and at the Secret of {CATALOG}.tls."
            ) from None
        kind = getattr(getattr(error, "orig", None), "sqlite_errorname", type(error).__name__)
        failure = OutcomeUnknown(f"{where} has failed: {kind}.")
        # A driver of a database does not tell a server that is away from one that answers badly.
        unknown = isinstance(error, (CommitStateUnknownException, DBAPIError))
        raise _answered(failure, None if unknown else isinstance(error, RESTError)) from None


def _mistrust(error: BaseException | None) -> str:
    """Why one end has refused the other's certificate, so that nothing was asked for; "" if it was something else."""
    while error is not None:
        if isinstance(error, ssl.SSLError) and _OF_CERTIFICATES.search(error.reason or ""):
            return getattr(error, "verify_message", "") or error.reason
        error = error.__cause__ or error.__context__
    return ""


def _answered(failure: E, has_answered: bool | None) -> E:
    failure.answered = has_answered
    return failure
