"""How a cluster is reached, and which one it must be: what every process of a changefeed is told about its upstream."""

from __future__ import annotations

from dataclasses import dataclass

from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.client.tls import UpstreamTls


@dataclass(frozen=True)
class Access:
    """`tls` None: without TLS. `cluster_id` 0: that of whichever PD answers first."""

    pd_addresses: tuple[str, ...]
    tls: UpstreamTls | None = None
    cluster_id: int = 0

    async def connect(self, deadline: float = 10.0) -> PdClient:
        """As PdClient.connect."""
        return await PdClient.connect(self.pd_addresses, deadline, self.tls, self.cluster_id)
