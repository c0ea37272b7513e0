"""How to reach the owner service: address, credentials, method paths (docs/design/layouts.md, Owner service).

The address travels inside the pickled task closure only: its token and the run's key must never stand in Spark's conf,
the environment or a log.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc
import grpc.aio

from changefeed import errors
from changefeed.errors import ChangefeedError, Fenced, InvalidSpec, NeedsHuman, Unavailable
from changefeed.wire import channel, owner_pb2

PULLER = "/changefeed.Owner/Puller"
PIPELINE = "/changefeed.Owner/Pipeline"
FAIL = "/changefeed.Owner/Fail"

_NOT_OURS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.FAILED_PRECONDITION)

#: The names in the owner's certificate and in its tasks', which are made anew by every driver.
SERVER_NAME = "changefeed-owner"
TASK_NAME = "changefeed-task"

CHANNEL_OPTIONS = (*channel.OPTIONS, ("grpc.ssl_target_name_override", SERVER_NAME))


@dataclass(frozen=True)
class RunKey:
    """By which a run's tasks know each other: it goes to them and nobody else. Both in PEM, for the name TASK_NAME."""

    private: bytes = field(repr=False)
    certificate: bytes = field(repr=False)


@dataclass(frozen=True)
class OwnerAddress:
    target: str  # host:port
    epoch: int
    nonce: str  # of the driver's run
    token: str = field(repr=False)
    certificate: bytes = field(repr=False)  # PEM; the only one that is trusted
    run_key: RunKey = field(repr=False)

    @property
    def run(self) -> str:
        """Names this run's folder in the event store."""
        return f"{self.epoch}-{self.nonce}"

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.token}"), ("epoch", str(self.epoch)))

    def channel(self) -> grpc.Channel:
        return grpc.secure_channel(self.target, grpc.ssl_channel_credentials(self.certificate), CHANNEL_OPTIONS)

    def aio_channel(self) -> grpc.aio.Channel:
        return grpc.aio.secure_channel(self.target, grpc.ssl_channel_credentials(self.certificate), CHANNEL_OPTIONS)


def owner_lost(error: grpc.RpcError, what: str) -> ChangefeedError:
    """What became of a task's call or stream: Fenced when the owner belongs to another run, else Unavailable."""
    why = f"The owner ended {what}: {error.code().name} {error.details()}."
    if error.code() in _NOT_OURS:
        return Fenced(why, "Another driver runs the changefeed now; this task is orphaned.")
    return Unavailable(why, "The driver has stopped or is overloaded: its own log says why. It starts its tasks again.")


def error_of(failure: owner_pb2.Failure) -> ChangefeedError:
    """What a task raised, as the same class (wire.owner_client.OwnerClient.fail, puller.reports)."""
    kind = getattr(errors, failure.reason, None)
    if not (isinstance(kind, type) and issubclass(kind, ChangefeedError)):
        return NeedsHuman(failure.message, failure.next_step)
    if issubclass(kind, InvalidSpec):
        field, _, why = failure.message.partition(": ")
        return kind(field, why, failure.next_step)
    error = kind(failure.message, failure.next_step)
    if failure.HasField("answered"):
        error.answered = failure.answered
    return error
