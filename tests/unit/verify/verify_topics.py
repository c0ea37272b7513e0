"""Topics as a right changefeed leaves them, written by hand from the development cluster's own history."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from changefeed.log.log import Log
from changefeed.log.records import CommitRecord, EpochRecord, StartRecord
from changefeed.objectstore.open import open_store
from changefeed.spec.model import Changefeed
from changefeed.spec.parse import effective, parse
from changefeed.verify.kafka.heads import Message
from changefeed.verify.kafka.stored import LinePosition
from verify_sink import Shop, transactions

PARTS = 2


class HandTopic:
    """`parts`: the messages of each partition."""

    def __init__(self, shop: Shop, protocol: str) -> None:
        self.protocol = protocol
        self.parts: list[list[Message]] = [[] for _ in range(PARTS)]
        written = {"protocol": "canal-json", "outputRawChangeEvent": False}
        found = [each for table in shop.tables for each in transactions(shop, table, written)]
        for ts, lines in sorted(found, key=lambda each: each[0]):
            for line in lines:
                row = json.loads(line)
                self.parts[int(row["data"][0]["id"]) % PARTS].append(self.row(row))
            for part in self.parts if ts <= shop.checkpoint_ts else ():
                part.append(self.resolved(ts - 1))
        for part in self.parts:
            part.append(self.resolved(shop.checkpoint_ts))

    def row(self, row: dict[str, Any]) -> Message:
        """`row`: as canal-json has it."""
        if self.protocol == "canal-json":
            return None, json.dumps(row).encode()
        numbers = ("id", "code") if row["table"] == "items" else ("id", "amount")
        cells = {
            name: {"t": 0, "f": 0, "v": int(value) if value is not None and name in numbers else value}
            for name, value in row["data"][0].items()
        }
        sides = {"INSERT": {"u": cells}, "UPDATE": {"u": cells, "p": cells}, "DELETE": {"d": cells}}[row["type"]]
        key = {"ts": row["_tidb"]["commitTs"], "scm": row["database"], "tbl": row["table"], "t": 1}
        return framed(key), framed(sides)[8:]

    def resolved(self, ts: int) -> Message:
        if self.protocol == "open-protocol":
            return framed({"ts": ts, "t": 3}), bytes(8)
        message = {"database": "", "table": "", "isDdl": False, "type": "TIDB_WATERMARK", "data": None}
        return None, json.dumps({**message, "_tidb": {"watermarkTs": ts}}).encode()

    def rows(self, part: int) -> list[int]:
        """Places of rows."""
        mark = (b"WATERMARK", b'"t": 3')
        return [
            place
            for place, (key, value) in enumerate(self.parts[part])
            if not any(each in (key or b"") + (value or b"") for each in mark)
        ]

    def put(
        self,
        cluster: Any,
        parts: Sequence[tuple[str, int]],
        add: Callable[[list[LinePosition], list[Message]], None],
        read: Callable[[int], None],
    ) -> int:
        """In place of topics.read_topics."""
        for number, messages in enumerate(self.parts):
            add([LinePosition(number, at) for at in range(len(messages))], messages)
        return sum(map(len, self.parts))


def framed(side: dict[str, Any]) -> bytes:
    text = json.dumps(side).encode()
    return (1).to_bytes(8, "big") + len(text).to_bytes(8, "big") + text


def changefeed_of(folder: Path, shop: Shop, **kafka: Any) -> Changefeed:
    """With the log of one that has reached the checkpoint."""
    resource = {
        "apiVersion": "changefeed.dev/v1alpha1",
        "kind": "Changefeed",
        "metadata": {"name": "test"},
        "spec": {
            "upstream": {"pdAddresses": shop.pd},
            "filter": {"rules": ["shop.*"]},
            "state": {"uri": folder.as_uri()},
            "sink": {"kafka": {"uri": "kafka://127.0.0.1:1/shop", **kafka}},
        },
    }
    changefeed = parse(json.dumps(resource))
    log = Log(open_store((folder / "default" / "test" / "local").as_uri()))
    cluster = shop.cluster.cluster_id
    log.append(StartRecord(n=1, epoch=0, nonce="a", start_ts=shop.start_ts, cluster_id=cluster, uid="local"))
    config = effective(changefeed)
    log.append(EpochRecord(n=2, epoch=1, nonce="a", attempt=0, host="h", pid=1, config=config, versions={}))
    log.append(CommitRecord(n=3, epoch=1, nonce="a", checkpoint_ts=shop.checkpoint_ts, files=()))
    return changefeed
