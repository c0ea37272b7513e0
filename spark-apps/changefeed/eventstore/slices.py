"""Where rows stand in a run: in which segment, and where that is."""

from __future__ import annotations

from changefeed.model.frozen import Frozen


class SlotAddress(Frozen):
    """Where in a puller's memory a segment stands (eventstore/arena.py)."""

    pid: int
    file: int  # its number in that process
    token: str
    index: int
    generation: int
    offset: int
    size: int
    host: str  # the machine whose processes map it
    address: str = ""  # host:port by which others fetch it; "": they can't


class SegmentSlice(Frozen):
    """Where rows of an entry stand in this run: record batches `[first_batch, end_batch)` of one segment."""

    uri: str  # of the file, which is there unless `slot` is given
    size: int  # bytes
    slot: SlotAddress | None = None
    run: str  # "<epoch>-<nonce>" that wrote it
    seq: int
    first_batch: int
    end_batch: int
    rows: int
