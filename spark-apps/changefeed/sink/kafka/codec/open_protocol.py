"""TiCDC's open protocol: small JSON objects for key and value, several rows in a message.

See docs.pingcap.com/tidb/stable/ticdc-open-protocol.

As `pkg/sink/codec/open` writes them; only TIME keeps its fraction here, which TiCDC loses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.model.position import OP_DELETE, OP_UPDATE
from changefeed.schema import table_info as ti
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.sink.kafka.codec.by_op import by_op
from changefeed.sink.kafka.codec.cells import base64_of, is_zero, json_float, or_null, quoted
from changefeed.sink.kafka.codec.message import DdlEvent, LargeRow, Message, Messages, Source, joined_objects
from changefeed.sink.records import Records, narrowed
from changefeed.sink.text.canal_types import handle_key
from changefeed.sink.text.json_text import escaped, json_string
from changefeed.sink.text.lines import joined

_VERSION = (1).to_bytes(8, "big")
_ROW, _DDL, _RESOLVED = 1, 2, 3
_BINARY, _HANDLE, _GENERATED, _PRIMARY, _UNIQUE, _MULTIPLE, _NULLABLE, _UNSIGNED = (1 << bit for bit in range(8))
_FLAG_MULTIPLE = 8  # TiDB's

_Parts = list[str | pa.Array]


@dataclass(frozen=True)
class OpenProtocol:
    output_old_value: bool = True
    only_output_updated_columns: bool = False
    delete_only_output_handle_key_columns: bool = False
    time_zone: str = "UTC"
    tells_large: bool = True

    def rows(self, records: Records, source: Source, build_ms: int, large: LargeRow | None = None) -> Messages:
        """A row each, unframed: `frame` makes messages of them once their partitions are known."""
        names = f'"scm":{_string(records.table.schema_name)},"tbl":{_string(records.table.name)},"t":{_ROW}'
        members = (
            "" if large is None else ',"ohk":true' + (f',"ohk":false,"ccl":{_string(large.path)}' * bool(large.path))
        )
        if records.table.partition_ids:
            members += f',"ptn":{source.table_id}'
        keys = joined(['{"ts":', records.commit_ts.cast(pa.string()), f",{names}{members}}}"])
        return Messages.of(keys, by_op(records, self._values))

    def _values(self, op: int, records: Records) -> pa.Array:
        if op == OP_DELETE:
            if self.delete_only_output_handle_key_columns:
                records = narrowed(records, handle_key(records.table))
            return joined(['{"d":', *_object(records, records.columns), "}"])
        parts: _Parts = ['{"u":', *_object(records, records.columns)]
        if op == OP_UPDATE and self.output_old_value:
            assert records.old_columns is not None, "the mounter was asked for them"
            changed = self.only_output_updated_columns
            parts += [',"p":', *(_changed(records) if changed else _object(records, records.old_columns))]
        return joined([*parts, "}"])

    def ddl(self, event: DdlEvent, build_ms: int) -> Message:
        names = f'"scm":{_string(event.schema_name)},"tbl":{_string(event.table_name)}'
        value = f'{{"q":{_string(event.query)},"t":{event.action}}}'
        return _framed(f'{{"ts":{event.commit_ts},{names},"t":{_DDL}}}', value)

    def resolved(self, ts: int, build_ms: int) -> Message:
        return _framed(f'{{"ts":{ts},"t":{_RESOLVED}}}', "")

    def bootstrap(self, table: TableInfo, table_version: int, build_ms: int) -> None:
        return None


def frame(
    rows: Messages, partitions: npt.NDArray[np.int32], max_rows: int, max_bytes: int
) -> tuple[Messages, npt.NDArray[np.int32]]:
    """Messages of up to `max_rows` rows and `max_bytes`, each of one partition, whose rows keep their order."""
    order = np.argsort(partitions, kind="stable")
    sorted_partitions = partitions[order]
    keys, values = (_with_length(side.take(pa.array(order))) for side in (rows.keys, rows.values))
    sizes = np.cumsum(pc.add(pc.binary_length(keys), pc.binary_length(values)).to_numpy().astype(np.int64))
    starts = _starts(sorted_partitions, sizes, max_rows, max_bytes - len(_VERSION))
    is_first = np.zeros(len(keys), np.bool_)
    is_first[starts] = True
    keys = pc.if_else(pa.array(is_first), pc.binary_join_element_wise(_VERSION, keys, b""), keys)
    return Messages(_regrouped(keys, starts), _regrouped(values, starts)), sorted_partitions[starts]


def _starts(
    partitions: npt.NDArray[np.int32], sizes: npt.NDArray[np.int64], max_rows: int, max_bytes: int
) -> npt.NDArray[np.int64]:
    """The first row of each message. One that is too large stands alone. A step of Python for each message."""
    ends = np.append(np.flatnonzero(np.diff(partitions)) + 1, len(partitions))
    starts: list[int] = []
    start = 0
    for end in ends.tolist():
        while start < end:
            starts.append(start)
            before = int(sizes[start - 1]) if start else 0
            full = int(np.searchsorted(sizes, before + max_bytes, side="right"))
            start = max(start + 1, min(start + max_rows, full, end))
    return np.array(starts, np.int64)


def _with_length(texts: pa.Array) -> pa.Array:
    lengths = pc.binary_length(texts).to_numpy().astype(">u8")
    prefixes = pa.Array.from_buffers(pa.binary(8), len(texts), [None, pa.py_buffer(lengths.tobytes())])
    return pc.binary_join_element_wise(prefixes.cast(pa.binary()), texts, b"")


def _regrouped(texts: pa.Array, starts: npt.NDArray[np.int64]) -> pa.Array:
    """Elements from one start to the next as one: they stand so in the array's own buffer."""
    _, offsets, data = texts.buffers()
    every = np.frombuffer(offsets, np.int32)[texts.offset :][: len(texts) + 1]
    cuts = pa.py_buffer(np.append(every[starts], every[-1:]).astype(np.int32).tobytes())
    return pa.BinaryArray.from_buffers(pa.binary(), len(starts), [None, cuts, data])


def _framed(key: str, value: str) -> Message:
    raw_key, raw_value = key.encode(), value.encode()
    framed_key = _VERSION + len(raw_key).to_bytes(8, "big") + raw_key
    return Message(framed_key, len(raw_value).to_bytes(8, "big") + raw_value)


def _string(text: str) -> str:
    return json_string(text, html=False)


def _flags(table: TableInfo, column: ColumnInfo) -> int:
    flags = {
        _BINARY: column.charset == "binary",
        _HANDLE: column.is_pk and table.pk_is_handle,
        _GENERATED: column.is_generated,
        _PRIMARY: column.is_pk,
        _UNIQUE: bool(column.flag & ti.FLAG_UNIQUE_KEY),
        _MULTIPLE: bool(column.flag & _FLAG_MULTIPLE),
        _NULLABLE: column.nullable,
        _UNSIGNED: column.is_unsigned,
    }
    found = sum(flag for flag, is_set in flags.items() if is_set)
    # Of an index of several columns TiDB marks the first one alone; the protocol all of them.
    for index in table.indexes:
        if column.name not in (name for name, _ in index.columns):
            continue
        if index.is_primary:
            found |= _PRIMARY
        elif index.is_unique:
            found |= _UNIQUE
        if len(index.columns) > 1:
            found |= _MULTIPLE
    return found | (_HANDLE if column.name in handle_key(table) else 0)


def _head(table: TableInfo, column: ColumnInfo) -> str:
    handle = '"h":true,' if column.name in handle_key(table) else ""
    return f',{_string(column.name)}:{{"t":{column.type},{handle}"f":{_flags(table, column)},"v":'


def _object(records: Records, columns: list[pa.Array]) -> _Parts:
    parts: _Parts = []
    for column, values in zip(records.shown, columns, strict=True):
        parts += [_head(records.table, column), _cells(column, values), "}"]
    return joined_objects(parts)


def _changed(records: Records) -> _Parts:
    """The old values that changed; a zero or an empty one as null, as TiCDC has it."""
    assert records.old_columns is not None
    members: list[pa.Array] = []
    for column, new, old in zip(records.shown, records.columns, records.old_columns, strict=True):
        now, before = _cells(column, new), _cells(column, old)
        shown = pc.if_else(is_zero(column, old), "null", before)
        member = joined([_head(records.table, column), shown, "}"])
        members.append(pc.if_else(pc.not_equal(now, before), member, ""))
    return ["{", pc.ascii_ltrim(joined([*members, ""]), ","), "}"]


def _cells(column: ColumnInfo, values: pa.Array) -> pa.Array:
    """JSON of a column's values; BLOB and TEXT in base64, ENUM and SET by number, binary text as Go quotes it."""
    if pa.types.is_struct(values.type):
        values = pc.struct_field(values, "number")
    if pa.types.is_integer(values.type):
        return or_null(values.cast(pa.string()))
    if pa.types.is_floating(values.type):
        return or_null(json_float(values))
    if column.type in ti.BLOBS:
        return quoted(base64_of(values))
    if column.is_binary:
        values = _go_quoted(values)
    return quoted(escaped(values, is_text=True, html=False))


def _go_quoted(values: pa.BinaryArray) -> pa.Array:
    """The inside of strconv.Quote; cells that are not plain ASCII are looked at one by one."""
    plain = pl.Series(values=values, dtype=pl.Binary)
    raw = b"".join(chunk for chunk in plain.unique().drop_nulls().to_list())
    if all(0x20 <= byte < 0x7F and byte not in b'"\\' for byte in set(raw)):
        return values.cast(pa.string())
    known = {cell: _quote(cell) for cell in plain.unique().drop_nulls().to_list()}
    return pa.array([None if cell is None else known[cell] for cell in values.to_pylist()], pa.string())


_GO_SHORT = {7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}


def _quote(cell: bytes) -> str:
    said: list[str] = []
    for character in cell.decode("utf-8", "surrogateescape"):
        code = ord(character)
        if code in _GO_SHORT:
            said.append(_GO_SHORT[code])
        elif 0xDC80 <= code <= 0xDCFF:
            said.append(f"\\x{code - 0xDC00:02x}")
        elif character.isprintable() and code != 0xFFFD:
            said.append(character)
        elif code < 0x80:
            said.append(f"\\x{code:02x}")
        elif code == 0xFFFD:
            said.append(character)
        else:
            said.append(f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return "".join(said)
