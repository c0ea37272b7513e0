"""Tables of every type with a history, what changefeeds write of them in each format, and what they are at the end."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from changefeed_devcluster.ddl import columns as columns_ddl
from changefeed_devcluster.ddl import partitions
from changefeed_devcluster.ddl.running import last
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from consumers_reading import (
    APPEND,
    CSV,
    CSV_FOLDER,
    CSV_LF,
    JSON,
    PARQUET,
    PARQUET_FOLDER,
    UNQUOTED,
    UPSERT,
    ZEROS,
    ZEROS_AS_TEXT,
    Column,
    Part,
)
from integration_iceberg import catalog_of
from integration_iceberg import sink as iceberg_sink
from integration_inprocess import Run, World, new_world
from integration_types import KINDS, Kind

TEXTS = (
    "plain", "", "\\N", "NULL", "null", "NA", "N/A", "nan", "None", "true", "FALSE", "007", "1e5", "0x1F", "-", "[1]",
    "12:00:00", "2024-02-29", 'say "hi"', '"', '""', "it's", "back\\slash", "ends with backslash\\", "\\n", "a,b", ",",
    "a\tb", "a;b|c", "two\nlines", "two\r\nlines", "two\rlines", "line end\n", "line end\r\n", " blank", "blank ", "  ",
    "\ufeffmark", "a\0b", "ä€😀\u2028", "<b>&#x1;", "{}", "#", "# no comment",
)  # fmt: skip
TYPES = {f"c{number}": kind for number, kind in enumerate(KINDS)}
ID = {"id": "bigint"}
#: The types of columns, by table and name, whether the table still has them or not.
SQL = {
    "types": ID | {name: kind.sql for name, kind in TYPES.items()},
    "texts": ID | {"t": "varchar(64)", "n": "bigint"},
    "zeros": ID | {"day": "date", "clock": "datetime", "moment": "timestamp"},
    "changed": ID | {"a": "varchar(20)", "title": "varchar(20)", "b": "int", "c": "decimal(10,2)", "d": "datetime"},
    "emptied": ID | {"t": "varchar(20)"},
    "keyed": {"k": "varchar(20)", "n": "bigint unsigned", "v": "int"},
    "computed": ID | {"a": "int", "twice": "int", "_V$_lower_0": "varchar(20)", "t": "varchar(20)"},
    "parts": ID | {"t": "varchar(20)"},
    "ignored": ID | {"t": "varchar(20)"},
}
KEYS = {"keyed": ("k", "n")}
COMPUTED = {"twice": "`a` * 2", "_V$_lower_0": "lower(`t`)"}
#: By table: what its columns were called before.
RENAMED = {"changed": {"a": "title"}}
GONE = (3, 4, 11)  # CREATE, DROP and TRUNCATE TABLE in a schema file: rows up to its version are gone

STORAGE: dict[str, dict[str, Any]] = {
    CSV: {"protocol": "csv", "csv": {"includeCommitTs": True}},
    JSON: {"protocol": "canal-json", "canalJson": {"enableTidbExtension": True}},
    PARQUET: {"protocol": "parquet"},
    CSV_LF: {"protocol": "csv", "csv": {"includeCommitTs": True}, "terminator": "\n"},
    UNQUOTED: {"protocol": "csv", "csv": {"includeCommitTs": True, "quote": ""}},
}
ICEBERG = {APPEND: "append", UPSERT: "upsert"}
#: What a format is not given: it would stop there, or has rows that its readers can't tell from those that are gone.
LEFT_OUT = {PARQUET: ("zeros",), APPEND: ("zeros", "parts", "ignored"), UPSERT: ("zeros", "parts", "ignored")}

Values = dict[tuple[Any, ...], dict[str, Any]]  # by key


@dataclass
class Lake:
    """`expected`: the upstream's rows by table. `parts`: by format, what a reader is pointed at, by table and part
    of a table. `emptied`: by format and table, up to which ts its rows are gone.
    """

    expected: dict[str, Values]
    parts: dict[str, dict[tuple[str, str], Part]] = field(default_factory=dict)
    emptied: dict[str, dict[str, int]] = field(default_factory=dict)


class History:
    """Tables of the database `shop`, as they become."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tidb = world.tidb

    def create(self, name: str, *columns: str, **more: Any) -> NamedTable:
        key = KEYS.get(name, ("id",))
        made = [
            NewColumn(column, SQL[name][column], nullable=column not in key, generated=COMPUTED.get(column, ""))
            for column in columns or SQL[name]
        ]
        pk: Any = key[0] if len(key) == 1 else key
        return self.tidb.create_table("shop", name, made, pk=pk, **more)

    def insert(self, table: NamedTable, *rows: dict[str, Any]) -> None:
        """In a transaction each."""
        for row in rows:
            with self.tidb.begin() as txn:
                txn.insert(table, row)

    def tell(self) -> dict[str, NamedTable]:
        """The tables as they are at the end."""
        told = (self.types, self.texts, self.zeros, self.changed, self.emptied, self.keyed, self.computed, self.parts)
        told += (self.ignored,)
        return {tell.__name__: tell() for tell in told}

    def types(self) -> NamedTable:
        table = self.create("types")
        given = {
            name: [cell.value for cell in kind.cells if not is_zero(kind, cell.value)] for name, kind in TYPES.items()
        }
        rows = max(map(len, given.values())) + 1  # the last one is NULL all over
        for number in range(rows):
            cells = {name: (values[number] if number < len(values) else None) for name, values in given.items()}
            self.insert(table, {"id": number, **cells})
        return table

    def texts(self) -> NamedTable:
        table = self.create("texts")
        self.insert(table, *({"id": number, "t": text, "n": 1000 + number} for number, text in enumerate(TEXTS)))
        self.insert(table, {"id": len(TEXTS), "t": None, "n": None})
        return table

    def zeros(self) -> NamedTable:
        table = self.create("zeros")
        zero = {"day": "0000-00-00", "clock": "0000-00-00 00:00:00", "moment": "0000-00-00 00:00:00"}
        part = {"day": "2024-02-00", "clock": "2024-00-07 01:02:03", "moment": None}
        self.insert(table, {"id": 1, **zero}, {"id": 2, **part})
        return table

    def changed(self) -> NamedTable:
        """Columns that come, go and are renamed; rows before, between and behind."""
        tidb, table = self.tidb, self.create("changed", "id", "a", "b")
        self.insert(table, *({"id": number, "a": f"a{number}", "b": number} for number in range(1, 9)))
        table = tidb.add_column(table, NewColumn("c", SQL["changed"]["c"], nullable=True))
        self.insert(table, {"id": 10, "a": None, "b": 10, "c": "10.50"})
        with tidb.begin() as txn:
            txn.update(table, {"id": 2, "c": "-2.25"})
            txn.delete(table, 3)
        table = last(
            columns_ddl.modify_column(tidb, table, "a", NewColumn("title", SQL["changed"]["a"], nullable=True))
        )
        self.insert(table, {"id": 20, "title": "twenty", "b": 20, "c": None})
        with tidb.begin() as txn:  # another key for the same row
            txn.delete(table, 4)
            txn.insert(table, {"id": 40, "title": "a4", "b": 4, "c": None})
        table = last(columns_ddl.drop_column(tidb, table, "b"))
        table = tidb.add_column(table, NewColumn("d", SQL["changed"]["d"], nullable=True))
        with tidb.begin() as txn:
            txn.update(table, {"id": 5, "d": datetime(2026, 11, 29, 12, 0, 0)})
            txn.delete(table, 6)
        return table

    def emptied(self) -> NamedTable:
        table = self.create("emptied")
        self.insert(table, *({"id": number, "t": "old"} for number in range(5)))
        table = self.tidb.truncate_table(table)
        self.insert(table, {"id": 1, "t": "new"}, {"id": 7, "t": None})
        return table

    def keyed(self) -> NamedTable:
        table = self.create("keyed")
        keys = [("a", 1), ("A", 1), ("b", 2), ("x,y", 3)]
        self.insert(table, *({"k": k, "n": n, "v": number} for number, (k, n) in enumerate(keys)))
        with self.tidb.begin() as txn:
            txn.delete(table, ("x,y", 3))
            txn.insert(table, {"k": 'x"y', "n": 3, "v": 30})
            txn.update(table, {"k": "A", "n": 1, "v": 31})
        return table

    def computed(self) -> NamedTable:
        """A virtual column, and the hidden one of an index on an expression, before one that rows have."""
        table = self.create("computed")
        self.insert(table, {"id": 1, "a": 20, "t": "One"}, {"id": 2, "a": None, "t": None})
        return table

    def parts(self) -> NamedTable:
        table = self.create("parts", partitions={"p0": 10, "p1": 20, "p2": None})
        self.insert(table, *({"id": number, "t": f"t{number}"} for number in (1, 2, 11, 12, 21)))
        table = partitions.drop_partition(self.tidb, table, "p1")
        self.insert(table, {"id": 13, "t": "p2's now"})
        return table

    def ignored(self) -> NamedTable:
        """Make a table of which nothing is written: a file that is planned for it has zero bytes."""
        table = self.create("ignored")
        self.insert(table, {"id": 1, "t": "one"})
        return table


def is_zero(kind: Kind, value: Any) -> bool:
    """Tell whether a date has a part of 0, for which a text stands."""
    return isinstance(value, str) and kind.sql.startswith(("date", "timestamp"))


@contextmanager
def history(folder: Path) -> Iterator[tuple[World, dict[str, NamedTable]]]:
    with new_world(folder) as world:
        start_ts = world.tidb.now()
        tables = History(world).tell()
        world.start_ts = start_ts
        yield world, tables


async def written(world: World, tables: dict[str, NamedTable], formats: Sequence[str]) -> Lake:
    """What changefeeds have made of the history, up to now; one a format, side by side."""
    target = world.tidb.now()
    lake = Lake({name: rows_at(world, table, target) for name, table in tables.items()} | {"ignored": {}})
    runs = [run_of(world, of, target) for of in formats]
    for outcome in await asyncio.gather(*(run.outcome() for run in runs)):
        assert outcome.state == "finished", outcome
    for of in formats:
        lake.emptied[of], lake.parts[of] = {}, {}
        for name in (name for name in tables if name not in LEFT_OUT.get(of, ())):
            emptied, parts = (iceberg_table if of in ICEBERG else files)(folder_of(world, of), name, tables[name])
            lake.emptied[of][name] = emptied
            lake.parts[of] |= {(name, part): found for part, found in parts.items()}
    for of, name, table in ((CSV, CSV_FOLDER, "keyed"), (PARQUET, PARQUET_FOLDER, "keyed"), (CSV, ZEROS, "zeros")):
        lake.parts[name] = {key: part for key, part in lake.parts[of].items() if key[0] == table}
        lake.emptied[name] = lake.emptied[of]
    as_text = {
        key: replace(part, columns=tuple(Column(c.name, c.sql if c.name == "id" else "text") for c in part.columns))
        for key, part in lake.parts[ZEROS].items()
    }
    lake.parts[ZEROS_AS_TEXT], lake.emptied[ZEROS_AS_TEXT] = as_text, lake.emptied[CSV]
    for of in {CSV, CSV_LF, UNQUOTED} & set(formats):
        lake.parts[of] = {key: part for key, part in lake.parts[of].items() if key[0] != "zeros"}
    return lake


def folder_of(world: World, of: str) -> Path:
    return world.folder / re.sub(r"\W+", "-", of)


def run_of(world: World, of: str, target: int) -> Run:
    folder = folder_of(world, of)
    folder.mkdir()
    storage = {"uri": (folder / "lake").as_uri(), "flushInterval": "100ms", **STORAGE.get(of, {})}
    return world.run(
        filter={
            "rules": ["shop.*", *(f"!shop.{name}" for name in LEFT_OUT.get(of, ()))],
            "eventFilters": [{"matcher": ["shop.ignored"], "ignoreEvent": ["insert"]}],
        },
        state={"uri": (folder / "state").as_uri()},
        sink=iceberg_sink(folder, ICEBERG[of]) if of in ICEBERG else {"storage": storage},
        targetTs=str(target),
    )


def rows_at(world: World, table: NamedTable, ts: int) -> Values:
    key = KEYS.get(table.info.name, ("id",))
    names = [column.name for column in table.info.public if column.is_written]
    rows = world.tidb.snapshot(table, ts).values()
    return {tuple(row[name] for name in key): {name: shown(table, row[name]) for name in names} for row in rows}


def shown(table: NamedTable, value: Any) -> Any:
    """Without digits of a second where the column has none."""
    return value.partition(".")[0] if table.info.name == "zeros" and isinstance(value, str) else value


def files(folder: Path, name: str, table: NamedTable) -> tuple[int, dict[str, Part]]:
    """Up to which ts rows are gone, and the parts, as a reader finds them by docs/reading-files.md."""
    folder = folder / "lake" / "shop" / name
    schemas = [json.loads(path.read_text()) for path in sorted(folder.glob("meta/schema_*.json"))]
    emptied = max((each["TableVersion"] for each in schemas if each["Type"] in GONE), default=0)
    parts: dict[str, Part] = {}
    for each in sorted(schemas, key=lambda each: each["TableVersion"]):
        found = folder / str(each["TableVersion"])
        names = [c["ColumnName"] for c in each["TableColumns"] if c.get("ColumnVirtual") != "true"]
        columns = tuple(Column(column, SQL[name][column]) for column in names)
        if each["TableVersion"] < emptied or not found.exists():
            continue
        folders = [found] if not table.info.partitions else [found / str(id_) for id_ in table.physical_ids]
        parts |= {str(part.relative_to(folder)): Part(part, columns) for part in folders if part.exists()}
    return emptied, parts


def iceberg_table(folder: Path, name: str, table: NamedTable) -> tuple[int, dict[str, Part]]:
    found = catalog_of(folder).load_table(("shop", name))
    columns = tuple(
        Column(each.name, SQL[name][each.name])
        for each in found.schema().fields
        if not each.name.startswith("_op") and each.name != "_commit_ts"
    )
    emptied = int(found.properties.get("changefeed.truncated-ts", 0))
    return emptied, {"": Part(Path(found.metadata_location.removeprefix("file://")), columns)}
