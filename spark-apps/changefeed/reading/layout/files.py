"""Reads what a consumer would read: metadata, indexes, and which data and schema files exist.

It must never accept a file just because our writer would: names and formats are implemented separately here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from changefeed.errors import NotFound
from changefeed.objectstore import ObjectStore
from changefeed.reading.failures import NotVerifiable

METADATA = "metadata"
OWNER = ".changefeed-owner.json"
_INDEX = "/meta/CDC.index"
_EXTENSION = r"(?:csv|json)(?:\.gz|\.zst)?|parquet"
_NAME = re.compile(rf"CDC(\d+)\.({_EXTENSION})")
_DATA = re.compile(rf"(?P<directory>.+)/CDC(?P<index>\d+)\.(?:{_EXTENSION})", re.DOTALL)
_VERSION = re.compile(r"/meta/schema_(\d+)_\d{10}\.json\Z")
_SCHEMA = re.compile(r"(?P<folder>[^/]+(?:/[^/]+)?)/meta/schema_(?P<version>\d+)_\d{10}\.json")


@dataclass
class DirectoryFiles:
    """One data directory: its files by index, their bytes by path, and the last index that is published (0: none)."""

    path: str
    published: int = 0
    last: str = ""  # the file that the index names
    files: dict[int, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

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
        if index > self.published:
            return None
        return f"{self.path}/{_NAME.sub(lambda name: _numbered(name, index), self.last)}"

    def is_named_right(self, name: str, index: int) -> bool:
        return index > 0 and (not self.last or _NAME.sub(lambda last: _numbered(last, index), self.last) == name)


def _numbered(name: re.Match[str], index: int) -> str:
    return f"CDC{index:0{len(name[1])}d}.{name[2]}"


@dataclass(frozen=True)
class PublishedFiles:
    """`files`: the published ones by path, with their sizes in bytes; `checkpoint_ts` 0: none is published."""

    checkpoint_ts: int
    files: Mapping[str, int] = field(default_factory=dict)


@dataclass
class SinkFiles:
    """All that stands in a sink: data directories by path, schema files by (folder, version), and all paths."""

    checkpoint_ts: int = 0
    directories: dict[str, DirectoryFiles] = field(default_factory=dict)
    schemas: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # files that no consumer could place

    def listing(self) -> PublishedFiles:
        return PublishedFiles(
            self.checkpoint_ts,
            {path: directory.sizes[path] for directory in self.directories.values() for path in directory.readable},
        )

    def forget_before(self, ts: int) -> int:
        """Take out what stands under table versions below `ts`; gives how many data files that were."""
        old = [path for path in self.directories if (version := version_of(path)) is not None and version < ts]
        count = sum(len(self.directories.pop(path).files) for path in old)
        self.schemas = {key: paths for key, paths in self.schemas.items() if key[1] >= ts}
        self.paths = [path for path in self.paths if (version := version_of(path)) is None or version >= ts]
        return count


def version_of(path: str, level: int = 2) -> int | None:
    """The table version in the path of a data directory, of what is in it, or of a schema file.

    `level`: how many folders below the root a directory's version stands.
    """
    if found := _VERSION.search(path):
        return int(found[1])
    parts = path.split("/")
    return int(parts[level]) if len(parts) > level and parts[level].isdecimal() else None


@dataclass(frozen=True)
class SinkOwner:
    """What a sink's claim says; `generation`: of the folder."""

    uid: str
    state_uri: str
    generation: int = 1


def checkpoint(store: ObjectStore) -> int:
    """The published checkpoint ts. Raises NotVerifiable when there is none."""
    try:
        body = store.get(METADATA).body
    except NotFound:
        raise NotVerifiable(
            f"{store.uri} has no `metadata`: nothing is published there yet.",
            "Check the URI, or wait for the changefeed's first checkpoint.",
        ) from None
    match parse_json(body):
        case {"checkpoint-ts": int(ts)} if not isinstance(ts, bool) and ts > 0:
            return ts
    raise NotVerifiable(
        f"`metadata` in {store.uri} holds no checkpoint: {body[:80]!r}.",
        'The changefeed writes {"checkpoint-ts": <number>} there: find out who wrote this.',
    )


def owner(store: ObjectStore) -> SinkOwner:
    """Whose the sink is. Raises NotVerifiable when it is nobody's."""
    try:
        body = store.get(OWNER).body
    except NotFound:
        raise NotVerifiable(f"{store.uri} belongs to no changefeed: it has no {OWNER}.", "Check the URI.") from None
    match parse_json(body):
        case {"uid": str(uid), "stateUri": str(state_uri), **more}:
            generation = more.get("generation", 1)
            if isinstance(generation, int):
                return SinkOwner(uid, state_uri, generation)
    raise NotVerifiable(f"{OWNER} in {store.uri} is not a claim: {body[:80]!r}.", "Find out who wrote it.")


def parse_json(body: bytes) -> Any:
    """None: it is none."""
    try:
        return json.loads(body)
    except ValueError:
        return None


def read_layout(store: ObjectStore, checkpoint_ts: int) -> SinkFiles:
    """What stands in the sink now; `checkpoint_ts` was published before.

    Indexes are read first: the files that an index names stood there before it did.
    """
    sink = SinkFiles(checkpoint_ts)
    for path, _ in store.list():
        if path.endswith(_INDEX):
            directory = DirectoryFiles(path.removesuffix(_INDEX))
            sink.directories[directory.path] = directory
            name = store.get(path).body.decode(errors="replace").removesuffix("\n")
            if match := _NAME.fullmatch(name):
                directory.published, directory.last = int(match[1]), name
            else:
                sink.problems.append(f"{path} names {name!r}, which is no data file.")
    for path, size in store.list():
        sink.paths.append(path)
        if match := _DATA.fullmatch(path):
            directory = sink.directories.setdefault(match["directory"], DirectoryFiles(match["directory"]))
            index = int(match["index"])
            if directory.is_named_right(path.removeprefix(f"{directory.path}/"), index):
                directory.files[index], directory.sizes[path] = path, size
            else:
                sink.problems.append(f"{path} is not named as the files of its directory are.")
        elif match := _SCHEMA.fullmatch(path):
            sink.schemas.setdefault((match["folder"], int(match["version"])), []).append(path)
        elif path.endswith((".csv", ".csv.gz", ".csv.zst", ".parquet", ".index")) and not path.endswith(_INDEX):
            sink.problems.append(f"{path} is no file of a changefeed.")
    return sink
