"""How a TiKV cluster is reached, and which one it must be."""

from __future__ import annotations

from dataclasses import dataclass, replace

from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.client.tls import UpstreamTls
from changefeed.upstream.tikv.cluster import TikvCluster


@dataclass(frozen=True)
class TikvAccess:
    """`tls` None: without TLS. `cluster_id` 0: that of whichever PD answers first."""

    pd_addresses: tuple[str, ...]
    tls: UpstreamTls | None = None
    cluster_id: int = 0

    @property
    def address(self) -> str:
        """The addresses of PD's servers, as one text."""
        return ", ".join(self.pd_addresses)

    def of_cluster(self, cluster_id: int) -> TikvAccess:
        """As Access.of_cluster."""
        return replace(self, cluster_id=cluster_id)

    async def connect(self, deadline: float = 10.0) -> TikvCluster:
        """As PdClient.connect."""
        return TikvCluster(await PdClient.connect(self.pd_addresses, deadline, self.tls, self.cluster_id))
