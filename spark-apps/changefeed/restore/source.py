"""A storage sink as restore and flashback read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.errors import InvalidSpec
from changefeed.model.table_copy import TableCopy
from changefeed.model.tso import to_datetime
from changefeed.objectstore import ObjectStore
from changefeed.reading.failures import NotVerifiable
from changefeed.reading.known import KnownFormats, known_of
from changefeed.reading.layout.files import DirectoryFiles, checkpoint
from changefeed.reading.layout.read_ahead import read_ahead
from changefeed.reading.layout.versions import SchemaVersions
from changefeed.reading.layout.walk import WalkedVersion
from changefeed.reading.progress import ReadingProgress
from changefeed.reading.rows.contents import read_rows
from changefeed.reading.rows.formats import Format
from changefeed.reading.scratch import with_bytes
from changefeed.restore.schema.catalog import RestoreCatalog
from changefeed.restore.schema.table import RestoredTable, TableVersion
from changefeed.routing.routes import Routes
from changefeed.schema.table_info import TableInfo
from changefeed.spec.filter.filters import ColumnSelector, Filter
from changefeed.spec.filter.table_filter import TableFilter

Selects = Callable[[str, str], bool]


class NotRestorable(NotVerifiable):
    """The files don't say what is asked for."""


@dataclass(frozen=True)
class PartitionFiles:
    """Files of one table or partition under one version, in their order."""

    segment: TableVersion
    directories: tuple[DirectoryFiles, ...]


class RestoreSource:
    """Its files up to the checkpoint that was published when it was opened."""

    def __init__(self, store: ObjectStore, known: KnownFormats | None = None) -> None:
        """`known`: of the sink, if the caller knows it. Raises NotVerifiable for a folder that has no checkpoint."""
        self._store = store
        self.checkpoint_ts = checkpoint(store)
        self.known: KnownFormats = known or known_of(store)
        if (refused := self.known.refused) is not None:
            raise NotRestorable(refused.message, "What verify can't read can't be restored either.")
        state = self.known.state
        if state is not None and state.expired_before:
            raise NotRestorable(
                f"Files of {store.uri} from before {state.expired_before} have expired (fileExpirationDays).",
                "Only a sink that still has all its files can be restored from.",
            )
        self._versions = SchemaVersions(store)
        self._all = self._versions.upto(self.checkpoint_ts)
        if not self._all:
            raise NotRestorable(
                f"{store.uri} has no tables up to its checkpoint {self.checkpoint_ts}.", "Check the URI."
            )
        self._named = {version.ts: self._versions.named(version) for version in self._all}

    @property
    def start_ts(self) -> int:
        """Its files have what is after this, as far as anybody knows.

        The log's start may be of another folder (after a rewind), or later (where TiCDC began this one).
        """
        first, state = self._all[0].ts, self.known.state
        return first if state is None else min(first, state.from_ts)

    @property
    def _continued_ts(self) -> int | None:
        """From when on a folder of TiCDC's goes on; None: it is none."""
        state = self.known.state
        return state.start_ts if state is not None and state.adopted and state.from_ts == state.start_ts else None

    @property
    def _copies(self) -> list[TableCopy]:
        state = self.known.state
        return [] if state is None else list(state.copies().values())

    def check(self, ts: int) -> None:
        """Raises InvalidSpec for a ts at which the files don't show the tables."""
        if ts > self.checkpoint_ts:
            at = moment(self.checkpoint_ts)
            raise InvalidSpec(
                "--to-ts", f"{moment(ts)} is above the sink's checkpoint {at}", "Wait, or give an earlier one."
            )
        if ts < self.start_ts:
            begin = moment(self.start_ts)
            raise InvalidSpec("--to-ts", f"{moment(ts)} is below {begin}, where the sink's files begin")
        for copy in self._copies:
            if copy.is_under_way(ts):
                at = moment(copy.ts)
                raise InvalidSpec("--to-ts", f"at {moment(ts)} a table was only partly copied; its copy is as of {at}")

    def catalog(self, ts: int) -> RestoreCatalog:
        """What is there at `ts`."""
        rules = self._filter
        state = self.known.state
        selects = None if rules is None or state is None else Routes.of(state.epoch.config).is_written
        copied = {copy.from_ts for copy in self._copies}
        catalog = RestoreCatalog(self._choice, self.start_ts, selects, self._continued_ts, copied)
        for version in self._all:
            if version.ts <= ts:
                catalog.execute(self._named[version.ts].values())
        for table in catalog.tables:
            if why := self._left_out(table):
                table.gap(why)
        return catalog

    def parts(self, table: RestoredTable) -> list[PartitionFiles]:
        """Where its rows stand, by version. Some of them twice, in a folder that TiCDC began."""
        versions = {version.ts: version for version in self._all}
        return [part for segment in table.segments for part in self._parts(versions[segment.version], segment)]

    def _parts(self, version: WalkedVersion, segment: TableVersion) -> Iterator[PartitionFiles]:
        named = self._named[version.ts]
        name = tuple(text.lower() for text in segment.name)
        mine = [
            data
            for data in version.data
            if (file := named.get(data.directory_stem)) and (file.schema.lower(), file.table.lower()) == name
        ]
        by_partition = sorted(mine, key=lambda data: (data.directory_stem, data.partition))
        for _, group in groupby(by_partition, key=lambda data: (data.directory_stem, data.partition)):
            yield PartitionFiles(segment, tuple(data.directory for data in group))

    def rows(
        self, part: PartitionFiles, upto_ts: int, progress: ReadingProgress, old: bool = False
    ) -> Iterator[pa.Table]:
        """The part's rows up to `upto_ts` in pieces: op, commit_ts, c0..cn; text as bytes, TIMESTAMP in UTC.

        `old`: where files have it, also has_old and o0..on, what rows were before an update. Raises Break that names a
        file which can't be read.
        """
        old = old and self._has_old
        count = sum(len(directory.readable) for directory in part.directories)
        shape = part.segment.shape
        for path, found in read_ahead(self._store, part.directories):
            how = self.known.format_of(path)
            for piece in read_rows(found.body, path, shape, how, old):
                mine = piece.filter(pc.less_equal(piece["commit_ts"], pa.scalar(upto_ts, pa.uint64())))
                if mine.num_rows:
                    in_utc = _in_utc(mine, part.segment, how.time_zone)
                    yield with_bytes(in_utc.drop_columns(["table", "schema"]), shape)
                if mine.num_rows < piece.num_rows:  # commit ts never fall
                    progress.advance(count)
                    return
            progress.advance(1)
            count -= 1
        progress.advance(count)

    def files(self, tables: Iterable[RestoredTable]) -> int:
        parts = [part for table in tables for part in self.parts(table)]
        return sum(len(directory.readable) for part in parts for directory in part.directories)

    @property
    def _has_old(self) -> bool:
        """Whether an update shows all of the row before it, if it shows any of it."""
        if (state := self.known.state) is None:
            return False
        json = state.epoch.config["spec"]["sink"]["storage"]["canalJson"]
        return not json["contentCompatible"] and not json["onlyOutputUpdatedColumns"]

    @cached_property
    def _filter(self) -> Filter | None:
        state = self.known.state
        return None if state is None else Filter.model_validate(state.epoch.config["spec"]["filter"])

    @cached_property
    def _format(self) -> Format | None:
        """The format of all files, in what matters here."""
        paths = (path for version in self._all for data in version.data for path in data.directory.readable)
        first = next(paths, None)
        return None if first is None else self.known.format_of(first)

    @property
    def _choice(self) -> str:
        return "text" if self._format is None else self._format.choice

    def masked(self, table: RestoredTable) -> bool:
        """Whether its columns are written otherwise than upstream, as far as a log that can be read says."""
        state, own = self.known.state, {segment.name for segment in table.segments}
        stored = () if state is None else state.table_infos.values()
        return any(each.get("shaped_from") and (each["schema_name"], each["name"]) in own for each in stored)

    def _left_out(self, table: RestoredTable) -> str:
        """Why not all of its changes, or not all of its columns, are in the files."""
        state, rules = self.known.state, self._filter
        if self._format is not None and not self._format.split_updates:
            return "with outputRawChangeEvent no file has a row's old key when its key changes"
        if state is None or rules is None:
            return ""
        if rules.ignore_txn_start_ts:
            return "spec.filter.ignoreTxnStartTs drops transactions"
        routed = [each for each in map(TableInfo.from_json, state.table_infos.values()) if each.source is not None]
        own = {segment.name for segment in table.segments}
        upstream = own | {each.upstream_name for each in routed if each.qualified in own}
        if any(_matches(each.matcher, upstream, rules) for each in rules.event_filters):
            return "spec.filter.eventFilters drop changes"
        storage = state.epoch.config["spec"]["sink"].get("storage", {})
        selectors = [ColumnSelector.model_validate(each) for each in storage.get("columnSelectors", ())]
        if any(_matches(each.matcher, own, rules) for each in selectors):
            return "columnSelectors drop columns"
        return ""


def _matches(matcher: Iterable[str], names: Iterable[tuple[str, str]], rules: Filter) -> bool:
    chosen = TableFilter(tuple(matcher), rules.case_sensitive)
    return any(chosen.matches(*name) for name in names)


def _in_utc(rows: pa.Table, segment: TableVersion, time_zone: str) -> pa.Table:
    """TIMESTAMP of a clock that shows an hour twice is taken as the first of the two."""
    if time_zone == "UTC":
        return rows
    for number, column in enumerate(segment.columns):
        for name in {f"c{number}", f"o{number}"} & set(rows.column_names) if column.base == "TIMESTAMP" else ():
            converted = text_in_utc(pl.Series(pl.from_arrow(rows[name])), time_zone, int(column.scale or 0))
            rows = rows.set_column(rows.schema.get_field_index(name), name, converted.to_arrow().cast(pa.string()))
    return rows


def text_in_utc(times: pl.Series, time_zone: str, digits: int) -> pl.Series:
    """`digits`: of a second's fraction. What is no time (0000-00-00) stays as it is."""
    local = times.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False)
    utc = local.dt.replace_time_zone(time_zone, ambiguous="earliest", non_existent="null").dt.convert_time_zone("UTC")
    length = len("YYYY-MM-DD HH:MM:SS") + (digits + 1 if digits else 0)
    return utc.dt.strftime("%Y-%m-%d %H:%M:%S%.6f").str.slice(0, length).fill_null(times)


def moment(ts: int) -> str:
    """A ts for a person."""
    return f"{ts} ({to_datetime(ts):%Y-%m-%d %H:%M:%S.%f} UTC)"
