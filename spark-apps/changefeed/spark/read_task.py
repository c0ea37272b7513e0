"""The read side of a task that executes part of a plan: segments to spooled files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from changefeed.eventstore.reader import read_slice
from changefeed.model.record import Work
from changefeed.objectstore.open import local_path
from changefeed.pipeline.run import run_entry


def spool_folder(state_uri: str, run: str) -> Path:
    """Where tasks of a run spool: inside its house, so that a later driver clears what a killed one left."""
    return local_path(state_uri) / "events" / run / "spool"


def describe(work: Work, state_uri: str) -> Iterator[pa.RecordBatch]:
    """Spool the files of a share of a plan, one after the other."""
    folder = spool_folder(state_uri, f"{work.epoch}-{work.nonce}")
    for entry in work.entries:
        yield from run_entry(work, entry, read_slice, folder)
