"""The storage sink as it is sent to tasks, and how it encodes an entry's file.

The bytes depend only on the entry and its rows, not on where they are spooled (rule 10).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from changefeed.objectstore import Location
from changefeed.objectstore.open import open_store
from changefeed.objectstore.patience import Patience
from changefeed.sink.contract import Entry, Surroundings
from changefeed.sink.file_sink import FileSink
from changefeed.sink.records import Mounting, Records
from changefeed.sink.spool import Spool
from changefeed.sink.stages import CpuTime
from changefeed.sink.storage.codec.choice import file_codec


@dataclass(frozen=True)
class StorageJob:
    """Implements SinkJob."""

    location: Location

    def mounting(self, options: Mapping[str, Any], time_zone: str) -> Mounting:
        codec, split = file_codec(options), not options["outputRawChangeEvent"]
        return Mounting("UTC" if codec.in_utc else time_zone, codec.halve_updates, codec.with_old, split)

    def open(self, around: Surroundings) -> FileSink:
        store = open_store(self.location.uri, "spec.sink.storage.uri", self.location.secret)
        return FileSink(store, around, _encode_one)


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
    codec = file_codec(entry.options)
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
    return {entry.output["path"]: encode_entry(entry, chunks, folder, patience, cpu)}
