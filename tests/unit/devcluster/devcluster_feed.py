"""What the tests of the development cluster's servers share: calls, and a change data stream read into a queue."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from changefeed.wire import cdcpb_pb2 as cdcpb
from changefeed.wire import kvrpcpb_pb2 as kvrpcpb
from changefeed.wire import pdpb_pb2 as pdpb
from changefeed_devcluster.pd.regions import Region
from changefeed_devcluster.server import DevCluster

DEADLINE = 20.0
MULTIPLEXING = (("features", "stream-multiplexing"),)


def call(address: str, method: str, request: Any, response: Any) -> Any:
    with grpc.insecure_channel(address) as channel:
        stub = channel.unary_unary(
            method, request_serializer=type(request).SerializeToString, response_deserializer=response.FromString
        )
        return stub(request, timeout=DEADLINE)


def pd(cluster: DevCluster, name: str, **fields: Any) -> Any:
    """Calls PD with the right cluster id; the message classes follow from the name of the call."""
    request_name = {"GetPrevRegion": "GetRegion"}.get(name, name) + "Request"
    response_name = {"GetPrevRegion": "GetRegion", "GetRegionByID": "GetRegion"}.get(name, name) + "Response"
    header = pdpb.RequestHeader(cluster_id=cluster.cluster_id)
    request = getattr(pdpb, request_name)(header=header, **fields)
    return call(cluster.pd_address, f"/pdpb.PD/{name}", request, getattr(pdpb, response_name))


def kv(cluster: DevCluster, name: str, region: Region, context: dict[str, Any] | None = None, **fields: Any) -> Any:
    """Calls the region's leader, unless `context` says otherwise."""
    about = {"region_id": region.id, "region_epoch": region.message.region_epoch, "peer": region.leader}
    request = getattr(kvrpcpb, f"{name}Request")(context=kvrpcpb.Context(**{**about, **(context or {})}), **fields)
    address = cluster.store_addresses[region.leader_store]
    method = {"BatchRollback": "KvBatchRollback"}.get(name, f"Kv{name}")
    return call(address, f"/tikvpb.Tikv/{method}", request, getattr(kvrpcpb, f"{name}Response"))


class Feed:
    """A change data stream whose messages are read by a thread into a queue."""

    def __init__(
        self,
        cluster: DevCluster,
        store_id: int = 1,
        metadata: tuple[tuple[str, str], ...] = MULTIPLEXING,
        method: str = "EventFeedV2",
        version: str = "8.5.0",
    ) -> None:
        self.cluster = cluster
        self.version = version
        self._requests: queue.Queue[cdcpb.ChangeDataRequest | None] = queue.Queue()
        self._got: queue.Queue[cdcpb.ChangeDataEvent | grpc.RpcError] = queue.Queue()
        self._channel = grpc.insecure_channel(
            cluster.store_addresses[store_id], options=[("grpc.max_receive_message_length", 1 << 28)]
        )
        self._call = self._channel.stream_stream(
            f"/cdcpb.ChangeData/{method}",
            request_serializer=cdcpb.ChangeDataRequest.SerializeToString,
            response_deserializer=cdcpb.ChangeDataEvent.FromString,
        )(iter(self._requests.get, None), metadata=metadata)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            for message in self._call:
                self._got.put(message)
        except grpc.RpcError as error:
            self._got.put(error)

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.put(None)
        self._call.cancel()
        self._thread.join()
        self._channel.close()

    def register(self, region: Region, request_id: int = 1, checkpoint_ts: int = 0, **fields: Any) -> None:
        defaults: dict[str, Any] = {
            "header": cdcpb.Header(cluster_id=self.cluster.cluster_id, ticdc_version=self.version),
            "region_id": region.id,
            "region_epoch": region.message.region_epoch,
            "request_id": request_id,
            "checkpoint_ts": checkpoint_ts,
        }
        self._requests.put(cdcpb.ChangeDataRequest(**{**defaults, **fields}))

    def next(self) -> cdcpb.ChangeDataEvent:
        got = self._got.get(timeout=DEADLINE)
        if isinstance(got, grpc.RpcError):
            raise got
        return got

    def hears(self, wanted: Callable[[cdcpb.ChangeDataEvent], bool], seconds: float) -> bool:
        """Whether a wanted message comes within a time; nothing that came is lost."""
        deadline = time.monotonic() + seconds
        came: list[cdcpb.ChangeDataEvent | grpc.RpcError] = []
        while time.monotonic() < deadline:
            try:
                came.append(self._got.get(timeout=max(deadline - time.monotonic(), 0)))
            except queue.Empty:
                break
        while not self._got.empty():
            came.append(self._got.get())
        for message in came:
            self._got.put(message)
        return any(isinstance(message, cdcpb.ChangeDataEvent) and wanted(message) for message in came)

    def until(self, wanted: Callable[[cdcpb.ChangeDataEvent], bool]) -> list[cdcpb.ChangeDataEvent]:
        """All messages up to the first wanted one."""
        messages = [self.next()]
        while not wanted(messages[-1]):
            messages.append(self.next())
        return messages

    def until_initialized(self) -> list[cdcpb.Event.Row]:
        return rows(self.until(lambda message: any(row.type == 5 for row in rows([message]))))

    def error(self) -> cdcpb.Event:
        messages = self.until(lambda message: any(event.HasField("error") for event in message.events))
        return next(event for event in messages[-1].events if event.HasField("error"))


def rows(messages: list[cdcpb.ChangeDataEvent]) -> list[cdcpb.Event.Row]:
    return [row for message in messages for event in message.events for row in event.entries.entries]


def failure(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details() or ""


def until(holds: Callable[[], bool]) -> None:
    """Waits until it holds."""
    waits = threading.Event()
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        if holds():
            return
        waits.wait(0.01)
    raise AssertionError("it never holds")
