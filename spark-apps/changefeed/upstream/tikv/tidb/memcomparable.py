"""EncodeBytes: byte strings that sort as their originals and are self-delimiting (docs/design/tidb.md, Encodings).

PD and the change data service speak of keys in this form; every KvXxx call and every row event has them raw.
"""

from __future__ import annotations

_GROUP = 8
_MARKER = 0xFF


def encode_bytes(raw: bytes) -> bytes:
    out = bytearray()
    for start in range(0, len(raw) + 1, _GROUP):
        group = raw[start : start + _GROUP]
        padding = _GROUP - len(group)
        out += group + bytes(padding)
        out.append(_MARKER - padding)
    return bytes(out)


def decode_bytes(encoded: bytes) -> tuple[bytes, bytes]:
    """The original, and what follows its encoding. Raises ValueError for anything that encode_bytes does not make."""
    out = bytearray()
    for start in range(0, len(encoded), _GROUP + 1):
        group = encoded[start : start + _GROUP + 1]
        if len(group) <= _GROUP:
            break
        padding = _MARKER - group[_GROUP]
        if padding > _GROUP or any(group[_GROUP - padding : _GROUP]):
            break
        out += group[: _GROUP - padding]
        if padding:
            return bytes(out), encoded[start + _GROUP + 1 :]
    raise ValueError(f"not a memcomparable byte string: {encoded[:64].hex()}")
