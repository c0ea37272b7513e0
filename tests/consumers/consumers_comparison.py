"""What a reader returned against what the upstream has: rows are put together by key, and cells compared as values."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from consumers_history import KEYS, RENAMED, TYPES, Lake, Values
from consumers_reading import CSV, CSV_FOLDER, CSV_LF, JSON, UNQUOTED, UPSERT, Answer, Column, Part, Row
from consumers_values import moment

_WHOLE = ("tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit")
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_TEXT_FORMATS = (CSV, CSV_LF, CSV_FOLDER, UNQUOTED)


class Wrong(NamedTuple):
    """`kind`: a type of the upstream's, or "rows" for those that are missing or too many."""

    kind: str
    wanted: Any
    found: Any


@dataclass(frozen=True)
class Verdict:
    """The verdict on one reading of a format. `errors`: by what could not be read, "" where nothing could."""

    answer: Answer
    wrong: tuple[Wrong, ...]
    errors: dict[str, str]

    @property
    def is_right(self) -> bool:
        return not self.wrong and not self.errors


def judged(lake: Lake, answer: Answer) -> Verdict:
    parts = lake.parts[answer.of]
    errors: dict[str, str] = {}
    for key, said in answer.errors.items():
        is_empty = not parts[key].folder.is_file() and not parts[key].files("**/CDC0*", but_empty=True)
        what = "a file of zero bytes" if is_empty else f"`{key[0]}`"
        errors.setdefault("" if len(answer.errors) == len(parts) else what, said)
    return Verdict(answer, tuple(dict.fromkeys(_differences(lake, answer))), errors)


def _differences(lake: Lake, answer: Answer) -> Iterator[Wrong]:
    parts = lake.parts[answer.of]
    for table in dict.fromkeys(name for name, _ in parts):
        mine = {key: part for key, part in parts.items() if key[0] == table}
        if any(key in answer.errors for key in mine):
            continue
        changes = [(part, row) for key, part in mine.items() for row in answer.rows[key]]
        found, torn = _state(table, changes, lake.emptied[answer.of][table], answer.of)
        if torn:
            yield Wrong("rows", "", f"{torn} bogus")
        yield from _compared(lake.expected[table], found, answer.of, table, mine)


def _state(table: str, changes: Sequence[tuple[Part, Row]], emptied: int, of: str) -> tuple[Values, int]:
    """The rows that changes leave, and how many of them are none."""
    key_columns = [Column(name, "") for name in KEYS.get(table, ("id",))]
    rows: Values = {}
    torn = 0
    ordered = []
    for part, row in changes:
        if of == UPSERT:
            row = ("I", emptied + 1, *row)
        op, ts, *cells = row
        names = [RENAMED.get(table, {}).get(column.name, column.name) for column in part.columns]
        if op not in ("I", "U", "D") or not _is_number(ts) or len(cells) != len(names):
            torn += 1
        elif int(ts) > emptied:
            ordered.append((int(ts), op != "D", dict(zip(names, cells, strict=True))))
    for _, is_there, cells in sorted(ordered, key=lambda change: change[:2]):
        key = tuple(_key(cells[column.name]) for column in key_columns)
        if of == UPSERT and key in rows:
            torn += 1  # twice
        rows.pop(key, None)
        if is_there:
            rows[key] = cells
    return rows, torn


def _is_number(value: Any) -> bool:
    try:
        return int(value) == value or str(int(value)) == value
    except (ValueError, TypeError):
        return False


def _key(value: Any) -> Any:
    """Two values of a key that are the same, whether text or number."""
    return str(int(value)) if isinstance(value, (int, float, Decimal)) and value == value else str(value)


def _compared(
    wanted: Values, found: Values, of: str, table: str, parts: dict[tuple[str, str], Part]
) -> Iterator[Wrong]:
    columns = {RENAMED.get(table, {}).get(c.name, c.name): c for part in parts.values() for c in part.columns}
    by_key = {tuple(map(_key, key)): row for key, row in wanted.items()}
    missing, surplus = by_key.keys() - found.keys(), found.keys() - by_key.keys()
    if missing:
        yield Wrong("rows", "", f"{len(missing)} missing")
    if surplus:
        yield Wrong("rows", "", f"{len(surplus)} too many")
    for key in (key for key in by_key if key in found):
        for name, value in by_key[key].items():
            cell = found[key].get(name)
            if not same(columns[name], value, cell, of):
                yield Wrong(kind_of(columns[name]), value, cell)


def kind_of(column: Column) -> str:
    """How the page calls its type: texts are one."""
    if column.base in _TEXTS:
        return "text"
    return (column.sql if column.base == "decimal" else column.base + " unsigned" * column.is_unsigned).upper()


def same(column: Column, wanted: Any, found: Any, of: str) -> bool:
    """Whether a cell is the upstream's value. In csv and canal-json, a text may stand for what isn't one."""
    if wanted is None or found is None:
        return wanted is None and found is None
    base = column.base
    if base in _WHOLE:
        return not isinstance(found, bool) and _number(found) == wanted
    if base in ("float", "double"):
        number = _number(found)
        return number is not None and _rounded(base, float(number)) == _rounded(base, wanted)
    if base == "decimal":
        return _number(found) == Decimal(wanted)
    if base in _TEXTS:
        return type(found) is str and found == wanted
    if base in _BYTES:
        return found in _of_bytes(wanted, of)
    if base in ("enum", "set"):
        return type(found) is str and found == (_in_json(column, wanted) if of == JSON else wanted)
    return moment(base, found) == moment(base, wanted)


def _number(value: Any) -> Decimal | None:
    if isinstance(value, float):
        return Decimal(value)
    try:
        return Decimal(value)
    except (InvalidOperation, TypeError, ValueError):
        return None


def _rounded(base: str, value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0]) if base == "float" else value
    except OverflowError:
        return value


def _of_bytes(value: bytes, of: str) -> tuple[bytes | str, ...]:
    if of == JSON:
        return (value.decode("latin-1"),)
    return (base64.b64encode(value).decode(), value) if of in _TEXT_FORMATS else (value,)


def _in_json(column: Column, value: str) -> str:
    kinds = {kind.sql: kind for kind in TYPES.values()}
    texts = {cell.value: cell.json.strip('"') for cell in kinds[column.sql].cells}
    return texts[value]
