"""`FileSink`: an event sink of files in an object store. The caller's thread encodes an entry, and others upload, so
that no core waits for the store.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from changefeed.objectstore import ObjectStore
from changefeed.objectstore.once import create_once
from changefeed.objectstore.patience import Patience
from changefeed.sink.contract import Entry, Event, FirstFailure, Surroundings, Written
from changefeed.sink.records import Records
from changefeed.sink.spool import Spool
from changefeed.sink.stages import CpuTime

PUT = "put"  # the stage beside those of sink.stages
PUTS = 16

#: Encodes an entry's rows, and spools its files below a folder. It returns them by path: the sink's to put and discard.
Encode = Callable[[Entry, Iterable[Records], Path, Patience, CpuTime], Mapping[str, Spool]]


class FileSink:
    """Implements EventSink."""

    def __init__(self, store: ObjectStore, around: Surroundings, encode: Encode) -> None:
        self._store, self._encode = store, encode
        self._spool_folder, self._disk, self._patience = around.spool_folder, around.disk, around.patience
        self._waiting = around.waiting
        self._failure = FirstFailure(around.failed)
        self._pool = ThreadPoolExecutor(PUTS, "put")
        self._room = threading.BoundedSemaphore(PUTS)  # for files that are encoded and not put
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
