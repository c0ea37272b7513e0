"""Which kinds of upstream there are; the spec says which one a changefeed has."""

from __future__ import annotations

from pathlib import Path

from changefeed.errors import InvalidSpec
from changefeed.spec.model import Changefeed
from changefeed.upstream.contract import Access
from changefeed.upstream.tikv.access import TikvAccess
from changefeed.upstream.tikv.client.tls import UpstreamTls

_SECRET_FILES = "Give the folder DIR with DIR/<secretRef.name>/ca.crt, and tls.crt and tls.key for mutual TLS."


def access_of(changefeed: Changefeed, secrets_dir: Path | None = None) -> Access:
    """How the changefeed's upstream is reached, whichever cluster that is.

    Raises InvalidSpec for spec.upstream.tls without the folder of Secrets.
    """
    upstream, tls = changefeed.spec.upstream, None
    if upstream.tls is not None:
        secret = upstream.tls.secret_ref.name
        if secrets_dir is None:
            raise InvalidSpec("--secrets-dir", f"missing; spec.upstream.tls names Secret {secret}", _SECRET_FILES)
        tls = UpstreamTls(secrets_dir.absolute() / secret, upstream.tls.allowed_common_names)
    return TikvAccess(upstream.pd_addresses, tls)
