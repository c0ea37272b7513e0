"""O6: each version's schema file says what its rows are, and stood there before them (CORRECTNESS.md, promise 3).

The checksum is computed here once more, from the file's content as a reader sees it (facts, ticdc-compatibility 2.3).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from changefeed.objectstore import ObjectStore
from changefeed.verify.files import parse_json
from changefeed.verify.lines import Shape
from changefeed.verify.result import Result

_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_NUMBERS = {"TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT", "YEAR", "BIT"}
_FLOATS = {"FLOAT", "DOUBLE"}
_BYTES = {"BINARY", "VARBINARY", "TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB"}


def check_schema(store: ObjectStore, path: str, table: tuple[str, str], shape: Shape, result: Result) -> float | None:
    """Hold a schema file against the table (schema, name) whose rows it describes; when it was written, if known."""
    found = store.get(path)
    content = parse_json(found.body)
    for problem in _problems(path, content, table, shape):
        result.problem(problem)
    return found.modified


def _problems(path: str, content: Any, table: tuple[str, str], shape: Shape) -> list[str]:
    match content:
        case {"TableColumns": [*columns]} if all(isinstance(column, dict) for column in columns):
            pass
        case _:
            return [f"{path} is no schema file."]
    name = ".".join(table)
    if [column.get("ColumnName") for column in columns] != shape.names:
        return [f"{path} does not name the columns of {name}: {', '.join(shape.names)}."]
    problems = []
    for column, kind in zip(columns, shape.types, strict=True):
        if not _holds(str(column.get("ColumnType")), kind):
            problems.append(f"{path} says that {column['ColumnName']} is {column.get('ColumnType')}: its rows are not.")
    version, checksum = path.rpartition("schema_")[2].removesuffix(".json").split("_")
    if (content.get("Schema"), content.get("Table"), content.get("TableVersion")) != (*table, int(version)):
        problems.append(f"{path} is of version {content.get('TableVersion')} of another table, or its name is.")
    if f"{schema_checksum(content):010}" != checksum:
        problems.append(f"{path} has another content than its name says: its checksum is {schema_checksum(content)}.")
    return problems


def schema_checksum(content: Mapping[str, Any]) -> int:
    """CRC-32 of what decides how rows are read, as Go prints it; `content`: a schema file's."""
    columns: Sequence[Mapping[str, Any]] = content.get("TableColumns") or []
    part = {
        "Table": content.get("Table"),
        "Schema": content.get("Schema"),
        "Version": 0,
        "TableColumns": sorted(columns, key=lambda column: str(column.get("ColumnName")).encode()),
        "TableColumnsTotal": content.get("TableColumnsTotal"),
    }
    text = json.dumps(part, indent=4, ensure_ascii=False)
    for character, escape in _ESCAPED.items():
        text = text.replace(character, escape)
    return zlib.crc32(text.encode())


def _holds(type_name: str, kind: pa.DataType) -> bool:
    """Whether values of the Arrow type can be those of a column of the SQL type."""
    base, _, rest = type_name.partition(" ")
    if base in _NUMBERS:
        unsigned = "UNSIGNED" in rest or base in ("BIT", "YEAR")
        return bool(pa.types.is_integer(kind)) and (base in ("BIT", "YEAR") or unsigned == (kind == pa.uint64()))
    if base in _FLOATS:
        return bool(pa.types.is_floating(kind))
    if base in _BYTES:
        return bool(pa.types.is_binary(kind))
    return kind in (pa.string(), pa.uint64()) if base in ("ENUM", "SET") else bool(kind == pa.string())
