"""All tables of a sink together, in the order of commit ts, as far as the checkpoint has got."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from changefeed.objectstore import ObjectStore
from changefeed.reading.layout.files import checkpoint
from changefeed.reading.layout.versions import SchemaVersions
from changefeed.reading.layout.walk import WalkedVersion
from changefeed.reading.rows.formats import Format
from changefeed.tail.stream import ChangeStream, DataFile, Row

_DATE = re.compile(r"\d{4}(-\d\d){0,2}")

Selects = Callable[[str, str], bool]
"""Whether a table, by schema and name, is to be shown. A database's own DDLs have the name ""."""

PartitionName = tuple[str, ...]
"""Schema, table and, of a partitioned one, the folder of a partition."""


@dataclass(frozen=True)
class TailedChange:
    """A row's, or a DDL: then `row` is None."""

    commit_ts: int
    schema: str
    table: str
    row: Row | None = None
    query: str = ""

    @property
    def order(self) -> tuple[int, bool, str, str]:
        """A DDL at T comes behind the rows at T and before those above it."""
        return self.commit_ts, self.row is None, self.schema, self.table


class TailedChanges:
    """Rounds of what has come since the last one.

    A round holds one file of each table that has news. The order within a table is that of its files; between tables
    it is that of the ts, for rounds do not overlap.
    """

    def __init__(
        self, store: ObjectStore, format_of: Callable[[str], Format], after_ts: int | None, selects: Selects
    ) -> None:
        """`after_ts` None: the checkpoint that is published now. Raises NotVerifiable for a folder that has none."""
        self._store = store
        self._format_of = format_of
        self._selects = selects
        self._done_ts = self._began_ts = checkpoint(store) if after_ts is None else after_ts
        self._streams: dict[PartitionName, ChangeStream] = {}
        self._versions = SchemaVersions(store)

    def round(self) -> Iterator[TailedChange]:
        """Up to the checkpoint that is published now. Take all of it before the next one. Raises Break."""
        upto_ts = checkpoint(self._store)
        if upto_ts <= self._done_ts:
            return
        versions = self._versions.upto(upto_ts)
        ddls = [ddl for version in versions for ddl in self._ddls(version)]
        files: dict[PartitionName, list[DataFile]] = {}
        ends: dict[str, int] = {}  # of each table, the version behind the one that is looked at
        for version in reversed(versions):
            self._gather(version, ends, files)
        sources = [self._rows(name, found, upto_ts) for name, found in files.items()]
        yield from heapq.merge(sorted(ddls, key=_order), *sources, key=_order)
        self._done_ts = upto_ts

    def _ddls(self, version: WalkedVersion) -> Iterator[TailedChange]:
        for path in version.schema_files:
            file = self._versions.schema_file(path)
            if file.query and version.ts > self._done_ts and self._selects(file.schema, file.table):
                yield TailedChange(version.ts, file.schema, file.table, query=file.query)

    def _gather(self, version: WalkedVersion, ends: dict[str, int], files: dict[PartitionName, list[DataFile]]) -> None:
        """Adds the version's data files, by table and partition; the last version comes first."""
        named = self._versions.named(version)
        for data in reversed(version.data):
            file = named.get(data.directory_stem)
            if file is None or not self._selects(file.schema, file.table):
                continue
            levels = data.directory.path.removeprefix(f"{data.directory_stem}/{version.ts}").split("/")
            partition = (
                [data.directory_stem] if self._versions.by_id else [x for x in levels if x and not _DATE.fullmatch(x)]
            )
            name = (file.schema, file.table, *partition)
            columns, end = [column.name for column in file.written], ends.get(data.directory_stem)
            files.setdefault(name, [])[:0] = [DataFile(path, columns, end) for path in data.directory.readable]
        ends.update(dict.fromkeys(named, version.ts))

    def _rows(self, name: PartitionName, files: list[DataFile], upto_ts: int) -> Iterator[TailedChange]:
        if name not in self._streams:
            self._streams[name] = ChangeStream(self._store, self._format_of, self._began_ts)
        schema, table, *_ = name
        for row in self._streams[name].read(files, upto_ts):
            yield TailedChange(row.commit_ts, schema, table, row)


def _order(change: TailedChange) -> tuple[int, bool, str, str]:
    return change.order
