"""The owner service over real TLS: who gets in, and what becomes of a task's stream."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import pytest
from changefeed.errors import Fenced, NeedsHuman, Unavailable
from changefeed.owner.serving import service as service_module
from changefeed.owner.serving.certificate import self_signed
from changefeed.owner.serving.service import OwnerService
from changefeed.wire import owner_pb2 as pb
from changefeed.wire.owner import PIPELINE, PULLER, SERVER_NAME, OwnerAddress, RunKey
from changefeed.wire.owner_client import OwnerClient, reporting

DEADLINE = 10.0
Call = grpc.aio.StreamStreamCall[Any, Any]


class Handler:
    """Keeps what the service hands on, in order."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.changed = asyncio.Event()
        self.joins = 0

    def puller_joined(self, puller: int) -> list[pb.Command]:
        self.joins += 1
        self._see(("joined", puller))
        return [pb.Command(subscribe=pb.Subscribe(sub_id=self.joins, span_id=70))]

    def puller_left(self, puller: int) -> None:
        self._see(("left", puller))

    def report(self, puller: int, report: pb.Report) -> None:
        if report.failures:
            raise ZeroDivisionError("a fault of ours")
        self._see(("report", puller, [resolved.ts for resolved in report.resolved]))

    def task_joined(self, task: int) -> list[pb.Order]:
        self._see(("task joined", task))
        return [pb.Order(write=pb.Write(work=b"first"))]

    def task_left(self, task: int) -> None:
        self._see(("task left", task))

    def written(self, task: int, written: pb.Written) -> None:
        self._see(("written", task, [file.entry for file in written.files]))

    def fail(self, failure: pb.Failure) -> None:
        self._see(failure)

    def _see(self, what: Any) -> None:
        self.seen.append(what)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture
async def service(handler: Handler) -> AsyncIterator[OwnerService]:
    made = OwnerService(handler, 3, "ab")
    yield made
    await made.stop()


@pytest.fixture
async def address(service: OwnerService) -> OwnerAddress:
    return await service.start()


@pytest.fixture
async def channel(address: OwnerAddress) -> AsyncIterator[grpc.aio.Channel]:
    async with address.aio_channel() as opened:
        yield opened


def begin(channel: grpc.aio.Channel, address: OwnerAddress, method: str = PULLER) -> Call:
    said, told = (pb.Report, pb.Command) if method == PULLER else (pb.Written, pb.Order)
    stream: Any = channel.stream_stream(
        method, request_serializer=said.SerializeToString, response_deserializer=told.FromString
    )
    call: Call = stream(metadata=address.metadata)
    return call


async def join(channel: grpc.aio.Channel, address: OwnerAddress, puller: int = 0) -> Call:
    call = begin(channel, address)
    await call.write(pb.Report(puller=puller))
    return call


async def sub_id(call: Call) -> int:
    command = await asyncio.wait_for(call.read(), DEADLINE)
    assert isinstance(command, pb.Command)
    return command.subscribe.sub_id


async def end(call: Call) -> None:
    """Read until the task is told to leave, as every task is before its stream ends; it does."""
    while not (told := await call.read()).HasField("end"):
        assert isinstance(told, pb.Command | pb.Order)
    call.cancel()


def test_token_is_in_no_repr() -> None:
    address = OwnerAddress("h:1", 3, "ab", "a-secret", b"a-certificate", RunKey(b"a-private-key", b"a-certificate"))
    assert "secret" not in repr(address)
    assert "private-key" not in repr(address)
    assert "certificate" not in repr(address)


async def test_every_run_has_its_own_token_and_certificate(address: OwnerAddress, handler: Handler) -> None:
    second = OwnerService(handler, 3, "ab")
    other = await second.start()
    assert address.token != other.token
    assert address.run_key != other.run_key
    assert address.run_key.certificate != address.certificate, "a task is not the owner"
    assert len(address.token) == 64
    with OwnerClient(replace(address, target=other.target)) as client, pytest.raises(Unavailable):
        await asyncio.to_thread(client.fail, NeedsHuman("no"))  # TLS: the certificate is another's
    await second.stop()


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"token": "guessed"}, "UNAUTHENTICATED"),
        ({"token": ""}, "UNAUTHENTICATED"),
        ({"epoch": 2}, "FAILED_PRECONDITION"),
    ],
)
async def test_rule_6_only_tasks_of_this_run_get_in(
    address: OwnerAddress, handler: Handler, wrong: dict[str, Any], code: str
) -> None:
    stranger = replace(address, **wrong)
    with OwnerClient(stranger) as client:
        with pytest.raises(Fenced, match=code) as caught:
            await asyncio.to_thread(client.fail, NeedsHuman("no"))
        assert address.token not in str(caught.value)
    async with stranger.aio_channel() as channel:
        for method in (PULLER, PIPELINE):
            assert (await begin(channel, stranger, method).code()).name == code
    assert handler.seen == []


async def test_a_pipeline_task_joins_is_given_work_says_what_it_has_written_and_leaves(
    service: OwnerService, address: OwnerAddress, channel: grpc.aio.Channel, handler: Handler
) -> None:
    call = begin(channel, address, PIPELINE)
    await call.write(pb.Written(task=2))
    assert (await call.read()).write.work == b"first"
    service.order(2, pb.Order(write=pb.Write(work=b"second")))
    service.order(3, pb.Order(write=pb.Write(work=b"for nobody")))
    assert (await call.read()).write.work == b"second"
    await call.write(pb.Written(task=2, files=[pb.FileDone(plan=7, entry=1)]))
    await handler.until(lambda: len(handler.seen) == 3)
    async with asyncio.timeout(DEADLINE):
        await asyncio.gather(service.stop(), end(call))
    assert handler.seen == [("task joined", 2), ("written", 2, []), ("written", 2, [1]), ("task left", 2)]


async def test_a_puller_and_a_pipeline_task_of_one_number_are_two(
    address: OwnerAddress, channel: grpc.aio.Channel, handler: Handler
) -> None:
    puller = await join(channel, address)
    await sub_id(puller)
    task = begin(channel, address, PIPELINE)
    await task.write(pb.Written())
    assert (await task.read()).HasField("write")
    task.cancel()
    await handler.until(lambda: ("task left", 0) in handler.seen)
    assert ("left", 0) not in handler.seen


async def test_a_tasks_error_is_told_and_raised(address: OwnerAddress, service: OwnerService, handler: Handler) -> None:
    def body() -> None:
        with reporting(address):
            raise NeedsHuman("The row is odd.", "Look at it.")

    with pytest.raises(NeedsHuman, match="odd"):
        await asyncio.to_thread(body)
    assert handler.seen == [pb.Failure(reason="NeedsHuman", message="The row is odd.", next_step="Look at it.")]
    await service.stop()
    with pytest.raises(NeedsHuman, match="odd"):  # and when nobody listens any more, raised all the same
        await asyncio.to_thread(body)


async def test_puller_joins_reports_and_leaves(
    address: OwnerAddress, channel: grpc.aio.Channel, handler: Handler
) -> None:
    call = await join(channel, address, puller=1)
    assert await sub_id(call) == 1
    await call.write(pb.Report(puller=1, resolved=[pb.Resolved(sub_id=1, ts=5)]))
    await call.done_writing()
    await asyncio.wait_for(end(call), DEADLINE)
    assert handler.seen == [("joined", 1), ("report", 1, []), ("report", 1, [5]), ("left", 1)]


async def test_puller_that_vanishes_has_left(
    service: OwnerService, address: OwnerAddress, channel: grpc.aio.Channel, handler: Handler
) -> None:
    call = await join(channel, address)
    await sub_id(call)
    call.cancel()
    await handler.until(lambda: ("left", 0) in handler.seen)
    watch = asyncio.ensure_future(service.crashed())
    assert await sub_id(await join(channel, address)) == 2
    assert not watch.done()
    watch.cancel()


async def test_rule_2_a_second_stream_of_a_puller_takes_its_place(
    address: OwnerAddress, channel: grpc.aio.Channel, handler: Handler
) -> None:
    first = await join(channel, address)
    await sub_id(first)
    second = await join(channel, address)
    assert await sub_id(second) == 2
    await asyncio.wait_for(end(first), DEADLINE)
    assert handler.seen == [("joined", 0), ("report", 0, []), ("left", 0), ("joined", 0), ("report", 0, [])]
    await second.write(pb.Report(resolved=[pb.Resolved(sub_id=2, ts=9)]))
    await handler.until(lambda: ("report", 0, [9]) in handler.seen)
    assert handler.seen.count(("left", 0)) == 1


async def test_stop_ends_every_stream(
    service: OwnerService, address: OwnerAddress, channel: grpc.aio.Channel, handler: Handler
) -> None:
    calls = [await join(channel, address, puller) for puller in (0, 1)]
    for call in calls:
        await sub_id(call)
    async with asyncio.timeout(DEADLINE):
        await asyncio.gather(service.stop(), *[end(call) for call in calls])
    assert handler.seen.count(("left", 0)) == handler.seen.count(("left", 1)) == 1


async def test_the_end_of_a_stream_is_no_error_to_a_puller_that_reports_meanwhile(
    address: OwnerAddress, channel: grpc.aio.Channel, handler: Handler
) -> None:
    """Each stream ends as the next one takes its place; grpc.aio makes INTERNAL of some ends under a report."""

    async def report(call: Call) -> None:
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await call.write(pb.Report())

    call = await join(channel, address)
    for _ in range(100):
        writing = asyncio.create_task(report(call))
        following = await join(channel, address)
        await asyncio.wait_for(end(call), DEADLINE)
        writing.cancel()
        call = following


async def test_a_task_that_comes_while_the_owner_leaves_is_not_left_waiting(
    handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second attempt of gRPC's own would lose the end of one stream in some two hundred."""
    monkeypatch.setattr(service_module, "LEAVE_S", 0.05)

    def come(address: OwnerAddress, after: float) -> None:
        time.sleep(after)
        with address.channel() as channel, suppress(grpc.RpcError):
            begin: Any = channel.stream_stream(
                PIPELINE, request_serializer=pb.Written.SerializeToString, response_deserializer=pb.Order.FromString
            )
            stream = begin(iter([pb.Written()] * 100), metadata=address.metadata)
            for told in stream:
                if told.HasField("end"):
                    break
            stream.cancel()

    for turn in range(150):
        leaving = OwnerService(handler, 3, "ab")
        address = await leaving.start()
        tasks = [threading.Thread(target=come, args=(address, n * 0.002), daemon=True) for n in range(8)]
        for task in tasks:
            task.start()
        await asyncio.sleep(turn % 15 * 0.001)
        await leaving.stop()
        for task in tasks:
            await asyncio.to_thread(task.join, DEADLINE)
            assert not task.is_alive(), turn


async def test_a_report_that_the_handler_cant_take_is_no_silence(
    service: OwnerService, address: OwnerAddress, channel: grpc.aio.Channel
) -> None:
    call = await join(channel, address)
    await sub_id(call)
    await call.write(pb.Report(failures=[pb.Failure(sub_id=1)]))
    with pytest.raises(ZeroDivisionError, match="a fault of ours"):
        await asyncio.wait_for(service.crashed(), DEADLINE)


def test_certificates_are_no_ones_twice() -> None:
    assert self_signed(SERVER_NAME) != self_signed(SERVER_NAME)


async def test_in_a_pod_tasks_come_by_its_address_and_a_taken_port_is_left_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        service = OwnerService(Handler(), epoch=3, nonce="ab")
        address = await service.start("127.0.0.1", port, "localhost")
        try:
            host, _, bound = address.target.rpartition(":")
            assert (host, bound != str(port)) == ("localhost", True)
            await asyncio.to_thread(_tell, address)
        finally:
            await service.stop()
    other = OwnerService(Handler(), epoch=3, nonce="ab")
    try:
        assert (await other.start("127.0.0.1", port, "fd00::7")).target == f"[fd00::7]:{port}"
    finally:
        await other.stop()


def _tell(address: OwnerAddress) -> None:
    with OwnerClient(address) as client:
        client.fail(NeedsHuman("no"))
