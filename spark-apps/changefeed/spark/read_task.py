"""The read side of a task that executes part of a plan: segments to spooled files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa

from changefeed.eventstore.house import House
from changefeed.eventstore.reader import read_slice
from changefeed.model.record import Work
from changefeed.objectstore import Place
from changefeed.objectstore.patience import Patience
from changefeed.pipeline.run import run_entry


def describe(work: Work, state: Place, patience: Patience | None = None) -> Iterator[pa.RecordBatch]:
    """Spool the files of a share of a plan, one after the other."""
    patience = patience or Patience()
    house = House(state, work.epoch, work.nonce, patience)
    for entry in work.entries:
        yield from run_entry(work, entry, partial(read_slice, house), house.spool_folder, patience)
