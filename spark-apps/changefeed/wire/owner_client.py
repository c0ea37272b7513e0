"""What a task tells the owner beside its stream: why it fails or waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

import grpc

from changefeed import errors
from changefeed.wire import owner_pb2 as pb
from changefeed.wire.owner import FAIL, OwnerAddress, owner_lost

_TIMEOUT = 30.0


@contextmanager
def reporting(owner: OwnerAddress) -> Iterator[None]:
    """The body of a task: what it raises is told to the owner as well, so that the run ends with that reason."""
    try:
        yield
    except errors.ChangefeedError as error:
        with OwnerClient(owner) as client, suppress(errors.Fenced, errors.Unavailable):
            client.fail(error)
        raise


class OwnerClient:
    """Unary calls to the owner. Raises Fenced when it belongs to another run, Unavailable when it does not answer."""

    def __init__(self, address: OwnerAddress) -> None:
        self._address = address
        self._channel = address.channel()

    def fail(self, error: errors.ChangefeedError) -> None:
        """Tell the owner why a task has failed; it knows whether another attempt can help."""
        self._fail(type(error), error)

    def wait(self, error: errors.ChangefeedError) -> None:
        """Tell the owner why a task waits, whatever kind of error it is."""
        self._fail(errors.Transient, error)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> OwnerClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _fail(self, kind: type[errors.ChangefeedError], error: errors.ChangefeedError) -> None:
        failure = pb.Failure(
            reason=kind.__name__, message=error.message, next_step=error.next_step, answered=error.answered
        )
        call = self._channel.unary_unary(
            FAIL, request_serializer=pb.Failure.SerializeToString, response_deserializer=pb.Acknowledged.FromString
        )
        try:
            call(failure, metadata=self._address.metadata, timeout=_TIMEOUT, wait_for_ready=False)
        except grpc.RpcError as lost:
            raise owner_lost(lost, FAIL) from None
