"""A task that writes a dispatcher's entries in order, as a process that tests kill: `PLAN`, a JSON file, says which.

Entry n has rows n * rows to (n + 1) * rows - 1: the row's number is its value, its key the number modulo some. A line
`done n` or `skip n` for each entry; `sent n` before its rows are committed or acknowledged.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from changefeed.errors import Fenced, Transient
from changefeed.objectstore.patience import Patience
from changefeed.sink.contract import Claim, EntryId
from changefeed.sink.kafka.client import Cluster
from changefeed.sink.kafka.codec.message import Messages
from changefeed.sink.kafka.codec.partition import by_values
from changefeed.sink.kafka.exactly_once import ExactlyOnce
from changefeed.sink.kafka.producer import AtLeastOnce
from changefeed.sink.kafka.progress import ClaimVerdict

KEYS = 17
FENCED = 75
PIECES = 5


def entry_of(number: int) -> EntryId:
    return EntryId(1, number)


def send(writer: ExactlyOnce | AtLeastOnce, plan: dict[str, Any], number: int) -> None:
    for piece in np.array_split(np.arange(number * plan["rows"], (number + 1) * plan["rows"]), PIECES):
        keys = pa.array(piece % KEYS).cast(pa.string())
        values = pa.array(piece).cast(pa.string())
        partitions = by_values("shop", "t", [("id", keys)], len(keys), plan["partitions"])
        writer.send(plan["topic"], Messages.of(keys, values), partitions)


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def exactly_once(plan: dict[str, Any], cluster: Cluster) -> None:
    claim = Claim("feed", plan["dispatcher"], plan["epoch"], "n", plan["writer"])
    writer = ExactlyOnce(cluster, claim, tuple(plan["progress"]), Patience(60))
    for number in range(plan["entries"]):
        while True:
            try:
                if writer.claim(entry_of(number)) is ClaimVerdict.SKIP:
                    say("skip", number)
                    break
                send(writer, plan, number)
                say("sent", number)
                if plan.get("wait") == number:
                    sys.stdin.readline()
                writer.done()
            except Transient as error:
                say("again", error)
                writer = ExactlyOnce(cluster, claim, tuple(plan["progress"]), Patience(60))
            else:
                say("done", number)
                break


def at_least_once(plan: dict[str, Any], cluster: Cluster) -> None:
    for number in range(plan["done"], plan["entries"]):
        writer = AtLeastOnce(cluster, Patience(60))
        send(writer, plan, number)
        say("sent", number)
        writer.done()
        say("done", number)


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    try:
        (exactly_once if plan["exactly_once"] else at_least_once)(plan, Cluster(plan["brokers"]))
    except Fenced as error:
        say("fenced", error)
        sys.exit(FENCED)


if __name__ == "__main__":
    main()
