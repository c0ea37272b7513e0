"""How to reach the owner service: address, credentials, method paths (INTERFACES.md, Owner service).

The address travels inside the pickled task closure only: its token must never stand in Spark's conf, the environment
or a log.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc
import grpc.aio

PULLER = "/changefeed.Owner/Puller"
LATEST = "/changefeed.Owner/Latest"
PLAN = "/changefeed.Owner/Plan"
COMMIT = "/changefeed.Owner/Commit"
FAIL = "/changefeed.Owner/Fail"
WORKING = "/changefeed.Owner/Working"

#: The name in the owner's certificate, which is made anew by every driver.
SERVER_NAME = "changefeed-owner"

CHANNEL_OPTIONS = (
    ("grpc.ssl_target_name_override", SERVER_NAME),
    ("grpc.max_receive_message_length", 256 << 20),
    ("grpc.max_send_message_length", 256 << 20),
)


@dataclass(frozen=True)
class OwnerAddress:
    target: str  # host:port
    epoch: int
    nonce: str  # of the driver's run
    token: str = field(repr=False)
    certificate: bytes = field(repr=False)  # PEM; the only one that is trusted

    @property
    def run(self) -> str:
        """Names this run's house in the event store."""
        return f"{self.epoch}-{self.nonce}"

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.token}"), ("epoch", str(self.epoch)))

    def channel(self) -> grpc.Channel:
        return grpc.secure_channel(self.target, grpc.ssl_channel_credentials(self.certificate), CHANNEL_OPTIONS)

    def aio_channel(self) -> grpc.aio.Channel:
        return grpc.aio.secure_channel(self.target, grpc.ssl_channel_credentials(self.certificate), CHANNEL_OPTIONS)
