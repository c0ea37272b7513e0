"""The synchronous side of the owner service, for Spark's source and sink processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

import grpc

from changefeed import errors
from changefeed.model.record import Work
from changefeed.wire import owner_pb2 as pb
from changefeed.wire.owner import COMMIT, FAIL, LATEST, PLAN, WORKING, OwnerAddress

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

    def latest(self) -> int:
        """The newest plan record that may be executed; 0 for none."""
        return int(self._call(LATEST, pb.LatestRequest(), pb.LatestResponse).record)

    def plan(self, record: int) -> Work:
        """The work of a plan; without entries when it is committed already (rule 20)."""
        return Work.model_validate_json(self._call(PLAN, pb.PlanRequest(record=record), pb.PlanResponse).work)

    def commit(self, done: pb.Done) -> None:
        """Report files that stand in the sink; idempotent."""
        self._call(COMMIT, done, pb.Acknowledged)

    def fail(self, error: errors.ChangefeedError) -> None:
        """Tell the owner why a task has failed; it knows whether another attempt can help."""
        self._fail(type(error), error)

    def wait(self, error: errors.ChangefeedError) -> None:
        """Tell the owner why a task waits, whatever kind of error it is."""
        self._fail(errors.Transient, error)

    def working(self, task: int) -> None:
        """The task works; `task`: Spark's id of the attempt."""
        self._call(WORKING, pb.AtWork(task=task), pb.Acknowledged)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> OwnerClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _fail(self, kind: type[errors.ChangefeedError], error: errors.ChangefeedError) -> None:
        failure = pb.Failure(reason=kind.__name__, message=error.message, next_step=error.next_step)
        self._call(FAIL, failure, pb.Acknowledged)

    def _call(self, method: str, request: Any, response: Any) -> Any:
        call = self._channel.unary_unary(
            method, request_serializer=type(request).SerializeToString, response_deserializer=response.FromString
        )
        try:
            return call(request, metadata=self._address.metadata, timeout=_TIMEOUT, wait_for_ready=False)
        except grpc.RpcError as error:
            code = error.code()
            if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.FAILED_PRECONDITION):
                raise errors.Fenced(
                    f"The owner at {self._address.target} belongs to another run: {code.name}."
                ) from None
            raise errors.Unavailable(
                f"The owner at {self._address.target} did not answer {method}: {code.name}, {error.details()}.",
                "The driver has stopped or is overloaded; its own log says why.",
            ) from None
