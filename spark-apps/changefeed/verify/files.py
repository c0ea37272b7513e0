"""Reads what a consumer would read: metadata, schema files, indexes, and the csv files that they publish.

It must never take a file for right because it looks so to our writer: names and formats are spelled out here once more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.csv

from changefeed.errors import NotFound
from changefeed.objectstore import ObjectStore
from changefeed.verify.result import Break, NotVerifiable, Result

METADATA = "metadata"
OWNER = ".changefeed-owner.json"
_INDEX = "/meta/CDC.index"
_NAME = re.compile(r"CDC(\d+)\.csv")
_DATA = re.compile(r"(?P<directory>.+)/CDC(?P<index>\d+)\.csv", re.DOTALL)
_SCHEMA = re.compile(r"(?P<table>[^/]+/[^/]+)/meta/schema_(?P<version>\d+)_\d{10}\.json")
_HEADER = ["ticdc-meta$operation", "ticdc-meta$table", "ticdc-meta$schema", "ticdc-meta$commit-ts"]


@dataclass(frozen=True)
class Format:
    """How the csv was written: the members of the effective spec's sink.storage that decide it."""

    delimiter: str
    quote: str
    null: str
    terminator: str
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
        for name, odd in (
            ("delimiter", len(csv["delimiter"].encode()) != 1),
            ("quote", len(csv["quote"].encode()) != 1),
            ("outputOldValue", csv["outputOldValue"]),
        ):
            if odd:
                raise NotVerifiable(
                    f"Files written with spec.sink.storage.csv.{name}: {csv[name]!r} can't be read back by verify yet.",
                    "Use the option's default for changefeeds that are to be verified.",
                )
        return cls(csv["delimiter"], csv["quote"], csv["null"], storage["terminator"], csv["outputFieldHeader"])


@dataclass
class Directory:
    """One data directory: its files by index, and the last index that is published (0: none)."""

    path: str
    published: int = 0
    digits: int = 0  # of the index in a file's name; 0: not known
    files: dict[int, str] = field(default_factory=dict)

    @property
    def readable(self) -> list[str]:
        """What a consumer reads, in its order."""
        return [self.files[index] for index in sorted(self.files) if index <= self.published]

    @property
    def index_file(self) -> str:
        return self.path + _INDEX

    @property
    def first_hole(self) -> str | None:
        """The first file that the index publishes and that does not exist."""
        index = next(n for n in range(1, len(self.files) + 2) if n not in self.files)
        return f"{self.path}/CDC{index:0{self.digits}d}.csv" if index <= self.published else None


@dataclass
class Sink:
    """All that is published: data directories by path, schema files by (schema/table, version)."""

    directories: dict[str, Directory] = field(default_factory=dict)
    schemas: dict[tuple[str, int], list[str]] = field(default_factory=dict)


def checkpoint(store: ObjectStore) -> int:
    """The published checkpoint ts. Raises NotVerifiable when there is none."""
    try:
        body = store.get(METADATA).body
    except NotFound:
        raise NotVerifiable(
            f"{store.uri} has no `metadata`: nothing is published there yet.",
            "Check the URI, or wait for the changefeed's first checkpoint.",
        ) from None
    match _json(body):
        case {"checkpoint-ts": int(ts)} if not isinstance(ts, bool) and ts > 0:
            return ts
    raise NotVerifiable(
        f"`metadata` in {store.uri} holds no checkpoint: {body[:80]!r}.",
        'The changefeed writes {"checkpoint-ts": <number>} there: find out who wrote this.',
    )


def owner(store: ObjectStore) -> tuple[str, str]:
    """(uid, state URI) of the changefeed that owns the sink. Raises NotVerifiable when nobody does."""
    try:
        body = store.get(OWNER).body
    except NotFound:
        raise NotVerifiable(f"{store.uri} belongs to no changefeed: it has no {OWNER}.", "Check the URI.") from None
    match _json(body):
        case {"uid": str(uid), "stateUri": str(state_uri)}:
            return uid, state_uri
    raise NotVerifiable(f"{OWNER} in {store.uri} is no claim: {body[:80]!r}.", "Find out who wrote it.")


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def read_layout(store: ObjectStore, result: Result) -> Sink:
    """What stands in the sink. Files that no consumer could place are problems.

    Indexes are read first: the files that an index names stood there before it did.
    """
    sink = Sink()
    for path, _ in store.list():
        if path.endswith(_INDEX):
            directory = Directory(path.removesuffix(_INDEX))
            sink.directories[directory.path] = directory
            name = store.get(path).body.decode(errors="replace").removesuffix("\n")
            if match := _NAME.fullmatch(name):
                directory.published, directory.digits = int(match[1]), len(match[1])
            else:
                result.problem(f"{path} names {name!r}, which is no data file.")
    for path, _ in store.list():
        if match := _DATA.fullmatch(path):
            directory = sink.directories.setdefault(match["directory"], Directory(match["directory"]))
            index = int(match["index"])
            if not index or directory.digits not in (0, len(match["index"])):
                result.problem(f"{path} is not named as the files of its directory are.")
            else:
                directory.files[index] = path
        elif match := _SCHEMA.fullmatch(path):
            sink.schemas.setdefault((match["table"], int(match["version"])), []).append(path)
        elif path.endswith((".csv", ".index")) and not path.endswith(_INDEX):
            result.problem(f"{path} is no file of a changefeed.")
    return sink


def schema_columns(store: ObjectStore, path: str) -> list[str] | None:
    """The names of the columns in a schema file; None when it can't be read."""
    match _json(store.get(path).body):
        case {"TableColumns": [*columns]}:
            return [str(column.get("ColumnName")) for column in columns if isinstance(column, dict)]
    return None


def read_rows(
    store: ObjectStore, directories: Sequence[Directory], columns: Sequence[str], fmt: Format, result: Result
) -> pl.DataFrame:
    """The published rows of one table, in a consumer's order.

    Columns: place (u32, from 0), file, line (u32, from 1, without the header), op, table, schema, commit_ts (u64), and
    c0..cn for `columns`, as text (null = NULL). A file that can't be decoded is a problem, and gives no rows.
    """
    parts = [_frame(_parse(b"", columns, fmt), "")]
    for directory in directories:
        for path in directory.readable:
            try:
                parts.append(_frame(_checked(store.get(path).body, path, columns, fmt), path))
            except Break as problem:
                result.problem(problem.message)
    return pl.concat(parts).with_row_index("place")


def _checked(body: bytes, path: str, columns: Sequence[str], fmt: Format) -> pa.Table:
    """The rows of one file. Raises Break that names it when it is not what the changefeed writes."""
    terminator = fmt.terminator.encode()
    if fmt.header:
        header = fmt.delimiter.join([*_HEADER, *columns]).encode() + terminator
        if not body.startswith(header):
            raise Break(f"{path} does not begin with the header of its table: {body[: len(header)]!r}.")
        body = body[len(header) :]
    if body and not body.endswith(terminator):
        raise Break(f"{path} is cut off: it ends with {body[-20:]!r}, not with a whole line.")
    try:
        return _parse(body, columns, fmt)
    except pa.ArrowInvalid as error:
        raise Break(f"{path} can't be decoded: {str(error).strip().rstrip('.')}.") from None


def _parse(body: bytes, columns: Sequence[str], fmt: Format) -> pa.Table:
    names = ["op", "table", "schema", "commit_ts", *[f"c{i}" for i in range(len(columns))]]
    shape = {name: pa.string() for name in names} | {"commit_ts": pa.uint64()}
    if not body:
        return pa.table({name: pa.array([], kind) for name, kind in shape.items()})
    return pyarrow.csv.read_csv(
        pa.BufferReader(body),
        pyarrow.csv.ReadOptions(column_names=names, block_size=max(len(body) + 1, 1 << 20)),
        pyarrow.csv.ParseOptions(
            delimiter=fmt.delimiter, quote_char=fmt.quote, newlines_in_values=True, ignore_empty_lines=False
        ),
        pyarrow.csv.ConvertOptions(
            column_types=shape, null_values=[fmt.null], strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    )


def _frame(parsed: pa.Table, path: str) -> pl.DataFrame:
    frame = pl.from_arrow(parsed)
    assert isinstance(frame, pl.DataFrame)
    return frame.with_row_index("line", offset=1).with_columns(pl.lit(path).alias("file"))
