"""How a PostgreSQL database is reached, by which slot it is read, and which one it must be."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from changefeed.errors import NeedsHuman, Transient, Unavailable
from changefeed.secret_files import tls_files, user_and_password
from changefeed.spec.field.secret import secret_folder
from changefeed.spec.model import Changefeed
from changefeed.spec.upstream import PostgresqlSpec
from changefeed.spec.upstream_address import postgresql_address

if TYPE_CHECKING:
    from changefeed.upstream.postgresql.database import PostgresqlDatabase

_FIELD = "spec.upstream.postgresql"


@dataclass(frozen=True)
class PostgresqlAccess:
    """`secret`, `tls`: folders of Secrets; what is in them is read with each `connect`.

    `cluster_id` 0: whichever database is there.
    """

    host: str
    port: int
    database: str
    slot: str
    publication: str
    secret: Path
    tls: Path | None = None
    cluster_id: int = 0

    @classmethod
    def of(cls, upstream: PostgresqlSpec, slot: str, secrets_dir: Path | None) -> PostgresqlAccess:
        """`slot`: the one of a resource that names none. Raises InvalidSpec without the folder of Secrets."""
        secret = secret_folder(f"{_FIELD}.credentials", upstream.credentials, secrets_dir)
        assert secret is not None, "credentials are required"
        return cls(
            upstream.host,
            upstream.port,
            upstream.database,
            upstream.slot or slot,
            upstream.publication,
            secret,
            secret_folder(f"{_FIELD}.tls", upstream.tls, secrets_dir),
        )

    @property
    def address(self) -> str:
        """The database's, without a user."""
        return postgresql_address(self.host, self.port, self.database)

    @property
    def has_history(self) -> bool:
        """As Access.has_history. The slot has changes, for its one reader, and no rows."""
        return False

    def listed_hold(self, name: str) -> str:
        """As Access.listed_hold: a changefeed's hold is its slot."""
        return self.slot

    def of_cluster(self, cluster_id: int) -> PostgresqlAccess:
        """As Access.of_cluster."""
        return replace(self, cluster_id=cluster_id)

    async def connect(self, deadline: float = 10.0) -> PostgresqlDatabase:
        """Raises Unavailable, Refused, NeedsHuman."""
        from changefeed.upstream.postgresql.database import PostgresqlDatabase, cluster_id_of
        from changefeed.upstream.postgresql.patience import patiently
        from changefeed.upstream.postgresql.server import PostgresqlServer

        user, password = user_and_password(self.secret)
        tls = None if self.tls is None else tls_files(self.tls)
        server = PostgresqlServer(self.host, self.port, self.database, user, password, tls)
        try:
            found = await patiently(partial(cluster_id_of, server), deadline)
        except Transient as error:
            raise Unavailable(error.message, error.next_step) from error
        if self.cluster_id not in (0, found):
            raise NeedsHuman(
                f"The database at {self.address} has the number {found}, not {self.cluster_id}, which the changefeed "
                "reads: it is another one, or was made anew.",
                f"Point {_FIELD} at the changefeed's own database, or create a new changefeed.",
            )
        return PostgresqlDatabase(server, self.slot, self.publication, found)


def own_slot(changefeed: Changefeed) -> str:
    """Name the slot of a changefeed whose resource names none.

    It is that of a state id or a resource, and not of a namesake before it, or of one whose state is elsewhere.
    """
    metadata, state = changefeed.metadata, changefeed.spec.state
    whose = (state.id,) if state.id else (metadata.namespace, metadata.name, metadata.uid)
    digest = hashlib.sha256(json.dumps([state.uri, *whose]).encode()).hexdigest()[:16]
    readable = re.sub("[^a-z0-9]", "_", state.id or f"{metadata.namespace}_{metadata.name}")[:35]
    return f"changefeed_{readable}_{digest}"
