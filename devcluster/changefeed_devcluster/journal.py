"""The dev cluster's memory: an append-only file of what happened, replayed at the next start.

A record is `u32 length, u32 crc32, kind byte, protobuf`. Each append is one write to the file before the call returns,
so it outlives a killed process; a power cut is not covered. A torn last record is cut off at opening. A frozen journal
is only read: whatever a cluster does over it, the next one finds the same history.
"""

from __future__ import annotations

import errno
import fcntl
import struct
import threading
import zlib
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

from google.protobuf.message import Message

_HEADER = struct.Struct("<II")


class JournalRecord(Enum):
    """What a record tells, and the message it holds."""

    CLUSTER = b"H"  # metapb.Cluster: id
    PREWRITE = b"P"  # kvrpcpb.PrewriteRequest
    FLUSH = b"F"  # kvrpcpb.FlushRequest
    COMMIT = b"C"  # kvrpcpb.CommitRequest
    ROLLBACK = b"R"  # kvrpcpb.BatchRollbackRequest
    ONE_PC = b"1"  # kvrpcpb.PrewriteRequest, min_commit_ts is its commit ts
    REGIONS = b"G"  # pdpb.ScanRegionsResponse: the whole layout
    IDS = b"A"  # pdpb.AllocIDResponse: the last id given out
    TSO = b"T"  # pdpb.Timestamp: no ts at or above it was given out
    SERVICE_SAFEPOINT = b"S"  # pdpb.UpdateServiceGCSafePointRequest, TTL is the unix second of expiry
    START = b"B"  # cdcpb.ResolvedTs: the ts before the first row of the folder's first workload
    GC_SAFEPOINT = b"s"  # pdpb.UpdateGCSafePointRequest


class Journal:
    """Opens, or creates, the journal of a data folder. Raises OSError when another process writes to it.

    `frozen`: reads one that exists, beside others that do; `append` keeps nothing.
    """

    def __init__(self, folder: Path, frozen: bool = False) -> None:
        self.frozen = frozen
        if not frozen:
            folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "journal"
        self._file = open(self.path, "rb" if frozen else "a+b", buffering=0)  # noqa: SIM115 - for the journal's life
        try:
            fcntl.flock(self._file, (fcntl.LOCK_SH if frozen else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise OSError(error.errno, "the data folder is in use by another dev cluster", str(folder)) from error
        self._lock = threading.Lock()

    def replay(self) -> Iterator[tuple[JournalRecord, bytes]]:
        """All whole records in order; cuts the file after the last one. Call it once, before the first append."""
        data = self.path.read_bytes()
        position = 0
        while position + _HEADER.size < len(data):
            length, checksum = _HEADER.unpack_from(data, position)
            start = position + _HEADER.size
            body = data[start : start + length]
            if not length or len(body) < length or zlib.crc32(body) != checksum:
                break
            yield JournalRecord(body[:1]), body[1:]
            position = start + length
        if not self.frozen:
            self._file.truncate(position)

    def append(self, kind: JournalRecord, message: Message) -> None:
        if self.frozen:
            return
        body = kind.value + message.SerializeToString()
        record = _HEADER.pack(len(body), zlib.crc32(body)) + body
        with self._lock:
            written = self._file.write(record)
        if written != len(record):
            raise OSError(errno.ENOSPC, "the journal took only a part of a record", str(self.path))

    def close(self) -> None:
        self._file.close()
