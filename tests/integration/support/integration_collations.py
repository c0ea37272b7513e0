"""Weights of characters under TiDB's collations, from each one's own definition; as a script, it writes them anew.

- utf8mb4_0900_ai_ci: the primary weights of the Unicode Collation Algorithm 9.0.0, from the table in pyuca.
- utf8mb4_general_ci, utf8mb4_unicode_ci (UCA 4.0.0), gbk_bin, gbk_chinese_ci: MySQL's, as a MariaDB server says them.
- gb18030_chinese_ci: which letters are one, by the case mappings of Unicode 5.2. Not the order of the others.

TiDB gives every character weights of its own, so there are no contractions. Only what no rule gives is listed; the
rules are in `changefeed.filter.weights`.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from changefeed.filter.letter_case import capital
from changefeed.filter.weights import FILE, by_rule
from integration_mariadb import MariaDb, running

Weights = dict[int, tuple[int, ...]]

_OF_SERVER = {
    "utf8mb4_general_ci": "utf8mb4",
    "utf8mb4_unicode_ci": "utf8mb4",
    "gbk_bin": "gbk",
    "gbk_chinese_ci": "gbk",
}
_ENTRY = re.compile(r"^([0-9A-F]+) *; *((?:\[[^]]*\])+)", re.MULTILINE)
_PRIMARY = re.compile(r"\[[.*]([0-9A-F]+)")
_END_0900 = 0x2CEA1  # TiDB's table ends here; what is above has its weights by rule
_MOST_ELEMENTS = 8  # of one character, the first ones
_SYLLABLES = range(0xAC00, 0xD7B0)
#: They fold to another letter, but have their capitals all the same.
_CAPITALS_OF = {0x017F: 0x0053, 0x0345: 0x0399}


def all_weights(server: MariaDb) -> dict[str, Weights]:
    """By collation and code point; without what the rules of `by_rule` say anyway."""
    _store_characters(server)
    found = {"utf8mb4_0900_ai_ci": uca_0900(), "gb18030_chinese_ci": gb18030()}
    found |= {name: _of_server(server, name, charset) for name, charset in _OF_SERVER.items()}
    return {name: dict(_beyond_the_rule(name, weights)) for name, weights in sorted(found.items())}


def stored() -> dict[str, Weights]:
    """What the package has."""
    found: dict[str, Weights] = {}
    for row in pq.read_table(files("changefeed.filter") / FILE).to_pylist():
        found.setdefault(row["collation"], {})[row["character"]] = tuple(row["weights"])
    return found


def write(found: dict[str, Weights], path: Path) -> None:
    rows = [(name, code, key) for name, weights in found.items() for code, key in sorted(weights.items())]
    names, codes, keys = zip(*rows, strict=True)
    columns = {
        "collation": pa.array(names).dictionary_encode(),
        "character": pa.array(codes, pa.uint32()),
        "weights": pa.array(keys, pa.list_(pa.uint16())),
    }
    encodings = {"character": "DELTA_BINARY_PACKED", "weights.list.element": "BYTE_STREAM_SPLIT"}  # the smallest
    table = pa.table(columns)
    pq.write_table(table, path, compression="zstd", use_dictionary=["collation"], column_encoding=encodings)


def uca_0900() -> Weights:
    elements = _table("9.0.0")
    found = {
        code: tuple(primary for primary in primaries[:_MOST_ELEMENTS] if primary)
        for code, primaries in elements.items()
        if code < _END_0900
    }
    for code in _SYLLABLES:  # as their letters
        lead, rest = divmod(code - _SYLLABLES.start, 588)
        vowel, trail = divmod(rest, 28)
        letters = (0x1100 + lead, 0x1161 + vowel, *((0x11A7 + trail,) if trail else ()))
        found[code] = tuple(found[letter][0] for letter in letters)
    return found


def gb18030() -> Weights:
    """Return the capital's weights of each letter that has one: TiDB has MySQL's table, which knows Unicode 5.2."""
    known = _table("5.2.0").keys()
    return {code: _utf16(other) for code in known if (other := _capital(code)) != code and other in known}


def _capital(code: int) -> int:
    """One letter's one capital; of a letter that is the capital of another, or a variant of it, itself."""
    letter = chr(code)
    if len(letter.casefold()) == 1 and letter.casefold() != letter:
        return _CAPITALS_OF.get(code, code)
    return ord(capital(letter))


def _utf16(code: int) -> tuple[int, ...]:
    return tuple(np.frombuffer(chr(code).encode("utf-16-le"), "<u2").tolist())


def _table(version: str) -> dict[int, list[int]]:
    """The primary weights of the single characters in the consortium's table, by code point."""
    entries = _ENTRY.findall((files("pyuca") / f"allkeys-{version}.txt").read_text())
    return {int(code, 16): [int(primary, 16) for primary in _PRIMARY.findall(elements)] for code, elements in entries}


def _store_characters(server: MariaDb) -> None:
    """All that the older collations tell apart; not as literals, of which a server would trim the space."""
    codes = [code for code in range(0x10000) if not 0xD800 <= code < 0xE000]
    server.query(
        "CREATE DATABASE characters",
        "CREATE TABLE characters.all_of_them (code INT PRIMARY KEY, text VARCHAR(1) COLLATE utf8mb4_bin)",
        f"INSERT INTO characters.all_of_them VALUES {','.join(f'({code}, _utf32 0x{code:08X})' for code in codes)}",
    )


def _of_server(server: MariaDb, collation: str, charset: str) -> Weights:
    weights = f"WEIGHT_STRING(CONVERT(text USING {charset}) COLLATE {collation})"
    found = server.query(f"SELECT code, {weights} FROM characters.all_of_them")
    return {int(code): _units(of_code, charset) for code, of_code in found}


def _units(weights: bytes, charset: str) -> tuple[int, ...]:
    """GBK's are one number of one or two bytes."""
    if charset == "gbk":
        return (int.from_bytes(weights, "big"),)
    return tuple(np.frombuffer(weights, ">u2").tolist())


def _beyond_the_rule(collation: str, weights: Weights) -> Iterator[tuple[int, tuple[int, ...]]]:
    codes = np.arange(0x110000, dtype=np.uint32)
    first, second = by_rule(collation, codes)
    for code, key in weights.items():
        if key != tuple(int(unit) for unit in (first[code], second[code]) if unit):
            yield code, key


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as server:
        write(all_weights(server), Path(str(files("changefeed.filter") / FILE)))


if __name__ == "__main__":
    main()
