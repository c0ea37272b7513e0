"""TiCDC's canal-json for storage sinks: an object a line (docs/sink-files.md, canal-json), made of whole columns.

A pure function of records, plan time and format (rule 10): `ts` is the plan's PD time, and `mysqlType`, whose order
is random in TiCDC, has the columns' order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.schema.table_info import ColumnInfo
from changefeed.sink.records import Records, sliced, taken
from changefeed.sink.text.canal_types import handle_key, java_type, larger_java_type, mysql_type, primary_key
from changefeed.sink.text.go_float import plain_float
from changefeed.sink.text.json_text import escaped, json_string
from changefeed.sink.text.lines import joined, text_of

VERSION = 1

_TYPES = {OP_DELETE: "DELETE", OP_UPDATE: "UPDATE", OP_INSERT: "INSERT"}
_LOGICAL_BITS = pa.scalar(18, pa.uint64())
#: Constants repeat in each line: of a wide table, so many bytes of them are in memory at a time.
CONSTANT_BYTES = 256 << 20

_Parts = list[str | pa.Array]


@dataclass(frozen=True)
class CanalJsonFormat:
    """TiCDC's options that canal-json in storage has."""

    terminator: str = "\r\n"
    enable_tidb_extension: bool = False
    content_compatible: bool = False
    only_output_updated_columns: bool = False
    delete_only_output_handle_key_columns: bool = False

    @classmethod
    def from_config(cls, storage: Mapping[str, Any]) -> CanalJsonFormat:
        """From `sink.storage` of the effective spec (its JSON, every member there)."""
        canal = storage["canalJson"]
        return cls(
            terminator=storage["terminator"],
            enable_tidb_extension=canal["enableTidbExtension"],
            content_compatible=canal["contentCompatible"],
            # TiCDC has the one imply the other: Canal's own `old` has changed columns only.
            only_output_updated_columns=canal["onlyOutputUpdatedColumns"] or canal["contentCompatible"],
            delete_only_output_handle_key_columns=canal["deleteOnlyOutputHandleKeyColumns"],
        )


def fingerprint() -> str:
    """What bytes depend on beyond plan and config: this codec and the libraries that format values (rule 10)."""
    return f"canal-json-{VERSION} pyarrow-{pa.__version__} polars-{pl.__version__}"


def encode(records: Records, pd_ms: int, fmt: CanalJsonFormat) -> Iterator[pa.Buffer]:
    """The lines of `records`, which have `old_columns`, in pieces of bounded size."""
    rows = max(1, CONSTANT_BYTES // _constant_bytes(records.shown, fmt))
    for start in range(0, len(records.op), rows):
        yield text_of(lines(sliced(records, start, rows), pd_ms, fmt))


def _constant_bytes(columns: Sequence[ColumnInfo], fmt: CanalJsonFormat) -> int:
    """Return about how many bytes of a line are the same for all rows, at most."""
    names = sum(4 * len(json_string(column.name)) for column in columns)
    types = sum(len(mysql_type(column, full=fmt.content_compatible)) + 16 for column in columns)
    return 1024 + names + types


def lines(records: Records, pd_ms: int, fmt: CanalJsonFormat, large: str = "") -> pa.Array:
    """A line each; deletes that show fewer columns are written apart and put among the others again.

    `large`: more members of `_tidb`, from a comma on.
    """
    deletes = records.op == OP_DELETE
    if not fmt.delete_only_output_handle_key_columns or not deletes.any() or deletes.all():
        return _lines_alike(records, pd_ms, fmt, large)
    indexes = [np.flatnonzero(deletes), np.flatnonzero(~deletes)]
    apart = [_lines_alike(taken(records, rows), pd_ms, fmt, large) for rows in indexes]
    order = np.empty(len(records.op), np.int64)
    order[np.concatenate(indexes)] = np.arange(len(order))
    return pa.concat_arrays(apart).take(pa.array(order))


def _lines_alike(records: Records, pd_ms: int, fmt: CanalJsonFormat, large: str) -> pa.Array:
    """Return lines of rows that show the same columns."""
    table = records.table
    names = ",".join(json_string(name) for name in primary_key(table))
    columns = _columns(records, fmt)
    mysql_types = (
        f"{json_string(column.name)}:{json_string(mysql_type(column, full=fmt.content_compatible))}"
        for column, _ in columns
    )
    parts: _Parts = [
        f'{{"id":0,"database":{json_string(table.schema_name)},"table":{json_string(table.name)}',
        f',"pkNames":[{names}],"isDdl":false,"type":"',
        _type_names(records.op),
        '","es":',
        pc.shift_right(records.commit_ts, _LOGICAL_BITS).cast(pa.string()),
        f',"ts":{pd_ms},"sql":"","sqlType":',
        *_sql_types(columns),
        f',"mysqlType":{{{",".join(mysql_types)}}},"old":',
        *_old_or_null(records, fmt),
        ',"data":[',
        *_object(columns),
        "]",
    ]
    if fmt.enable_tidb_extension:
        parts += [',"_tidb":{"commitTs":', records.commit_ts.cast(pa.string()), large, "}"]
    return joined([*parts, "}", fmt.terminator])


def _columns(records: Records, fmt: CanalJsonFormat) -> list[tuple[ColumnInfo, pa.Array]]:
    """What is shown of rows that show the same columns."""
    pairs = zip(records.shown, records.columns, strict=True)
    if not fmt.delete_only_output_handle_key_columns or (records.op != OP_DELETE).all():
        return list(pairs)
    shown = handle_key(records.table)
    return [(column, values) for column, values in pairs if column.name in shown]


def _type_names(op: npt.NDArray[np.uint8]) -> str | pa.Array:
    if (op == op[0]).all():
        return _TYPES[int(op[0])]
    return pa.array([_TYPES[each] for each in range(len(_TYPES))]).take(pa.array(op))


def _sql_types(columns: Sequence[tuple[ColumnInfo, pa.Array]]) -> _Parts:
    parts: _Parts = []
    for column, values in columns:
        usual, larger = str(java_type(column)), larger_java_type(column)
        parts.append(f",{json_string(column.name)}:")
        above = pc.greater(values, pa.scalar(larger[0], values.type)) if larger else None
        if larger and pc.any(above).as_py():
            parts.append(pc.if_else(pc.fill_null(above, False), str(larger[1]), usual))
        else:
            parts.append(usual)
    return ["{", *_without_comma(parts), "}"] if parts else ["null"]


def _object(columns: Sequence[tuple[ColumnInfo, pa.Array]]) -> _Parts:
    """Each column's value as text, or null."""
    parts: _Parts = []
    for column, values in columns:
        parts += [f",{json_string(column.name)}:", *_cells(_text(column, values))]
    return ["{", *_without_comma(parts), "}"]


def _without_comma(parts: _Parts) -> _Parts:
    first = parts[:1]
    return [part[1:] for part in first if isinstance(part, str)] + parts[1:]


def _old_or_null(records: Records, fmt: CanalJsonFormat) -> _Parts:
    updates = records.op == OP_UPDATE
    if updates.all():
        return _old(records, fmt)
    if not updates.any():
        return ["null"]
    text = joined(_old(taken(records, np.flatnonzero(updates)), fmt))
    indexes = np.where(updates, np.cumsum(updates) - 1, len(text))
    return [pa.concat_arrays([text, pa.array(["null"])]).take(pa.array(indexes))]


def _old(records: Records, fmt: CanalJsonFormat) -> _Parts:
    """The rows before updates: whole, or the columns that changed."""
    columns = _columns(records, fmt)
    assert records.old_columns is not None, "the mounter was asked for them"
    before = list(zip((column for column, _ in columns), records.old_columns, strict=True))
    if not fmt.only_output_updated_columns:
        return ["[", *_object(before), "]"]
    members: _Parts = []
    for (column, old), (_, new) in zip(before, columns, strict=True):
        member = joined([f",{json_string(column.name)}:", *_cells(_text(column, old))])
        members.append(pc.if_else(_differ(column, old, new), member, ""))
    # The first of them, whichever it is, begins with a comma too.
    return ["[{", pc.ascii_ltrim(joined(members), ","), "}]"]


def _differ(column: ColumnInfo, old: pa.Array, new: pa.Array) -> pa.Array:
    """Whether the values would be written differently; of text, whether its bytes differ."""
    left, right = _comparable(column, old), _comparable(column, new)
    return pc.coalesce(pc.not_equal(left, right), pc.xor(left.is_null(), right.is_null()))


def _comparable(column: ColumnInfo, values: pa.Array) -> pa.Array:
    is_itself = pa.types.is_string(values.type) or pa.types.is_binary(values.type) or pa.types.is_integer(values.type)
    return values if is_itself else _text(column, values)


def _text(column: ColumnInfo, values: pa.Array) -> pa.Array:
    """What stands between the quotes."""
    if pa.types.is_struct(values.type):  # ENUM and SET: canal has their numbers
        values = pc.struct_field(values, "number")
    if pa.types.is_integer(values.type):
        return values.cast(pa.string())
    if pa.types.is_floating(values.type):
        return plain_float(values)
    return escaped(values, is_text=not column.is_binary)


def _cells(text: pa.Array) -> _Parts:
    if not text.null_count:
        return ['"', text, '"']
    return [pc.fill_null(pc.binary_join_element_wise('"', text, '"', ""), "null")]
