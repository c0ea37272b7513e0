"""Columns and values as the golden data writes them."""

from __future__ import annotations

from typing import Any

import numpy as np
from golden import UnknownShape
from schema_fixtures import column

NOT_DECODABLE = {6, 14, 255}  # NULL, NewDate, GEOMETRY


def column_of(definition: dict[str, Any]) -> dict[str, Any]:
    """ColumnInfo JSON of a member of `args.columns`; its name is its id."""
    id_, tp = definition["id"], definition["tp"]
    made = column(id_, str(id_), tp, definition.get("flag", 0), decimal=definition.get("decimal", 0))
    made["type"] |= {name.capitalize(): definition[name] for name in ("elems", "charset") if name in definition}
    return made


def is_same(value: Any, expected: Any) -> bool:
    """Whether a decoded value is what the literal says."""
    if isinstance(expected, list):
        raise UnknownShape("value []")
    if isinstance(expected, dict):  # by the name of a type
        form, expected = next(iter(expected.items()))
        if form not in ("text", "int", "uint", "float", "float32", "float64", "hex", "bytes_hex"):
            raise UnknownShape(f"value {form}")
        if form.endswith("hex"):
            return value == (bytes.fromhex(expected) if isinstance(value, bytes) else bytes.fromhex(expected).decode())
        if isinstance(value, dict) and form in ("int", "uint"):
            return bool(value["number"] == int(expected))
    if value is None or expected is None:
        return value is expected
    if isinstance(value, float):
        return bool(np.float32(value) == np.float32(expected))
    value = value["text"] if isinstance(value, dict) else value
    return (value.decode("latin-1") if isinstance(value, bytes) else str(value)) == str(expected)
