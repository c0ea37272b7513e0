"""`undated_keystore.py FILE EPOCH`: gives all certificates in a Java keystore (JKS, default password) the same date."""

from __future__ import annotations

import hashlib
import struct
import sys
from pathlib import Path

_MAGIC = 0xFEEDFEED
_CERTIFICATE = 2  # the other kind of entry is a private key
_KEY = "changeit".encode("utf-16-be") + b"Mighty Aphrodite"  # of the digest at the end


def undated(store: bytes, epoch: int) -> bytes:
    """The same entries, sorted, dated `epoch` (seconds). Raises ValueError unless it holds only certificates."""
    magic, version, count = struct.unpack_from(">III", store)
    if magic != _MAGIC or version != 2 or hashlib.sha1(_KEY + store[:-20]).digest() != store[-20:]:
        raise ValueError("no JKS keystore of version 2 with the usual password")
    position, entries = 12, []
    for _ in range(count):
        kind, length = struct.unpack_from(">IH", store, position)
        if kind != _CERTIFICATE:
            raise ValueError("an entry is no certificate")
        dated = position + 6 + length
        kind_length = struct.unpack_from(">H", store, dated + 8)[0]
        size = dated + 10 + kind_length
        end = size + 4 + struct.unpack_from(">I", store, size)[0]
        entries.append(store[position:dated] + struct.pack(">Q", epoch * 1000) + store[dated + 8 : end])
        position = end
    if position != len(store) - 20:
        raise ValueError("there is more behind the last entry")
    written = store[:12] + b"".join(sorted(entries))
    return written + hashlib.sha1(_KEY + written).digest()


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_bytes(undated(file.read_bytes(), int(sys.argv[2])))
