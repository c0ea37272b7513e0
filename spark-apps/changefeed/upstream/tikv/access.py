"""How a TiKV cluster is reached, and which one it must be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from changefeed.errors import InvalidSpec
from changefeed.spec.upstream import UpstreamSpec
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.client.tls import UpstreamTls
from changefeed.upstream.tikv.cluster import TikvCluster

_SECRET_FILES = "Give the folder DIR with DIR/<secretRef.name>/ca.crt, and tls.crt and tls.key for mutual TLS."


@dataclass(frozen=True)
class TikvAccess:
    """`tls` None: without TLS. `cluster_id` 0: that of whichever PD answers first."""

    pd_addresses: tuple[str, ...]
    tls: UpstreamTls | None = None
    cluster_id: int = 0

    @classmethod
    def of(cls, upstream: UpstreamSpec, secrets_dir: Path | None) -> TikvAccess:
        """Raises InvalidSpec for `upstream.tls` without the folder of Secrets."""
        if upstream.tls is None:
            return cls(upstream.pd_addresses)
        secret = upstream.tls.secret_ref.name
        if secrets_dir is None:
            raise InvalidSpec("--secrets-dir", f"missing; spec.upstream.tls names Secret {secret}", _SECRET_FILES)
        return cls(
            upstream.pd_addresses, UpstreamTls(secrets_dir.absolute() / secret, upstream.tls.allowed_common_names)
        )

    @property
    def address(self) -> str:
        """The addresses of PD's servers, as one text."""
        return ", ".join(self.pd_addresses)

    @property
    def has_history(self) -> bool:
        """As Access.has_history: as far back as GC has not come."""
        return True

    def listed_hold(self, name: str) -> str:
        """As Access.listed_hold."""
        return name

    def of_cluster(self, cluster_id: int) -> TikvAccess:
        """As Access.of_cluster."""
        return replace(self, cluster_id=cluster_id)

    async def connect(self, deadline: float = 10.0) -> TikvCluster:
        """As PdClient.connect."""
        return TikvCluster(await PdClient.connect(self.pd_addresses, deadline, self.tls, self.cluster_id))
