"""The order in which a consumer reads a sink, and the hard rules for paths (docs/sink-files.md, Reading). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from changefeed.reading.layout.files import OWNER, DirectoryFiles, SinkFiles

_SCHEMA = re.compile(r"(?P<stem>[^/]+(?:/[^/]+)?)/meta/schema_(?P<version>\d+)_\d{10}\.json")
_DIRECTORY = re.compile(r"(?P<stem>[^/]+/[^/]+)/(?P<version>\d+)(?P<rest>(?:/[^/]+)*)")
_SCHEMA_BY_ID = re.compile(r"(?P<stem>\d+)/meta/schema_(?P<version>\d+)_\d{10}\.json")
_DIRECTORY_BY_ID = re.compile(r"(?P<stem>\d+)/(?P<version>\d+)(?P<rest>(?:/[^/]+)*)")
_INDEX = "/meta/CDC.index"


@dataclass(frozen=True)
class DataDirectory:
    """A data directory: `directory_stem` is schema/table, `partition` 0 for a table without any.

    By id: `directory_stem` is the id of the table or partition, and `partition` 0.
    """

    directory_stem: str
    partition: int
    directory: DirectoryFiles


@dataclass
class WalkedVersion:
    """What stands under one table version, of all tables: schema files by path, then data."""

    ts: int
    schema_files: list[str] = field(default_factory=list)
    data: list[DataDirectory] = field(default_factory=list)


def walk(sink: SinkFiles, has_dates: bool, by_id: bool = False) -> Iterator[WalkedVersion]:
    """Versions up to the checkpoint, in ascending order; of each, data by partition and date.

    `has_dates`: whether the last level of a data directory is a date. `by_id`: folders have ids for names.
    """
    schema_file, data = (_SCHEMA_BY_ID, _DIRECTORY_BY_ID) if by_id else (_SCHEMA, _DIRECTORY)
    versions: dict[int, WalkedVersion] = {}
    for path in sorted(sink.paths):
        if match := schema_file.fullmatch(path):
            ts = int(match["version"])
            versions.setdefault(ts, WalkedVersion(ts)).schema_files.append(path)
    for path, directory in sink.directories.items():
        if match := data.fullmatch(path):
            ts, levels = int(match["version"]), match["rest"].split("/")[1:]
            above_date = [] if by_id else levels[: len(levels) - has_dates]
            partition = next((int(level) for level in above_date if level.isdecimal()), 0)
            found = DataDirectory(match["stem"], partition, directory)
            versions.setdefault(ts, WalkedVersion(ts)).data.append(found)
    for ts in sorted(ts for ts in versions if ts <= sink.checkpoint_ts):
        versions[ts].data.sort(key=lambda data: (data.partition, data.directory.path))
        yield versions[ts]


def misplaced(sink: SinkFiles, by_id: bool) -> list[str]:
    """What is no schema file of a table or a database, and stands where those do."""
    form, stem = (_SCHEMA_BY_ID, "<table id>") if by_id else (_SCHEMA, "<schema>[/<table>]")
    meta = [path for path in sink.paths if "/meta/" in path and not path.endswith(_INDEX)]
    wrong = [path for path in meta if not form.fullmatch(path)]
    return [
        f"{path} is not named like a schema file: {stem}/meta/schema_<version>_<10 digits>.json is expected."
        for path in sorted(wrong)
        if path != OWNER
    ]


def without_schema_file(version: WalkedVersion) -> list[str]:
    """Data that a reader finds no schema file of exactly its version for."""
    has = {path.partition("/meta/")[0] for path in version.schema_files}
    return [
        f"{data.directory.path} has no schema file {data.directory_stem}/meta/schema_{version.ts}_….json."
        for data in version.data
        if data.directory_stem not in has and data.directory.published
    ]
