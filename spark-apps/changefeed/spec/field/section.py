"""What the sections of the resource share: how they are read, Secrets by reference, TLS."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict

from changefeed.spec.field.fields import many, text
from changefeed.spec.field.kind import RULES

DNS_LABEL = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
#: `fixed(FROM_CREATION)`: a value that stays as it was, unset included.
FROM_CREATION = "once the changefeed exists"


def ruled(*rules: JsonDict) -> ConfigDict:
    """Return what a section with rules over more than one of its fields adds to its configuration."""
    return ConfigDict(json_schema_extra={RULES: list(rules)})


class Section(BaseModel):
    """A mapping of the resource: camelCase names, nothing unknown in it. A field's docstring is its description."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=False,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )


class SecretRef(Section):
    name: Annotated[str, text(rf"{DNS_LABEL}(?:\.{DNS_LABEL})*", "the name of a Secret", 253)]
    """A Secret in the changefeed's namespace."""


class Credentials(Section):
    secret_ref: SecretRef
    """
    Keys of the Secret. S3: access-key-id, secret-access-key, session-token. Azure: account-key.
    Google: service-account.json. Each may have ca.crt, too: CAs, in PEM, to trust beside the system's. PostgreSQL,
    MySQL, Kafka and a catalog: username, password; a REST catalog: token or credential.
    """


class SinkTls(Section):
    secret_ref: SecretRef
    """Keys of the Secret, in PEM: ca.crt, the CAs to trust; for mutual TLS also tls.crt and tls.key, the client's."""


class UpstreamTlsSpec(SinkTls):
    allowed_common_names: Annotated[
        tuple[Annotated[str, text("[ -~]+", "the common name of a certificate", 253)], ...],
        many(0, 16, "at most 16 common names"),
    ] = ()
    """
    Every server's certificate must have one of these common names; empty: any. It must be valid for the server's host
    name in either case. If set, all servers behind one address must present the same certificate.
    """
