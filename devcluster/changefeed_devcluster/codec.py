"""EncodeBytes of the development cluster: how PD and the change data service spell keys.

See docs/design/tidb.md, Encodings.

Its own, so that it can't be wrong in the same way as the product's. Regions keep raw keys; what goes over the wire as a
region boundary or a span is encoded, what stands in rows and KvXxx calls is raw.
"""

from __future__ import annotations

GROUP = 8


def encode_bytes(raw: bytes) -> bytes:
    """The memcomparable form: groups of 8 bytes, zero padded, each followed by 0xFF minus its padding."""
    whole, rest = divmod(len(raw), GROUP)
    groups = [raw[i * GROUP : (i + 1) * GROUP] + b"\xff" for i in range(whole)]
    tail = raw[whole * GROUP :] + bytes(GROUP - rest)
    return b"".join(groups) + tail + bytes((0xFF - (GROUP - rest),))


def decode_bytes(encoded: bytes) -> bytes:
    """The raw key. Raises ValueError unless `encoded` is exactly one encoded byte string."""
    raw = bytearray()
    rest = encoded
    while len(rest) > GROUP:
        group, marker, rest = rest[:GROUP], rest[GROUP], rest[GROUP + 1 :]
        used = GROUP - (0xFF - marker)
        if used < 0 or any(group[used:]):
            break
        raw += group[:used]
        if used < GROUP:
            if rest:
                break
            return bytes(raw)
    raise ValueError(f"not a memcomparable key: {encoded[:64].hex()}")


def encode_bound(raw: bytes) -> bytes:
    """A region boundary: the empty key stands for the end of the key space and stays empty."""
    return encode_bytes(raw) if raw else b""


def decode_bound(encoded: bytes) -> bytes:
    return decode_bytes(encoded) if encoded else b""
