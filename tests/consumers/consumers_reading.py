"""What a reader is, and how one runs: in a process of its own, and in the environment that its libraries are in.

So this imports nothing but Python's library. A module of `readers` has a list READINGS, and `version()`.
"""

from __future__ import annotations

import importlib
import pickle
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

META = ("op", "table", "schema", "commit_ts")  # what each line of csv begins with
OPS = {"INSERT": "I", "UPDATE": "U", "DELETE": "D"}  # canal-json's

CSV, JSON, PARQUET = "csv", "canal-json", "parquet"
ZEROS = "csv with dates such as 0000-00-00"
ZEROS_AS_TEXT = f"{ZEROS} as text"
CSV_LF = 'csv with `terminator: "\\n"`'
UNQUOTED = "csv without quotes"
CSV_FOLDER, PARQUET_FOLDER = "a folder of csv", "a folder of parquet"
APPEND, UPSERT = "Iceberg append", "Iceberg upsert"


@dataclass(frozen=True)
class Column:
    """`sql`: its type in the upstream, in small letters, such as `bigint unsigned`."""

    name: str
    sql: str

    @property
    def base(self) -> str:
        """The type's name alone: `decimal(10,2) unsigned` is `decimal`."""
        return re.split(r"[( ]", self.sql)[0]

    @property
    def is_unsigned(self) -> bool:
        return "unsigned" in self.sql

    @property
    def digits(self) -> tuple[int, int]:
        """Precision and scale of a DECIMAL."""
        found = re.search(r"\((\d+)(?:,(\d+))?\)", self.sql)
        assert found is not None, self.sql
        return int(found[1]), int(found[2] or 0)

    def typed(self, kinds: Mapping[str, str], default: str) -> str:
        """A tool's type for it, by the type's name, or by the whole of it; {0} and {1} are a DECIMAL's digits."""
        found = kinds.get(self.sql) or kinds.get(self.base) or default
        return found.format(*self.digits) if "{" in found else found


@dataclass(frozen=True)
class Part:
    """What a reader is pointed at: the folder of a table's version, or of a partition in it, or an Iceberg table's
    metadata file. `columns`: that rows have, in order.
    """

    folder: Path
    columns: tuple[Column, ...]

    def files(self, pattern: str, but_empty: bool = False) -> list[str]:
        """For readers that take no pattern. `but_empty`: those of zero bytes are left out."""
        return [str(path) for path in sorted(self.folder.glob(pattern)) if not but_empty or path.stat().st_size]

    @property
    def fields(self) -> list[str]:
        """The fields of a line of csv."""
        return [*META, *(column.name for column in self.columns)]


Key = tuple[str, str]
"""A table, and which part of it."""

Row = Sequence[Any]
"""A change: op (I, U, D), commit ts, and the cells of `Part.columns`. Of a state (Iceberg upsert): the cells alone."""


@dataclass(frozen=True)
class Reading:
    """One way to read a format. `read` gets a part and `options`, of which `typed` says whether it names the columns'
    types. `how` says what else a user has to do.

    `of`: the format; `pattern`: by which it takes rows' files and no others, "" for one that is given the folder.
    """

    of: str
    read: Callable[..., Iterable[Row]]
    options: Mapping[str, Any] = field(default_factory=dict)
    how: str = ""
    pattern: str = ""

    @property
    def setting(self) -> str:
        """As the page has it."""
        shown = ", ".join(f"{name}={value!r}" for name, value in self.options.items() if name != "typed")
        typed = "the columns' types" if self.options.get("typed") else ""
        return "; ".join(part for part in (f"`{shown}`" if shown else "", typed, self.how) if part)


@dataclass(frozen=True)
class Answer:
    """The answer of one reading. `rows`: of each part; `error`: why there are none."""

    of: str
    setting: str
    pattern: str
    rows: dict[Key, list[Row]]
    errors: dict[Key, str]


def plain(value: Any) -> Any:
    """Without the types of numpy and pandas, which another environment lacks."""
    if hasattr(value, "to_pydatetime"):
        return value.to_pydatetime(warn=False)
    if hasattr(value, "to_pytimedelta"):
        return value.to_pytimedelta()
    return value.item() if hasattr(value, "item") else value


def answer(reading: Reading, parts: Mapping[Key, Part]) -> Answer:
    rows: dict[Key, list[Row]] = {}
    errors: dict[Key, str] = {}
    for name, part in parts.items():
        try:
            rows[name] = [tuple(map(plain, row)) for row in reading.read(part, **reading.options)]
        except Exception as error:  # noqa: BLE001 - whatever a reader raises is its answer
            traceback.print_exc()
            errors[name] = f"{type(error).__name__}: {error}"
    return Answer(reading.of, reading.setting, reading.pattern, rows, errors)


def main(module_name: str, task: str, into: str) -> None:
    """Reads the parts that the file `task` has, as the module of `readers` does; what it answers goes to a file."""
    sys.path.insert(0, str(Path(__file__).parent / "readers"))
    module = importlib.import_module(module_name)
    parts: dict[str, dict[Key, Part]] = pickle.loads(Path(task).read_bytes())
    readings = [*module.READINGS, *(replace(r, of=ZEROS_AS_TEXT) for r in module.READINGS if r.of == ZEROS)]
    answers = [answer(reading, parts[reading.of]) for reading in readings if reading.of in parts]
    Path(into).write_bytes(pickle.dumps((module.version(), answers)))
