"""Where things are below a sink's root: TiCDC's paths (docs/sink-files.md). Pure functions, no I/O.

A name must never depend on a clock: dates come from the plan's PD time, indexes from the log (rule 15). A driver with a
slow clock that takes over stays at the newest date. So a directory that was left is never entered again, and one
counter, of the newest directory, is enough.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from changefeed.errors import NeedsHuman
from changefeed.schema.table_info import TableInfo
from changefeed.sink.contract import Outputs

METADATA = "metadata"
CLAIM = ".changefeed-owner.json"

_DATE_FORMATS = {"none": "", "year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d"}
_EXTENSIONS = {"csv": ".csv", "canal-json": ".json", "parquet": ".parquet"}
_COMPRESSED = {"none": "", "gzip": ".gz", "zstd": ".zst"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SCHEMA_FILE = re.compile(
    r"(?:(?P<schema>[^/]+)/)?(?:(?P<table>[^/]+)/)?meta/schema_(?P<version>\d+)_(?P<sum>\d+)\.json"
)
_CHECKSUM_DIGITS = 10
_INDEX_FILE = re.compile(r"(?P<directory>.+)/meta/CDC(?:_[^/]+)?\.index")
_DATES = {"none": "", "year": r"/\d{4}", "month": r"/\d{4}-\d\d", "day": r"/\d{4}-\d\d-\d\d"}
_DIRECTORIES = {
    separator: re.compile(
        rf"(?:(?P<table>[^/]+/[^/]+)/(?P<version>\d+)(?:/(?P<partition>\d+))?|\d+/(?P<of_id>\d+))(?P<date>{date})"
    )
    for separator, date in _DATES.items()
}
_DATA_FILE = re.compile(r"CDC(?:_(?P<dispatcher>[^/]+)_)?(?P<index>\d+)\.[a-z]+(?:\.(?:gz|zst))?")


@dataclass(frozen=True)
class SchemaPath:
    schema: str
    table: str  # "": the file is the database's, or `schema` is a table's id
    table_version: int
    checksum: int


@dataclass(frozen=True)
class Directory:
    """A directory of data files."""

    path: str
    table: str  # <schema>/<table>; "": it is a table's id
    version: int
    has_partition: bool
    date: str  # "": the layout has none


@dataclass(frozen=True)
class Layout(Outputs):
    """Names of a changefeed's data files. An output has the file's `path`, its `directory`, the `index` there from 1,
    and the directory's `date`, "" where it has none.
    """

    date_separator: str
    index_width: int
    extension: str  # with its dot
    by_id: bool = False  # a table's folder is its physical id, not its name

    @classmethod
    def of(cls, storage: Mapping[str, Any]) -> Layout:
        """`storage`: `sink.storage` of the effective spec."""
        extension = _EXTENSIONS[storage["protocol"]] + _COMPRESSED[storage.get("compression", "none")]
        by_id = storage.get("useTableIdAsPath", False)
        return cls(storage["dateSeparator"], storage["fileIndexWidth"], extension, by_id)

    def date(self, pd_ms: int, last: str = "") -> str:
        """See `date_of`."""
        return date_of(self.date_separator, pd_ms, last)

    def series(self, table: TableInfo, dispatcher: int, table_version: int) -> str:
        """The directory but for its date, see `directory_stem`. By id: each partition has a folder as a table has."""
        if self.by_id:
            return version_directory(str(dispatcher), table_version)
        return directory_stem(table, dispatcher, table_version)

    def next(self, series: str, pd_ms: int, last: Mapping[str, Any]) -> dict[str, Any]:
        date = self.date(pd_ms, last.get("date", ""))
        directory = f"{series}/{date}" if date else series
        index = last["index"] + 1 if last.get("directory") == directory else 1
        return {"path": self.data_file(directory, index), "directory": directory, "index": index, "date": date}

    def data_file(self, directory: str, index: int) -> str:
        return data_file(directory, index, self.index_width, self.extension)


def date_of(separator: str, pd_ms: int, last: str = "") -> str:
    """The date level of a directory: PD's time in UTC, never below the last one that was used; "" for `none`."""
    return max(last, (_EPOCH + timedelta(milliseconds=pd_ms)).strftime(_DATE_FORMATS[separator]))


def table_path(table: TableInfo) -> str:
    """`<schema>/<table>`, names as they are. Raises NeedsHuman for a name that can't be a folder."""
    for name in (table.schema_name, table.name):
        if "/" in name or "\0" in name or name in ("", ".", ".."):
            raise NeedsHuman(
                f"Table {table.full_name} can't have a folder: {name!r} is not a valid folder name.",
                "Exclude the table by spec.filter.rules, or rename it.",
            )
    return f"{table.schema_name}/{table.name}"


def directory_stem(table: TableInfo, physical_id: int, table_version: int) -> str:
    """The directory, but for its date, of the rows that stand under `physical_id` in TiKV.

    Raises NeedsHuman for a name that can't be a folder.
    """
    return version_directory(table_path(table), table_version, physical_id if table.partition_ids else None)


def version_directory(path: str, table_version: int, partition_id: int | None = None) -> str:
    """The directory of a table version but for its date. `path`: `<schema>/<table>`, or a table id."""
    return f"{path}/{table_version}" if partition_id is None else f"{path}/{table_version}/{partition_id}"


def data_file(directory: str, index: int, width: int, extension: str, dispatcher_id: str = "") -> str:
    """`index` from 1; `dispatcher_id` only where several dispatchers share a directory."""
    return f"{directory}/{_stem(dispatcher_id)}{'_' if dispatcher_id else ''}{index:0{width}}{extension}"


def index_file(directory: str, dispatcher_id: str = "") -> str:
    return f"{directory}/meta/{_stem(dispatcher_id)}.index"


def schema_file(path: str, table_version: int, checksum: int) -> str:
    """`path`: `<schema>/<table>`, a table id, or `<schema>` for a database's."""
    return f"{path}/meta/schema_{table_version}_{checksum:0{_CHECKSUM_DIGITS}}.json"


def _stem(dispatcher_id: str) -> str:
    return f"CDC_{dispatcher_id}" if dispatcher_id else "CDC"


def index_of(name: str) -> int | None:
    """The index in a data file's name; None for any other name."""
    found = _DATA_FILE.fullmatch(name)
    return int(found["index"]) if found else None


def parse_directory(path: str, date_separator: str) -> Directory | None:
    """What a directory of data files is of; None where TiCDC would not put any with this separator."""
    found = _DIRECTORIES[date_separator].fullmatch(path)
    if found is None:
        return None
    version = int(found["version"] or found["of_id"])
    return Directory(path, found["table"] or "", version, found["partition"] is not None, found["date"].lstrip("/"))


def directory_of_index(path: str) -> str | None:
    """Where the index files of this name belong, whatever that is; None for any other name."""
    found = _INDEX_FILE.fullmatch(path)
    return found["directory"] if found else None


def parse_index_path(path: str, date_separator: str | None = None) -> str | None:
    """The directory whose index file this is; None for a path that TiCDC refuses. Without a separator, any will do."""
    directory = directory_of_index(path)
    separators = _DATES if date_separator is None else (date_separator,)
    return directory if directory and any(parse_directory(directory, each) for each in separators) else None


def parse_schema_path(path: str) -> SchemaPath | None:
    found = _SCHEMA_FILE.fullmatch(path)
    if found is None:
        return None
    return SchemaPath(found["schema"] or "", found["table"] or "", int(found["version"]), int(found["sum"]))


def is_schema_file(path: str) -> bool:
    """Whether TiCDC's readers take the path for a schema file."""
    found = _SCHEMA_FILE.fullmatch(path)
    return found is not None and len(found["sum"]) == _CHECKSUM_DIGITS


def is_published(path: str) -> bool:
    """Whether the path is one that TiCDC, or we, write below a sink's root."""
    name = path.rpartition("/")[2]
    return (
        path == METADATA or is_schema_file(path) or directory_of_index(path) is not None or index_of(name) is not None
    )
