"""Headers that make each message a CloudEvent in Kafka's binary content mode: attributes beside a value as it is.

Source: CloudEvents 1.0, Kafka protocol binding. `source` and `id` name a change: by them a consumer can leave out what
comes twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from changefeed.model.tso import LOGICAL_BITS
from changefeed.sink.kafka.codec.message import Headers

_CONTENT_TYPES = {"avro": "application/avro", "open-protocol": "application/octet-stream"}


@dataclass(frozen=True)
class CloudEvents:
    """Headers of a changefeed's messages in one protocol. `changefeed`: its log's name, which no other ever has."""

    changefeed: str
    protocol: str

    def rows(self, entry: str, first: int, subject: str, commit_ts: npt.NDArray[np.uint64]) -> list[Headers]:
        """Return headers of an entry's messages of a row each, from number `first` on."""
        same = self._same("row", subject)
        times = np.datetime_as_string((commit_ts >> LOGICAL_BITS).astype("datetime64[ms]"), timezone="UTC")
        return [
            [*same, ("ce_id", f"{entry}-{first + number}".encode()), ("ce_time", time.encode())]
            for number, time in enumerate(times.tolist())
        ]

    def batches(self, entry: str, first: int, subject: str, count: int) -> list[Headers]:
        """Return headers of messages of several rows each; `first`: the first row's number, of all in the entry."""
        same = self._same("rows", subject)
        return [[*same, ("ce_id", f"{entry}-{first + number}".encode())] for number in range(count)]

    def one(self, kind: str, id_: str, subject: str = "") -> Headers:
        """Return the headers of a message of the driver's: a ddl, a resolved-ts, a definition."""
        return [*self._same(kind, subject), ("ce_id", id_.encode())]

    def _same(self, kind: str, subject: str) -> Headers:
        content = _CONTENT_TYPES.get(self.protocol, "application/json")
        found = {
            "ce_specversion": "1.0",
            "ce_source": f"/changefeeds/{self.changefeed}",
            "ce_type": f"dev.changefeed.{kind}",
            "content-type": content,
        }
        return [
            (name, value.encode()) for name, value in (found | ({"ce_subject": subject} if subject else {})).items()
        ]
