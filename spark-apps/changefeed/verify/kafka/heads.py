"""What messages say before their tables are known: kind, table and ts of each row, DDL and resolved-ts.

The protocols are implemented separately here, so that bugs in the encoders show up. A *line* is one JSON object: in
canal-json the message itself; in open-protocol, whose messages hold several rows, {"k": the row's key, "v": its value}.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from changefeed.reading.failures import Break

ROW, DDL, RESOLVED = "row", "ddl", "resolved"

_VERSION = (1).to_bytes(8, "big")
_LENGTH = 8
_OPEN_KINDS = [None, ROW, DDL, RESOLVED]  # by its "t"
_CANAL = pa.schema(
    [
        ("database", pa.string()),
        ("table", pa.string()),
        ("type", pa.string()),
        ("isDdl", pa.bool_()),
        ("_tidb", pa.struct([("commitTs", pa.uint64()), ("watermarkTs", pa.uint64())])),
    ]
)
_OPEN = pa.schema(
    [("k", pa.struct([("ts", pa.uint64()), ("scm", pa.string()), ("tbl", pa.string()), ("t", pa.int64())]))]
)

Message = tuple[bytes | None, bytes | None]  # key, value


def heads(protocol: str, messages: Sequence[Message]) -> pa.Table:
    """number (of the message), nth (in it), kind, database, name (text), ts (u64), line (bytes). Raises Break."""
    split, read = (_canal_lines, _canal) if protocol == "canal-json" else (_open_lines, _open)
    split_up = [split(*message) for message in messages]
    lines = [line for each in split_up for line in each]
    numbers = [number for number, each in enumerate(split_up) for _ in each]
    nths = [nth for each in split_up for nth in range(len(each))]
    try:
        found = read(lines)
    except pa.ArrowInvalid as error:
        raise Break(str(error).strip().rstrip(".")) from None
    if found["kind"].null_count or found["ts"].null_count:
        raise Break("it says neither what it is nor of which ts")
    for name, values in (("number", numbers), ("nth", nths)):
        found = found.append_column(name, pa.array(values, pa.int64()))
    return found.append_column("line", pa.array(lines, pa.binary()))


def objects(lines: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    """Members of one JSON object a line, others left out. Raises pa.ArrowInvalid."""
    if not lines:
        return schema.empty_table()
    body = b"\n".join([*lines, b""])
    found = pyarrow.json.read_json(
        io.BytesIO(body),
        pyarrow.json.ReadOptions(block_size=len(body) + 1, use_threads=False),
        pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    if found.num_rows != len(lines):
        raise pa.ArrowInvalid("it is not just one JSON object")
    return found.combine_chunks()


def _canal_lines(key: bytes | None, value: bytes | None) -> list[bytes]:
    if not value:
        raise Break("it is empty")
    return [value]


def _canal(lines: Sequence[bytes]) -> pa.Table:
    found = objects(lines, _CANAL)
    is_resolved = pc.fill_null(pc.equal(found["type"], "TIDB_WATERMARK"), False)
    is_ddl = pc.fill_null(found["isDdl"], False)
    extension = found["_tidb"]
    ts = pc.if_else(is_resolved, pc.struct_field(extension, "watermarkTs"), pc.struct_field(extension, "commitTs"))
    kind = pc.if_else(is_resolved, RESOLVED, pc.if_else(is_ddl, DDL, ROW))
    return _table(kind, found["database"], found["table"], ts)


def _open_lines(key: bytes | None, value: bytes | None) -> list[bytes]:
    keys, values = key or b"", value or b""
    if keys[:_LENGTH] != _VERSION:
        raise Break(f"its key begins with {keys[:_LENGTH]!r}, not with the protocol's version")
    left, right = _parts(keys[_LENGTH:]), _parts(values)
    if len(left) != len(right):
        raise Break("its value is shorter or longer than its key")
    return [b'{"k":' + one + b',"v":' + (other or b"null") + b"}" for one, other in zip(left, right, strict=True)]


def _parts(framed: bytes) -> list[bytes]:
    """Each stands behind its length."""
    found = []
    start = 0
    while start < len(framed):
        end = start + _LENGTH + int.from_bytes(framed[start : start + _LENGTH], "big")
        if end > len(framed):
            raise Break("a part of it is cut off")
        found.append(framed[start + _LENGTH : end])
        start = end
    return found


def _open(lines: Sequence[bytes]) -> pa.Table:
    keys = objects(lines, _OPEN)["k"]
    ts, database, name, kind = (pc.struct_field(keys, member) for member in ("ts", "scm", "tbl", "t"))
    kinds = pa.array(_OPEN_KINDS, pa.string())
    is_known = pc.and_(pc.greater(kind, 0), pc.less(kind, len(kinds)))
    return _table(kinds.take(pc.if_else(pc.fill_null(is_known, False), kind, 0)), database, name, ts)


def _table(kind: pa.Array, database: pa.Array, name: pa.Array, ts: pa.Array) -> pa.Table:
    return pa.table(
        {
            "kind": kind,
            "database": pc.fill_null(database, ""),
            "name": pc.fill_null(name, ""),
            "ts": ts,
        }
    )
