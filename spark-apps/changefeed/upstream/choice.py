"""Which kinds of upstream there are; the spec says which one a changefeed has."""

from __future__ import annotations

from pathlib import Path

from changefeed.spec.model import Changefeed
from changefeed.upstream.contract import Access
from changefeed.upstream.postgresql.access import PostgresqlAccess, own_slot
from changefeed.upstream.tikv.access import TikvAccess


def access_of(changefeed: Changefeed, secrets_dir: Path | None = None) -> Access:
    """How the changefeed's upstream is reached, whichever cluster that is.

    Raises InvalidSpec where spec.upstream names a Secret and the folder of Secrets is missing.
    """
    upstream = changefeed.spec.upstream
    if upstream.postgresql is not None:
        return PostgresqlAccess.of(upstream.postgresql, own_slot(changefeed), secrets_dir)
    return TikvAccess.of(upstream, secrets_dir)
