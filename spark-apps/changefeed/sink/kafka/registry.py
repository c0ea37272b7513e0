"""Asks a schema registry with Confluent's API for the numbers of schemas, by Confluent's own client.

A registry that is away is waited for, as a broker is. Of what answers, only a registry's own words are quoted, and
nothing that its Secret holds.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from changefeed.errors import ChangefeedError, NeedsHuman, Refused, Transient
from changefeed.objectstore.patience import Patience
from changefeed.secret_files import optional, tls_context, tls_files, user_and_password
from changefeed.spec.field.location import is_this_machine

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

_TIMEOUT_S = 10.0
_CONFLICT, _TOO_MANY, _TIMED_OUT = 409, 429, 408
_NO_SUCH_SCHEMA = 40403
#: A registry may answer this to the second of two that register the first schema of a subject at the same time.
_CONFLICTS = 3
_LONGEST_QUOTE = 500
_WHERE = (
    "Set spec.sink.kafka.schemaRegistry to where the registry's API is: Confluent's is at http://host:8081, "
    "Apicurio's at http://host:8080/apis/ccompat/v7."
)
_FILES = "Check the Secrets of spec.sink.kafka.schemaRegistryCredentials and schemaRegistryTls."


@dataclass(frozen=True)
class RegistryEndpoint:
    """`uri`: of its API. The folders of its Secrets (rule 21): `secret` of the user, `tls` of PEM files."""

    uri: str
    secret: Path | None = None
    tls: Path | None = None


class SchemaRegistry:
    """Any thread's. Numbers that it has been told are kept: a schema's never changes."""

    def __init__(self, endpoint: RegistryEndpoint, patience: Patience) -> None:
        self._endpoint, self._patience = endpoint, patience
        self._where = f"The schema registry at {endpoint.uri}"
        self._lock = threading.Lock()
        self._numbers: dict[tuple[str, str], int] = {}

    def number_of(self, subject: str, schema: str) -> int:
        """Registers it, or finds that it is. Waits while the registry is away.

        Raises NeedsHuman (the subject's older schemas forbid it), Unavailable.
        """
        known = self._numbers.get((subject, schema))
        if known is None:
            known = self._patience.call(self._where, partial(self._registered, subject, schema, count(1)))
            self._numbers[subject, schema] = known
        return known

    def schema_of(self, number: int) -> str:
        """The text of one that it has given a number. Waits while the registry is away.

        Raises NeedsHuman (it knows none of the number), Unavailable.
        """
        what = f"number {number}"
        found = self._patience.call(self._where, lambda: self._asked(what, lambda client: client.get_schema(number)))
        return str(found.schema_str)

    def _registered(self, subject: str, schema: str, conflicts: Iterator[int]) -> int:
        from confluent_kafka.schema_registry import Schema  # with it comes an HTTP client, which only avro needs

        number = self._asked(subject, lambda client: client.register_schema(subject, Schema(schema, "AVRO")), conflicts)
        if not isinstance(number, int):
            raise _no_registry(self._where, f"gives no number to a schema of {subject}")
        return number

    def _asked(
        self, subject: str, ask: Callable[[SchemaRegistryClient], Any], conflicts: Iterator[int] | None = None
    ) -> Any:
        # A client for each: schemas are few, and Secrets may be replaced between two attempts.
        client, secrets = _opened(self._where, self._endpoint)
        with self._lock, client:
            try:
                return ask(client)
            except Exception as failure:  # noqa: BLE001 - the client lets those of its HTTP and OAuth libraries out
                raise _meant(self._where, subject, secrets, failure, conflicts or count(1)) from None


def _opened(where: str, endpoint: RegistryEndpoint) -> tuple[SchemaRegistryClient, tuple[str, ...]]:
    """A client that neither waits nor tries again, and the secrets that it has. Raises Refused."""
    from confluent_kafka.schema_registry import SchemaRegistryClient

    config: dict[str, Any] = {"url": endpoint.uri, "timeout": _TIMEOUT_S, "max.retries": 0}
    if endpoint.tls is not None:
        tls_context(endpoint.tls)  # says what is wrong with the files
        names = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
        config |= {
            name: str(file) for name, file in zip(names, tls_files(endpoint.tls), strict=True) if file is not None
        }
    access, secrets = ({}, ()) if endpoint.secret is None else _access(where, endpoint.secret)
    try:
        return SchemaRegistryClient(config | access), secrets
    except ValueError as failure:
        raise Refused(f"{where} can't be asked: {type(failure).__name__}.", _FILES) from None


def _access(where: str, secret: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Who we are to it, and the parts of that nobody may see. Raises Refused, Transient."""
    if (token_url := optional(secret, "token-url")) is None:
        user, password = user_and_password(secret)
        return {"basic.auth.user.info": f"{user}:{password}"}, (password,)
    parts = urlsplit(token_url)
    if parts.scheme != "https" and not is_this_machine(parts.hostname or ""):
        raise Refused(
            f"{where} is not asked: the token-url in Secret {secret.name} is not https, so the client's secret would "
            "be sent in clear text.",
            "Use an https address.",
        )
    token = _token(where, token_url, secret)
    return {
        "bearer.auth.credentials.source": "STATIC_TOKEN",
        "bearer.auth.token": token,
        "bearer.auth.logical.cluster": optional(secret, "logical-cluster") or "",
        "bearer.auth.identity.pool.id": optional(secret, "identity-pool"),
    }, (token,)


def _token(where: str, url: str, secret: Path) -> str:
    from authlib.integrations.httpx_client import OAuth2Client
    from httpx2 import TransportError

    client, client_secret, scope = (optional(secret, name) for name in ("client-id", "client-secret", "scope"))
    issuer = f"{where} can't be asked: the issuer of its token"
    with OAuth2Client(client, client_secret, scope=scope, timeout=_TIMEOUT_S) as oauth:
        try:
            return str(oauth.fetch_token(url, grant_type="client_credentials")["access_token"])
        except TransportError as failure:
            raise _unanswered(issuer, failure) from None
        except Exception as failure:  # noqa: BLE001 - those of OAuth, and whatever an answer that is none leads to
            raise Refused(
                f"{issuer} gives none ({type(failure).__name__}).",
                "Check token-url, client-id, client-secret and scope in the Secret of schemaRegistryCredentials.",
            ) from None


def _meant(
    where: str, subject: str, secrets: tuple[str, ...], failure: Exception, conflicts: Iterator[int]
) -> ChangefeedError:
    """What the caller must do about it."""
    from confluent_kafka.schema_registry.error import SchemaRegistryError
    from httpx2 import TransportError

    if isinstance(failure, SchemaRegistryError):
        return _answer(where, subject, secrets, failure, conflicts)
    if isinstance(failure, TransportError):
        return _unanswered(where, failure)
    # Whatever it is that answers, it is not JSON as the API has it.
    return _no_registry(where, "gives an answer that no registry gives")


def _answer(
    where: str, subject: str, secrets: tuple[str, ...], answer: Any, conflicts: Iterator[int]
) -> ChangefeedError:
    """`answer`: the client's error of an answer, with its status; the code -1 if it is none of the API's."""
    status = answer.http_status_code
    if status in (401, 403):
        return Refused(f"{where} answers {status}.", "Check spec.sink.kafka.schemaRegistryCredentials.")
    if status >= 500 or status in (_TOO_MANY, _TIMED_OUT):
        return _answered(Transient(f"{where} answers {status}."))
    is_its_own = isinstance(answer.error_code, int) and answer.error_code != answer.UNKNOWN
    if answer.error_code == _NO_SUCH_SCHEMA:
        why = f"{where} has no schema of {subject}."
        return _answered(NeedsHuman(why, "Name the registry in which the messages' schemas were registered."))
    if status == 404 or not is_its_own:
        return _no_registry(where, f"answers {status}")
    why = f"{where} refuses a schema of {subject} ({status}): {_quoted(answer.error_message, secrets)}"
    if status == _CONFLICT:
        if next(conflicts) < _CONFLICTS:
            return _answered(Transient(why))
        return _answered(
            NeedsHuman(why, f"Set the compatibility of {subject}, or of the registry, to NONE, then start again.")
        )
    return _answered(NeedsHuman(why, "Look up the error in the registry's API, then start again."))


def _quoted(text: object, secrets: tuple[str, ...]) -> str:
    said = str(text)
    for secret in secrets:
        said = said.replace(secret, "***") if secret else said
    return said[:_LONGEST_QUOTE]


def _unanswered(where: str, failure: BaseException) -> ChangefeedError:
    cause: BaseException | None = failure
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return Refused(f"{where} has a certificate that is not trusted: {cause.verify_message}.", _FILES)
        cause = cause.__cause__ or cause.__context__
    error = Transient(f"{where} does not answer: {str(failure) or type(failure).__name__}.")
    error.answered = False
    return error


def _no_registry(where: str, what: str) -> Refused:
    """A running changefeed waits: whatever stands before a registry answers so while the registry starts."""
    return Refused(f"{where} {what}, so it is no schema registry.", _WHERE)


def _answered(error: ChangefeedError) -> ChangefeedError:
    error.answered = True
    return error
