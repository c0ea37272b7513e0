"""Converts a parquet file to columns like those of text files: each cell becomes what the upstream's decoder shows.

Column names and kinds are implemented separately here, so that bugs in the writer show up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from changefeed.reading.failures import Break
from changefeed.reading.rows.lines import LineShape

_META = ["_op", "_commit_ts"]
_OLD = "_old"
_OPS = pa.array(["I", "U", "D"])
_ROWS = 64 << 10
_MOST_DIGITS = 6  # of a second's fraction


def read_rows(body: bytes, path: str, shape: LineShape, old: bool = False) -> Iterator[pa.Table]:
    """See contents.read_rows. Which table it is the path says."""
    schema, table = path.split("/", 2)[:2] if path.count("/") > 1 else ("", "")
    try:
        with pyarrow.parquet.ParquetFile(pa.BufferReader(body)) as file:
            names = file.schema_arrow.names
            if names not in ([*_META, *shape.names], [*_META, *shape.names, _OLD]):
                raise Break(f"{path} does not have the columns of its table: {', '.join(names)}.")
            for batch in file.iter_batches(_ROWS):
                yield _rows(batch, shape, schema, table, old and names[-1] == _OLD)
    except (pa.ArrowInvalid, OSError) as error:
        raise Break(f"{path} can't be decoded: {str(error).strip().rstrip('.')}.") from None


def lowest_ts(body: bytes, path: str) -> int | None:
    """See contents.lowest_ts."""
    try:
        found = pyarrow.parquet.read_table(pa.BufferReader(body), columns=["_commit_ts"])["_commit_ts"]
    except (pa.ArrowInvalid, OSError, KeyError) as error:
        raise Break(f"{path} can't be decoded: {str(error).strip().rstrip('.')}.") from None
    lowest: int | None = pc.min(found).as_py()
    return lowest


def _rows(batch: pa.RecordBatch, shape: LineShape, schema: str, table: str, old: bool) -> pa.Table:
    op, commit_ts = batch.column(0), batch.column(1)
    if not pc.all(pc.is_in(op, _OPS)).as_py() and len(batch):
        raise pa.ArrowInvalid("a row's _op is none of I, U, D")
    if batch.schema.names[-1] == _OLD and not batch.column(_OLD).is_valid().equals(pc.equal(op, "U")):
        raise pa.ArrowInvalid("_old is not where updates are")
    columns = _columns(shape, shape.columns, batch.columns[2:])
    if old:
        before = batch.column(_OLD)
        columns["has_old"] = before.is_valid()
        columns |= _columns(shape, shape.old_columns, [pc.struct_field(before, name) for name in shape.names])
    names = {"table": pa.repeat(table, len(batch)), "schema": pa.repeat(schema, len(batch))}
    return pa.table({"op": op, **names, "commit_ts": commit_ts.cast(pa.uint64()), **columns})


def _columns(shape: LineShape, columns: Sequence[str], values: Sequence[pa.Array]) -> dict[str, pa.Array]:
    found = {}
    for number, column in enumerate(columns):
        fraction = shape.fractions[number] if shape.fractions else _MOST_DIGITS
        try:
            found[column] = _cells(values[number], shape.types[number], fraction)
        except pa.ArrowInvalid as error:
            raise pa.ArrowInvalid(f"column {shape.names[number]}: {error}") from None
    return found


def _cells(values: pa.Array, kind: pa.DataType, fraction: int) -> pa.Array:
    """Typed values as a text file has them once it is read. `fraction`: digits of a second's."""
    has = values.type
    if pa.types.is_integer(kind) and (pa.types.is_integer(has) or pa.types.is_decimal(has)):
        return values.cast(kind)
    if has == kind:
        return values
    if kind == pa.string() and pa.types.is_decimal(has):
        # Arrow writes small ones with an exponent.
        return pl.Series(pl.from_arrow(values)).cast(pl.String).to_arrow().cast(pa.string())
    if kind == pa.string() and pa.types.is_date(has):
        return values.cast(pa.string())
    if kind == pa.string() and has in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        return _cut(values.cast(pa.timestamp("us")).cast(pa.string()), fraction)
    raise pa.ArrowInvalid(f"it has type {has}")


def _cut(times: pa.Array, fraction: int) -> pa.Array:
    """`YYYY-MM-DD HH:MM:SS.ffffff` with so many digits behind the point; what is cut off must be nothing."""
    end = len("YYYY-MM-DD HH:MM:SS.") + fraction
    if pc.any(pc.not_equal(pc.utf8_slice_codeunits(times, end), "0" * (_MOST_DIGITS - fraction))).as_py():
        raise pa.ArrowInvalid(f"a time has more than {fraction} digits behind its second")
    return pc.utf8_slice_codeunits(times, 0, end if fraction else end - 1)
