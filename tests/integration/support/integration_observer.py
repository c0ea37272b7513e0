"""Watches a sink while the changefeed that writes it is harmed (oracle O2): `with watching(uri): ...`.

It sees what any reader of the sink could see, at every moment it looks, also while drivers and tasks are dead.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from changefeed.errors import NotFound
from changefeed.objectstore.open import open_store
from changefeed.reading.failures import NotVerifiable
from changefeed.reading.layout.files import checkpoint, read_layout
from changefeed.reading.rows.contents import lowest_ts
from changefeed.reading.rows.formats import Format
from changefeed.verify.storage.finality import Finality

_CSV = {
    "delimiter": ",",
    "quote": '"',
    "null": "\\N",
    "includeCommitTs": True,
    "outputFieldHeader": False,
    "outputOldValue": False,
    "binaryEncodingMethod": "base64",
}


def format_of(**storage: Any) -> Format:
    """Return the format of files that are written with these members of sink.storage, and its defaults."""
    given = {"protocol": "csv", "terminator": "\r\n", "outputRawChangeEvent": False, **storage}
    return Format.of({"timeZone": "UTC", "sink": {"storage": {**given, "csv": _CSV | given.get("csv", {})}}})


class Observer:
    """Lists the sink again and again until it is stopped; `problems` is what it saw."""

    def __init__(self, uri: str, fmt: Format, every_s: float = 0.05) -> None:
        self.problems: list[str] = []
        self.listings = 0
        self._store = open_store(uri)
        self._format = fmt
        self._every_s = every_s
        self._finality = Finality()
        self._done = threading.Event()
        self._pool = ThreadPoolExecutor(1, "observer")

    def start(self) -> Observer:
        self._running = self._pool.submit(self._run)
        return self

    def stop(self) -> None:
        """One look more, then the end."""
        self._done.set()
        self._running.result()
        self._pool.shutdown()

    def look(self) -> None:
        """One listing: the checkpoint, then the indexes, then the files."""
        try:
            published = checkpoint(self._store)
        except NotVerifiable:
            published = 0
        try:
            listing = read_layout(self._store, published).listing()
            lowest = {path: self._lowest(path) for path in self._finality.appeared(listing)}
        except NotFound:  # an index that was replaced while it was listed
            return
        self.problems += self._finality.see(listing, lowest)
        self.listings += 1

    def _lowest(self, path: str) -> int | None:
        return lowest_ts(self._store.get(path).body, path, self._format)

    def _run(self) -> None:
        while not self._done.wait(self._every_s):
            self.look()
        self.look()


@contextmanager
def watching(uri: str, every_s: float = 0.05, **storage: Any) -> Iterator[Observer]:
    """Fails when the sink at `uri` ever breaks what it has published. `storage`: its members that are not defaults."""
    observer = Observer(uri, format_of(**storage), every_s).start()
    try:
        yield observer
    finally:
        observer.stop()
    assert not observer.problems, observer.problems[0]
    assert observer.listings
