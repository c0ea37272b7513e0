"""Rows as they are written: decoded, and masked where their table's definition says so (docs/columns.md).

This is the one place where the upstream's values become those of a sink. Messages of what can't be decoded say nothing
of a row whose columns are not all written as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.errors import InvalidSpec, NeedsHuman
from changefeed.schema.masks import HASH_CHARACTERS, Mask
from changefeed.schema.table_info import INTEGERS, ColumnInfo, TableInfo
from changefeed.schema.time_zones import UTC
from changefeed.schema.values import arrow_type, is_broken
from changefeed.secret_files import hash_key
from changefeed.upstream.decoders import decoder_of

_BLOCK = 64  # bytes of SHA-256


@dataclass(frozen=True)
class MaskKeys:
    """The keys of hashes, each read when it is first needed: a Secret that is replaced counts for later processes.

    `folder`: of Secrets; None: there is none, and nothing can be hashed. It alone is pickled.
    """

    folder: Path | None = None
    _hashes: dict[str, Callable[[Iterable[bytes]], bytes]] = field(default_factory=dict, compare=False, repr=False)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (None if self.folder is None else self.folder.absolute(),))

    def check(self, secrets: Iterable[str]) -> None:
        """Raises InvalidSpec, Refused when one of the Secrets, by name, has no key that can be used."""
        for secret in secrets:
            self.hashes(secret)

    def hashes(self, secret: str) -> Callable[[Iterable[bytes]], bytes]:
        """HMAC-SHA256 (RFC 2104) of each of some values, the digests one behind the other. Raises what `check` does."""
        if (found := self._hashes.get(secret)) is None:
            if self.folder is None:
                raise InvalidSpec(
                    "--secrets-dir",
                    f"missing; spec.columns names Secret {secret}",
                    f"Give the folder DIR with the file DIR/{secret}/key.",
                )
            found = self._hashes[secret] = _hmac(hash_key(self.folder / secret))
        return found


#: Of tables without hashes.
NO_KEYS = MaskKeys()


def written_rows(
    table: TableInfo,
    keys: pa.BinaryArray,
    values: pa.BinaryArray,
    time_zone: str,
    columns: Sequence[ColumnInfo] | None = None,
    *,
    mask_keys: MaskKeys = NO_KEYS,
    are_whole: bool = False,
) -> list[pa.Array]:
    """As `Decoder.rows`, of a table as it is written: `columns` are its own, by default `table.output_columns`.

    A hash is of a value's text, or of the bytes of what is none; of a TIMESTAMP's in UTC, whatever `time_zone` is.
    Raises NeedsHuman, and what `MaskKeys.check` does.
    """
    if table.stored is None:
        return decoder_of(table).rows(table, keys, values, time_zone, columns, are_whole=are_whole)
    shown = table.output_columns if columns is None else columns
    masks = dict(table.masks)
    stored = {column.id: column for column in table.stored.columns}
    found: dict[int, pa.Array] = {}
    groups: dict[str, list[ColumnInfo]] = {}
    for column in shown:
        mask = masks.get(column.id)
        if mask is None or mask.kind == "truncate":
            groups.setdefault(time_zone, []).append(stored[column.id])
        elif mask.kind == "hash":
            groups.setdefault(UTC, []).append(stored[column.id])
        else:
            found[column.id] = _alike(column, mask, len(keys))
    for zone, wanted in groups.items():
        decoded = _decoded(table, keys, values, zone, wanted, are_whole=are_whole)
        for column, array in zip(wanted, decoded, strict=True):
            mask = masks.get(column.id)
            found[column.id] = array if mask is None else masked(column, array, mask, mask_keys)
    return [found[column.id] for column in shown]


def _decoded(
    table: TableInfo,
    keys: pa.BinaryArray,
    values: pa.BinaryArray,
    time_zone: str,
    columns: Sequence[ColumnInfo],
    *,
    are_whole: bool,
) -> list[pa.Array]:
    by = table.decoded_by
    try:
        return decoder_of(by).rows(by, keys, values, time_zone, columns, are_whole=are_whole)
    except NeedsHuman as error:
        raise NeedsHuman(
            f"A row of {'.'.join(by.qualified)} can't be decoded. Which one and why is not shown, as spec.columns is "
            "for the table.",
            error.next_step,
        ) from None


def _alike(column: ColumnInfo, mask: Mask, rows: int) -> pa.Array:
    """What is the same in all rows. `column`: as it is written."""
    type_ = arrow_type(column)
    if mask.kind == "null":
        return pa.nulls(rows, type_)
    value = int(mask.value) if column.type in INTEGERS else mask.value
    given = value.encode() if isinstance(value, str) and pa.types.is_binary(type_) else value
    return pa.repeat(pa.scalar(given, type_), rows)


def masked(column: ColumnInfo, values: pa.Array, mask: Mask, mask_keys: MaskKeys) -> pa.Array:
    """The decoded values of a column, of a hash or truncated. `column`: as the upstream has it."""
    if mask.kind == "hash":
        return _hashed(values, mask_keys.hashes(mask.secret)) if len(values) else pa.array([], pa.string())
    if pa.types.is_string(values.type):
        return pc.utf8_slice_codeunits(values, 0, mask.length)
    if is_broken(column, values):  # a character is one where it is whole, and a byte elsewhere
        # One by one: no library cuts text that is broken, and that is rare.
        texts = (None if each is None else each.decode(errors="surrogateescape") for each in values.to_pylist())
        cut = [None if each is None else each[: mask.length].encode(errors="surrogateescape") for each in texts]
        return pa.array(cut, pa.binary())
    return pc.binary_slice(values, 0, mask.length)


def _hashed(values: pa.Array, hashes: Callable[[Iterable[bytes]], bytes]) -> pa.Array:
    """Each value once, as hashlib takes one at a time: it costs next to nothing to be met again."""
    texts = values.field("text") if pa.types.is_struct(values.type) else values
    if pa.types.is_struct(values.type) and values.null_count:
        texts = pc.if_else(values.is_null(), pa.scalar(None, pa.string()), texts)
    coded = texts.dictionary_encode()
    known = coded.dictionary
    if pa.types.is_integer(known.type):
        known = known.cast(pa.string())
    digests = hashes(known.cast(pa.binary()).to_pylist()).hex().encode()
    offsets = np.arange(len(known) + 1, dtype=np.int32) * HASH_CHARACTERS
    said = pa.StringArray.from_buffers(len(known), pa.py_buffer(offsets), pa.py_buffer(digests))
    return said.take(coded.indices)


def _hmac(key: bytes) -> Callable[[Iterable[bytes]], bytes]:
    """The states behind the padded key are kept, so each value costs two blocks instead of four."""
    block = (hashlib.sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block)).copy
    outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in block)).copy

    def hashes(values: Iterable[bytes]) -> bytes:
        found = []
        for value in values:
            one, other = inner(), outer()
            one.update(value)
            other.update(one.digest())
            found.append(other.digest())
        return b"".join(found)

    return hashes
