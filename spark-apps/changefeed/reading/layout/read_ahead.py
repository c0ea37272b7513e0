"""Data files in order, prefetched while earlier ones are being processed.

An object store takes a few ms per request, however small the file: fetched one at a time, a trickle's ten thousand
files would take minutes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from changefeed.objectstore import Object, ObjectStore
from changefeed.reading.layout.files import DirectoryFiles

AT_ONCE = 16
#: Of files that wait or are on their way; one larger than this comes alone.
AHEAD_BYTES = 64 << 20


def read_ahead(store: ObjectStore, directories: Iterable[DirectoryFiles]) -> Iterator[tuple[str, Object]]:
    """(path, object) of all that a consumer reads there. Raises what `store.get` raises, at the file's turn."""
    following = deque((path, directory.sizes[path]) for directory in directories for path in directory.readable)
    waiting: deque[tuple[str, int, Future[Object]]] = deque()
    ahead = 0
    pool = ThreadPoolExecutor(AT_ONCE, "read-ahead")
    try:
        while following or waiting:
            while following and len(waiting) < AT_ONCE and (not waiting or ahead + following[0][1] <= AHEAD_BYTES):
                path, size = following.popleft()
                waiting.append((path, size, pool.submit(store.get, path)))
                ahead += size
            path, size, found = waiting.popleft()
            yield path, found.result()
            ahead -= size
    finally:
        pool.shutdown(cancel_futures=True)
