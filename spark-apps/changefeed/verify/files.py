"""Reads what a consumer would read: metadata, indexes, and the csv files that they publish."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.csv

from changefeed.errors import NotFound
from changefeed.objectstore import ObjectStore
from changefeed.verify.result import Break, NotVerifiable

METADATA = "metadata"
OWNER = ".changefeed-owner.json"
_DATA = re.compile(r"(?P<directory>.+)/CDC(?P<index>\d+)\.csv$")
_INDEX_NAME = "meta/CDC.index"


@dataclass(frozen=True)
class Format:
    """How the csv was written: the members of the effective spec's sink.storage that decide it."""

    delimiter: str
    quote: str
    null: str
    header: bool

    @classmethod
    def of(cls, storage: Mapping[str, Any]) -> Format:
        """Raises NotVerifiable for what this reader can't read back without doubt."""
        csv = storage["csv"]
        if not csv["includeCommitTs"]:
            raise NotVerifiable(
                "The files carry no commit ts, so their order and completeness can't be checked.",
                "Set spec.sink.storage.csv.includeCommitTs: true for changefeeds that are to be verified.",
            )
        odd = [
            name
            for name, strange in (
                ("csv.delimiter", len(csv["delimiter"]) != 1),
                ("csv.quote", csv["quote"] == ""),
                ("csv.outputOldValue", csv["outputOldValue"]),
                ("terminator", storage["terminator"] not in ("\r\n", "\n")),
            )
            if strange
        ]
        if odd:
            raise NotVerifiable(f"Files written with this spec.sink.storage.{odd[0]} can't be read back by verify yet.")
        return cls(csv["delimiter"], csv["quote"], csv["null"], csv["outputFieldHeader"])


@dataclass
class Directory:
    """One data directory: its files by index, and the last index that is published."""

    path: str
    files: dict[int, str] = field(default_factory=dict)
    published: int = 0


def checkpoint(store: ObjectStore) -> int:
    """The published checkpoint ts. Raises NotVerifiable when nothing is published yet."""
    try:
        body = store.get(METADATA).body
    except NotFound:
        raise NotVerifiable(
            f"{store.uri} has no `metadata`: nothing is published there yet.",
            "Check the URI, or wait for the changefeed's first checkpoint.",
        ) from None
    return int(json.loads(body)["checkpoint-ts"])


def owner(store: ObjectStore) -> tuple[str, str]:
    """(uid, state URI) of the changefeed that owns the sink. Raises NotVerifiable when nobody does."""
    try:
        claim = json.loads(store.get(OWNER).body)
    except NotFound:
        raise NotVerifiable(f"{store.uri} belongs to no changefeed: it has no {OWNER}.", "Check the URI.") from None
    return claim["uid"], claim["stateUri"]


def directories(store: ObjectStore) -> dict[str, Directory]:
    """Every data directory by path. A hole below the published index is a Break."""
    found: dict[str, Directory] = {}
    for path, _ in store.list():
        if match := _DATA.match(path):
            directory = found.setdefault(match["directory"], Directory(match["directory"]))
            directory.files[int(match["index"])] = path
    for path, _ in store.list():
        if path.endswith("/" + _INDEX_NAME):
            where = path.removesuffix("/" + _INDEX_NAME)
            directory = found.setdefault(where, Directory(where))
            name = store.get(path).body.decode().strip()
            match = _DATA.match(f"{where}/{name}")
            if match is None:
                raise Break(f"{path} names {name!r}, which is not a data file.")
            directory.published = int(match["index"])
    return found


def missing_files(directory: Directory) -> list[str]:
    """Names that the index publishes and that do not exist."""
    width = max((len(path.rsplit("/CDC", 1)[1]) - len(".csv") for path in directory.files.values()), default=20)
    holes = [index for index in range(1, directory.published + 1) if index not in directory.files]
    return [f"{directory.path}/CDC{index:0{width}d}.csv" for index in holes]


def rows(store: ObjectStore, directory: Directory, columns: list[str], fmt: Format) -> Iterator[pl.DataFrame]:
    """The published rows, file after file in order.

    Columns: op, table, schema, commit_ts (u64), then `columns` as text (null = NULL), file, line (from 1).
    A file that does not parse is a Break that names it.
    """
    names = ["op", "table", "schema", "commit_ts", *[f"c{i}" for i in range(len(columns))]]
    for index in range(1, directory.published + 1):
        path = directory.files.get(index)
        if path is not None:
            yield _file(store.get(path).body, path, names, fmt)


def _file(body: bytes, path: str, names: list[str], fmt: Format) -> pl.DataFrame:
    shape = {name: pa.string() for name in names} | {"commit_ts": pa.uint64()}
    if not body:
        parsed = pa.table({name: pa.array([], kind) for name, kind in shape.items()})
    else:
        try:
            parsed = pyarrow.csv.read_csv(
                pa.BufferReader(body),
                pyarrow.csv.ReadOptions(
                    column_names=names, skip_rows=1 if fmt.header else 0, block_size=max(len(body) + 1, 1 << 20)
                ),
                pyarrow.csv.ParseOptions(delimiter=fmt.delimiter, quote_char=fmt.quote, newlines_in_values=True),
                pyarrow.csv.ConvertOptions(
                    column_types=shape,
                    null_values=[fmt.null],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid as error:
            raise Break(f"{path} can't be decoded: {error}") from None
    frame = pl.from_arrow(parsed)
    assert isinstance(frame, pl.DataFrame)
    return frame.with_columns(pl.lit(path).alias("file")).with_row_index("line", offset=1)
