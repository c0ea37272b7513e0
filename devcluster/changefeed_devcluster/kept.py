"""What a cluster keeps in its data folder besides its rows, and how it comes back to where an earlier one ended."""

from __future__ import annotations

import secrets

from changefeed.wire import cdcpb_pb2 as cdcpb
from changefeed.wire import metapb_pb2 as metapb
from changefeed.wire import pdpb_pb2 as pdpb

from .journal import Journal, JournalRecord
from .pd.oracle import Oracle, compose
from .pd.regions import Regions
from .pd.safepoints import SafePoints, ServiceSafePoint
from .store.store import MvccStore


class KeptState:
    """Keeps state in a journal; without one nothing is kept.

    `cluster_id` is a new one when there was none. `first_start_ts`: what `save_start` was told in the folder's first
    life. `history_ts`: the last ts in the folder.
    """

    def __init__(self, journal: Journal | None) -> None:
        self.cluster_id = 0
        self.first_start_ts = 0
        self.history_ts = 0
        self._journal = journal

    def save_tso(self, physical_ms: int) -> None:
        if self._journal:
            self._journal.append(JournalRecord.TSO, pdpb.Timestamp(physical=physical_ms))

    def save_hold(self, hold: ServiceSafePoint) -> None:
        if self._journal:
            record = pdpb.UpdateServiceGCSafePointRequest(
                service_id=hold.service_id, TTL=hold.expires_at, safe_point=hold.safe_point
            )
            self._journal.append(JournalRecord.SERVICE_SAFEPOINT, record)

    def save_gc(self, safe_point: int) -> None:
        """History below it is deleted at this point in the journal."""
        if self._journal:
            self._journal.append(JournalRecord.GC_SAFEPOINT, pdpb.UpdateGCSafePointRequest(safe_point=safe_point))

    def save_start(self, ts: int) -> None:
        """The first one counts."""
        if not self.first_start_ts:
            self.first_start_ts = ts
            if self._journal:
                self._journal.append(JournalRecord.START, cdcpb.ResolvedTs(ts=ts))

    def restore(self, store: MvccStore, regions: Regions, oracle: Oracle, safepoints: SafePoints) -> None:
        """Brings all of it to where the folder's last cluster ended.

        Raises ValueError for a cluster of another number of stores.
        """
        stores = len(regions.store_ids)
        for kind, body in self._journal.replay() if self._journal else ():
            match kind:
                case JournalRecord.CLUSTER:
                    cluster = metapb.Cluster.FromString(body)
                    self.cluster_id = cluster.id
                    if cluster.max_peer_count != stores:
                        raise ValueError(f"the data folder holds a cluster of {cluster.max_peer_count} stores")
                case JournalRecord.REGIONS:
                    regions.restore(pdpb.ScanRegionsResponse.FromString(body))
                case JournalRecord.IDS:
                    regions.restore_ids(pdpb.AllocIDResponse.FromString(body).id)
                case JournalRecord.TSO:
                    oracle.raise_to(compose(pdpb.Timestamp.FromString(body).physical))
                case JournalRecord.SERVICE_SAFEPOINT:
                    hold = pdpb.UpdateServiceGCSafePointRequest.FromString(body)
                    safepoints.restore(ServiceSafePoint(hold.service_id, hold.TTL, hold.safe_point))
                case JournalRecord.GC_SAFEPOINT:
                    safepoints.gc_safe_point = pdpb.UpdateGCSafePointRequest.FromString(body).safe_point
                    store.collect_garbage(safepoints.gc_safe_point)
                case JournalRecord.START:
                    self.first_start_ts = cdcpb.ResolvedTs.FromString(body).ts
                case _:
                    self.history_ts = max(self.history_ts, store.replay(kind, body))
        oracle.raise_to(self.history_ts)
        if not self.cluster_id:
            self.cluster_id = secrets.randbits(62) | 1 << 62
            if self._journal:
                self._journal.append(JournalRecord.CLUSTER, metapb.Cluster(id=self.cluster_id, max_peer_count=stores))
