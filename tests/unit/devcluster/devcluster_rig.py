"""The change data core without a server, driven step by step by the tests."""

from __future__ import annotations

from changefeed.wire import cdcpb_pb2 as cdcpb
from changefeed_devcluster.cdc.cdc import messages, parse_version
from changefeed_devcluster.cdc.connection import CdcConnection, CdcRegistration
from changefeed_devcluster.cdc.subscriptions import SINK_QUOTA, Subscriptions
from changefeed_devcluster.cdc.troubles import InjectedTroubles
from changefeed_devcluster.frozen import FrozenHistory
from changefeed_devcluster.pd.oracle import Oracle
from changefeed_devcluster.pd.regions import Regions
from changefeed_devcluster.store.store import MvccStore
from changefeed_devcluster.store.txn import Mutation, Op
from changefeed_devcluster.watermark.gate import VersionGate
from changefeed_devcluster.watermark.watermarks import Watermarks

CLUSTER = 7


class Rig:
    """A store of one region led by store 1, with a subscriber's connection to it."""

    def __init__(
        self,
        version: str = "8.5.0",
        multiplexing: bool = True,
        frozen: FrozenHistory | None = None,
        proposed: int = 0,
        gated: bool = True,
        sink_quota: int = SINK_QUOTA,
    ) -> None:
        """`proposed`: so many of the three spare large transactions; they ask one another when `now` has moved."""
        self.troubles = InjectedTroubles()
        self.store = MvccStore()
        self.oracle = Oracle(clock=lambda: 1.0)
        self.regions = Regions(self.store.lock, [1, 2, 3])
        self.regions.bootstrap()
        self.now = 0.0
        self.gate = VersionGate([1, 2, 3], proposed, gated)
        self.watermarks = Watermarks(self.store, self.regions, self.gate, lambda: self.now)
        self.subscriptions = Subscriptions(
            self.store, self.regions, self.oracle, CLUSTER, frozen, self.troubles, self.watermarks, sink_quota
        )
        self.connection = self.connect(version, multiplexing)

    def connect(self, version: str = "8.5.0", multiplexing: bool = True) -> CdcConnection:
        connection = CdcConnection(1, multiplexing, lambda: None)
        connection.version = parse_version(version)
        self.subscriptions.connect(connection)
        return connection

    def request(self, **changed: object) -> cdcpb.ChangeDataRequest:
        found = self.regions.all()
        region = next((region for region in found if region.id == changed.get("region_id")), found[0])
        request = cdcpb.ChangeDataRequest(
            header=cdcpb.Header(cluster_id=CLUSTER),
            region_id=region.id,
            region_epoch=region.message.region_epoch,
            request_id=1,
        )
        for name, value in changed.items():
            setattr(request, name, value)
        return request

    def register(self, **changed: object) -> CdcRegistration:
        subscription = self.subscriptions.register(self.connection, self.request(**changed))
        assert subscription is not None
        return subscription

    def run_scan(self, subscription: CdcRegistration) -> None:
        """To its end, and a tick longer: the next one tells the subscription a resolved-ts."""
        snapshot = self.subscriptions.attach(subscription)
        assert snapshot is not None
        for _ in self.subscriptions.scan(subscription, snapshot):
            pass
        subscription.is_ripe = True

    def subscribe(self, **changed: object) -> CdcRegistration:
        subscription = self.register(**changed)
        self.run_scan(subscription)
        self.drain()
        return subscription

    @staticmethod
    def parsed(bodies: list[bytes]) -> list[cdcpb.Event]:
        return [event for body in bodies for event in cdcpb.ChangeDataEvent.FromString(body).events]

    def drain(self) -> list[cdcpb.ChangeDataEvent]:
        return [cdcpb.ChangeDataEvent.FromString(body) for body in messages(self.connection, self.connection.drain())]

    def events(self) -> list[cdcpb.Event]:
        return [event for message in self.drain() for event in message.events]

    def rows(self) -> list[tuple[int, str, str]]:
        """(type, key, value) of everything that is queued."""
        return [(row.type, row.key.decode(), row.value.decode()) for row in entries(self.events())]

    def resolved(self) -> list[tuple[list[int], int, int]]:
        self.subscriptions.advance()
        batches = [message.resolved_ts for message in self.drain() if message.HasField("resolved_ts")]
        return [(list(batch.regions), batch.ts, batch.request_id) for batch in batches]

    def later(self) -> int:
        """A second, and the resolved-ts that is told then."""
        self.now += 1.0
        ((_, ts, _),) = self.resolved()
        return ts

    def error(self) -> cdcpb.Error:
        (event,) = self.events()
        assert event.WhichOneof("event") == "error"
        return event.error


def entries(events: list[cdcpb.Event]) -> list[cdcpb.Event.Row]:
    return [row for event in events for row in event.entries.entries]


def put(key: str, value: str) -> Mutation:
    return Mutation(Op.PUT, key.encode(), value.encode())
