"""Writes an entry's files to an object store: the caller's thread encodes, others upload, so that no core waits for the
store.

The bytes depend only on the entry and its rows, not on where they are spooled (rule 10).
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from changefeed.objectstore import Location, ObjectStore
from changefeed.objectstore.once import create_once
from changefeed.objectstore.open import open_store
from changefeed.objectstore.patience import Patience
from changefeed.sink.contract import Entry, Event, FirstFailure, Surroundings, Written
from changefeed.sink.records import Mounting, Records
from changefeed.sink.spool import Spool
from changefeed.sink.stages import CpuTime
from changefeed.sink.storage.codec.choice import codec_of

PUT = "put"  # the stage beside those of sink.stages
_PUTS = 16

#: Encodes an entry's rows and spools its files below a folder, by path (`encode_entry`).
Encode = Callable[[Entry, Iterable[Records], Path, Patience, CpuTime], Mapping[str, Spool]]


@dataclass(frozen=True)
class StorageJob:
    """Implements SinkJob."""

    place: Location

    def mounting(self, options: Mapping[str, Any], time_zone: str) -> Mounting:
        codec, split = codec_of(options), not options["outputRawChangeEvent"]
        return Mounting("UTC" if codec.in_utc else time_zone, codec.halve_updates, codec.with_old, split)

    def open(self, around: Surroundings) -> StorageSink:
        store = open_store(self.place.uri, "spec.sink.storage.uri", self.place.secret)
        return StorageSink(store, around, _encode_one)


class StorageSink:
    """Implements EventSink."""

    def __init__(self, store: ObjectStore, around: Surroundings, encode: Encode) -> None:
        self._store, self._encode = store, encode
        self._spool_folder, self._disk, self._patience = around.spool_folder, around.disk, around.patience
        self._waiting = around.waiting
        self._failure = FirstFailure(around.failed)
        self._pool = ThreadPoolExecutor(_PUTS, "put")
        self._room = threading.BoundedSemaphore(_PUTS)  # for files that are encoded and not put
        self._lock = threading.Lock()
        self._cpu: Counter[str] = Counter()

    def write(self, event: Event) -> None:
        self._failure.check()
        cpu = CpuTime()
        files = self._encode(event.entry, event.chunks, self._spool_folder, self._disk, cpu)
        self._spent(cpu.seconds)
        with self._waiting():
            self._room.acquire()
        self._pool.submit(self._put, event, files)  # what has failed meanwhile is the next one's to raise

    def cpu_seconds(self) -> Mapping[str, float]:
        with self._lock:
            spent, self._cpu = self._cpu, Counter()
        return spent

    def close(self) -> None:
        self._pool.shutdown()

    def _put(self, event: Event, files: Mapping[str, Spool]) -> None:
        began = time.thread_time()
        try:
            if not self._failure.is_set:
                for path, spool in files.items():
                    create_once(self._store, path, spool.body(), spool.hash, self._patience)
                self._spent({PUT: time.thread_time() - began})
                size = sum(spool.length for spool in files.values())
                event.written(Written(size, "".join(spool.hash for spool in files.values())))
        except BaseException as error:  # noqa: BLE001 - whatever it is ends the task, which another thread runs
            self._failure.set(error)
        finally:
            for spool in files.values():
                spool.discard()
            self._room.release()

    def _spent(self, seconds: Mapping[str, float]) -> None:
        with self._lock:
            self._cpu.update(seconds)


def encode_entry(
    entry: Entry,
    chunks: Iterable[Records],
    folder: Path,
    patience: Patience | None = None,
    cpu: CpuTime | None = None,
) -> Spool:
    """The entry's file, spooled below `folder`: the caller's to put and discard.

    An entry without rows gives a file too (rule 13). No spool file is left when it fails: raises what the chunks do,
    Unavailable (no room to spool, until `patience` ends).
    """
    cpu = cpu or CpuTime()
    codec = codec_of(entry.options)
    spool = Spool(folder / f"{entry.id.plan}-{entry.id.entry}-{secrets.token_hex(8)}", patience)
    try:
        encoder = codec.open(entry.table, entry.columns, entry.pd_ms)
        for records in chunks:
            cpu.resume()
            _append(spool, encoder.add(records), cpu)
        cpu.resume()
        _append(spool, encoder.end(), cpu)
    except BaseException:
        spool.discard()
        raise
    return spool


def _append(spool: Spool, encoded: Iterator[pa.Buffer], cpu: CpuTime) -> None:
    pieces = list(encoded)
    cpu.went_to("encode")
    for piece in pieces:
        spool.append(piece)
    cpu.went_to("spool")


def _encode_one(
    entry: Entry, chunks: Iterable[Records], folder: Path, patience: Patience, cpu: CpuTime
) -> dict[str, Spool]:
    return {entry.path: encode_entry(entry, chunks, folder, patience, cpu)}
