"""A sink as its readers meet it: when which row, and which checkpoint, could be read, by the one clock of this machine.

A row's file lag: from its commit to its file, as the file system dates the file. Its consumer lag: from its commit to
the moment when a read_committed consumer has its message. A checkpoint is in `metadata`, or in a watermark message.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from measured import Run

Times = npt.NDArray[np.float64]  # Unix ms

_COMMIT_TS = 3  # of csv
_POLL_S = 0.1


class Arrivals(NamedTuple):
    """A row each: when it was committed, and when a reader had it."""

    committed: Times
    arrived: Times

    @property
    def lags(self) -> Times:
        return self.arrived - self.committed


class Reader(Protocol):
    @property
    def published(self) -> Mapping[int, float]:
        """Return the checkpoints that were met: physical ms -> when it was there."""
        ...

    def checkpoint_ms(self) -> int:
        """Return the newest; 0 before there is one. To be asked often, so that none is missed."""
        ...

    def arrivals(self, after_ms: float, until_ms: float) -> dict[str, Arrivals]:
        """Return by table the rows committed in between; when the run is over."""
        ...


@dataclass
class FileReader:
    """Reads a storage sink with csv files."""

    run: Run
    published: dict[int, float] = field(default_factory=dict)

    def checkpoint_ms(self) -> int:
        found = self.run.checkpoint_ms()
        if found and found not in self.published:
            self.published[found] = (self.run.location.folder / "lake" / "metadata").stat().st_ctime * 1000
        return found

    def arrivals(self, after_ms: float, until_ms: float) -> dict[str, Arrivals]:
        found: dict[str, list[tuple[Times, float]]] = {}
        for path in self.run.data_files():
            if not path.stat().st_size:
                continue  # it has no rows
            column = pl.read_csv(path, has_header=False, columns=[_COMMIT_TS], infer_schema=False).to_series()
            committed = (column.cast(pl.UInt64).to_numpy() >> 18).astype(np.float64)
            inside = committed[(committed >= after_ms) & (committed < until_ms)]
            table = path.relative_to(self.run.location.folder / "lake").parts[1]
            found.setdefault(table, []).append((inside, path.stat().st_ctime * 1000))  # when it got its name
        return {
            table: Arrivals(
                np.concatenate([committed for committed, _ in files]),
                np.concatenate([np.full(len(committed), named) for committed, named in files]),
            )
            for table, files in found.items()
        }


class TopicReader:
    """Reads a topic of canal-json messages with TiDB's extension; reads along in a thread."""

    def __init__(self, brokers: str, topic: str, partitions: int) -> None:
        config = {"bootstrap.servers": brokers, "group.id": "bench", "isolation.level": "read_committed"}
        self._consumer = Consumer(config | {"enable.auto.commit": False, "fetch.wait.max.ms": 10})
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
        self._messages: list[tuple[float, bytes]] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self.published: dict[int, float] = {}

    @contextmanager
    def reading(self) -> Iterator[TopicReader]:
        self._thread.start()
        try:
            yield self
        finally:
            self._done.set()
            self._thread.join()
            self._consumer.close()

    def _read(self) -> None:
        while not self._done.is_set():
            message = self._consumer.poll(_POLL_S)
            if message is None or message.error() is not None:
                continue  # none yet; what is wrong for good, the wait for a checkpoint says
            now_ms, value = time.time() * 1000, message.value() or b""
            if b'"TIDB_WATERMARK"' in value:
                self.published.setdefault(int(json.loads(value)["_tidb"]["watermarkTs"]) >> 18, now_ms)
            else:
                self._messages.append((now_ms, value))

    def checkpoint_ms(self) -> int:
        return max(self.published.copy(), default=0)

    def arrivals(self, after_ms: float, until_ms: float) -> dict[str, Arrivals]:
        found: dict[str, list[tuple[float, float]]] = {}
        for arrived, value in self._messages:
            said: dict[str, Any] = json.loads(value)
            if said["isDdl"]:
                continue
            committed = float(int(said["_tidb"]["commitTs"]) >> 18)
            if after_ms <= committed < until_ms:
                found.setdefault(said["table"], []).append((committed, arrived))
        return {table: Arrivals(*np.array(rows).T) for table, rows in found.items()}


def own_row_lags(arrivals: Arrivals, published: Mapping[int, float]) -> Times:
    """Return what came between a row's resolved-ts and its arrival.

    Every resolved-ts becomes a checkpoint, when they come seldom enough. The lowest that is not below a row's commit is
    the one that let it pass, and its physical time is when the upstream sent it.
    """
    resolved = np.array(sorted(published), np.float64)
    at = np.searchsorted(resolved, arrivals.committed)
    known = at < len(resolved)
    return arrivals.arrived[known] - resolved[at[known]]


def own_lags(published: Mapping[int, float], after_ms: float, until_ms: float) -> Times:
    """Return what came between each resolved-ts and the checkpoint that it became."""
    found = [there - resolved for resolved, there in published.items() if after_ms <= resolved and there < until_ms]
    return np.array(found, np.float64)
