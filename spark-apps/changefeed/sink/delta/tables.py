"""The tables. Every change is one commit, conditional on the version that was last read.

Exactly once, and who may write:

1. *A table itself says what is in it.* With its rows, a commit sets for each dispatcher the number of the last entry
   that the table has (`marks`). A dispatcher's entries come in order without a gap, so an entry at or below its mark is
   in the table, and one above it is not, whatever became of files and versions since: VACUUM, OPTIMIZE, checkpoints and
   expiry of the log keep `txn` actions. So does RESTORE, which takes rows away: the history since our last commit says
   whether one has gone back behind it, and nothing is written on top of that.
2. *A commit counts only on the version that was read.* delta-rs may not try it again on another (`max_commit_retries`
   0): the name of the next version's file is created if absent, by a link or a conditional PUT. It is done when the
   table, read again, has it: neither an error nor its absence says so.
3. *What was relied on stays there.* Once the log may say that an entry is in a table, a table that is read and lacks it
   has lost it. Nothing is written on top of that. The log's commit records say what earlier drivers have relied on.
4. *A superseded driver.* All that it can still commit are entries of plans that its successor has read in the log. If
   such a commit comes before the successor's first one of a table, it writes what was due next anyway, and the
   successor finds it by the marks. If it comes later, it fails, because the version is taken. The same is true of a
   DDL, before which all entries below it were committed. When the old driver reads the table again, it finds a higher
   epoch and exits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema

from changefeed.errors import NeedsHuman, SinkOwned
from changefeed.objectstore.patience import Patience
from changefeed.sink.delta.endpoint import UNABLE, DeltaEndpoint, told
from changefeed.sink.delta.history import gone_back
from changefeed.sink.delta.marks import (
    EPOCH,
    LEFT,
    LOG,
    NONE,
    TABLE,
    TRUNCATED,
    VERSION,
    Marks,
    done_name,
    transactions,
)
from changefeed.sink.delta.rows import arrow_schema, copied, emptied
from changefeed.sink.table_format.relied import Relied

_LOOKED_AT = 8  # versions that a driver before may not have synced
RESTORE = "RESTORE the table to a version that has them, or create a new changefeed with a folder of its own."


@dataclass(frozen=True)
class DeltaWriter:
    """`log`: names the changefeed's log. `poll_fence`: asks it who drives: raises Fenced."""

    log: str
    epoch: int
    poll_fence: Callable[[], object]


@dataclass(frozen=True)
class FirstVersion:
    """What a table begins with. `version`: see contract.Entry.table_version. `was`: its id before the DDL of that."""

    schema: pa.Schema
    table_id: int
    version: int
    was: int = 0


@dataclass(frozen=True)
class TableCommit:
    """`commit` makes one commit of the table with these properties. `marks`: to be set. `said`: for its readers."""

    commit: Callable[[DeltaTable, CommitProperties], object]
    marks: Mapping[str, int]
    said: Mapping[str, str] = field(default_factory=dict)


T = TypeVar("T")
CommitOf = Callable[[DeltaTable, Marks], TableCommit | None]


class DeltaTables:
    """A table is read after each change, and the next builds on that; what is out of date fails, and is read again.

    Tables are known by their folders. Thread-safe for different tables. Raises Fenced, NeedsHuman (somebody else's
    table, or one that has lost what is relied on), Unavailable.
    """

    def __init__(
        self,
        endpoint: DeltaEndpoint,
        writer: DeltaWriter,
        patience: Patience,
        relied: Mapping[int, Mapping[int, Relied]] | None = None,
    ) -> None:
        """`relied`: what the log says of each table, by the id of the upstream's and by dispatcher."""
        self.endpoint, self._writer, self._patience = endpoint, writer, patience
        self._where = endpoint.root.uri
        self._relied = dict(relied or {})
        self._known: dict[str, DeltaTable] = {}  # as last read
        self._synced: dict[str, int] = {}  # the version up to which a table survives the loss of power

    @property
    def log(self) -> str:
        return self._writer.log

    def marks(self, table: DeltaTable) -> Marks:
        return Marks(table, self._writer.log)

    def find(self, folder: str) -> DeltaTable | None:
        """As it is now, if it is there and ours."""
        return self.call(partial(self._find, folder))

    def create(self, folder: str, definition: FirstVersion) -> None:
        """It is there. Raises NeedsHuman when another one is. One that the upstream has left begins again, empty."""
        self.call(partial(self._create, folder, definition))

    def change(self, folder: str, definition: FirstVersion, commit_of: CommitOf) -> None:
        """What `commit_of` makes of the table as it is; None: nothing is to be done, which is relied on from now on.

        It is asked again of the table as it is afterwards, or when somebody has changed it meanwhile. `definition`:
        with which it is made if it was never there.
        """
        self.call(partial(self._change, folder, definition, commit_of))

    def commit_properties(self, marks: Mapping[str, int], said: Mapping[str, str]) -> CommitProperties:
        """Those of a commit of ours, which is made on the version that was read or not at all."""
        marks = {**marks, EPOCH: self._writer.epoch}
        about = {LOG: self.log, "changefeed.epoch": str(self._writer.epoch), **said}
        return CommitProperties(
            custom_metadata=about, max_commit_retries=0, app_transactions=transactions(self.log, marks)
        )

    def ask(self) -> None:
        """Raises Fenced."""
        self._writer.poll_fence()

    def call(self, attempt: Callable[[], T]) -> T:
        """What it gives, with patience. Raises what the class does."""
        return self._patience.call(self._where, attempt, again=self.ask)

    def _find(self, folder: str) -> DeltaTable | None:
        with self.telling(folder):
            table = self.endpoint.open(folder)
            if table is not None:
                self._check(folder, table)
        return table

    def _check(self, folder: str, table: DeltaTable) -> None:
        owner, marks = table.metadata().configuration.get(LOG), self.marks(table)
        if owner != self.log:
            raise SinkOwned(
                f"SinkOwned: table {folder} in {self._where} is not this changefeed's: its {LOG} is "
                f"{owner or 'not set'}.",
                "Move that table away, or create a changefeed with a folder of its own.",
            )
        if marks.of(EPOCH) > self._writer.epoch:
            self.ask()
            raise NeedsHuman(
                f"Table {folder} in {self._where} was written by epoch {marks.of(EPOCH)} of this changefeed, which its "
                "log does not know.",
                "Its state was restored from a copy: create a new changefeed with a folder of its own.",
            )
        if (lacking := marks.lost(self._relied.get(marks.of(TABLE), {}))) is not None:
            dispatcher, last = lacking
            raise NeedsHuman(
                f"Table {folder} in {self._where} has lost changes that it had: entry {last.plan}/{last.entry} of "
                f"dispatcher {dispatcher} was in it, and version {table.version()} does not have it.",
                f"Somebody has removed versions of its log, or restored a copy of the folder. {RESTORE}",
            )
        if (version := gone_back(table, self.log)) is not None:
            raise NeedsHuman(
                f"Table {folder} in {self._where} was restored to a version before this changefeed's last one, "
                f"{version}: it lacks rows that were committed.",
                f"RESTORE it to version {version} or a later one that was not restored, or create a new changefeed "
                "with a folder of its own.",
            )

    def _create(self, folder: str, definition: FirstVersion) -> DeltaTable:
        marks = {TABLE: definition.table_id, VERSION: definition.version, LEFT: 0}
        if (there := self._find(folder)) is not None:
            found = self.marks(there)
            if not found.is_left:
                if found.of(TABLE) == definition.table_id:
                    return there
                raise self._taken(folder, there, definition.table_id)
        self.ask()
        if there is None:
            self._define(folder, definition.schema, marks)
        else:
            with self.telling(folder):
                emptied(there, definition.schema, self.commit_properties(marks, {}))
        made = self._find(folder)
        if made is None or self.marks(made).of(TABLE) != definition.table_id:
            raise self.forgotten(folder)
        self._sync(folder, made)
        return made

    def _define(self, folder: str, schema: pa.Schema, marks: Mapping[str, int]) -> None:
        with self.telling(folder):
            DeltaTable.create(
                self.endpoint.uri(folder),
                Schema.from_arrow(schema),
                mode="error",
                configuration={LOG: self.log},
                raise_if_key_not_exists=False,
                storage_options=self.endpoint.options(),
                commit_properties=self.commit_properties(marks, {}),
            )

    def _change(self, folder: str, definition: FirstVersion, commit_of: CommitOf) -> None:
        table = self._known.pop(folder, None) or self._find(folder) or self._make(folder, definition)
        with self.telling(folder):
            change = commit_of(table, self.marks(table))
            if change is not None:
                change.commit(table, self.commit_properties(change.marks, change.said))
                table.update_incremental()
        if change is not None:
            table = self._read_again(folder, table, commit_of)
        self._sync(folder, table)
        self._known[folder] = table

    def _sync(self, folder: str, table: DeltaTable) -> None:
        """What is in the table survives the loss of power, too."""
        newest = table.version()
        after = self._synced.get(folder, newest - _LOOKED_AT)
        with self.telling(folder):
            self.endpoint.sync(folder, range(max(after + 1, 0), newest + 1))
        self._synced[folder] = newest

    def _read_again(self, folder: str, table: DeltaTable, commit_of: CommitOf) -> DeltaTable:
        """The table, which has what was just committed: whatever the answer was, only this is relied on."""
        with self.telling(folder):
            self._check(folder, table)
            if commit_of(table, self.marks(table)) is not None:
                raise self.forgotten(folder)
        return table

    def copy(self, before: str, after: str, dispatchers: Iterable[int], said: Mapping[str, str]) -> None:
        """The table in the folder `after` has the rows and the marks of the one in `before`, unless it had them."""
        self.call(partial(self._copy, before, after, dispatchers, said))

    def _copy(self, before: str, after: str, dispatchers: Iterable[int], said: Mapping[str, str]) -> None:
        source, target = self._find(before), self._find(after)
        if source is None:
            raise self.forgotten(before)
        known = self.marks(source)
        if target is not None and not self.marks(target).is_left:
            if self.marks(target).of(TABLE) == known.of(TABLE):
                return
            raise self._taken(after, target, known.of(TABLE))
        marks = {name: known.of(name) for name in (TABLE, VERSION, TRUNCATED)} | {LEFT: 0}
        marks |= {done_name(each): last for each in dispatchers if (last := known.done(each)) != NONE}
        self.ask()
        if target is None:  # until it has the rows, it is as one that the upstream has left
            self._define(after, arrow_schema(source), {VERSION: 1, LEFT: 1})
            target = self._find(after)
        if target is None:
            raise self.forgotten(after)
        with self.telling(after):
            copied(source, target, self.commit_properties(marks, said))
        if (found := self._find(after)) is None or self.marks(found).of(TABLE) != known.of(TABLE):
            raise self.forgotten(after)
        self._sync(after, found)

    def rely(self, table_id: int, relied: Mapping[int, Relied]) -> None:
        """It is to stay in the table from now on."""
        self._relied[table_id] = {**self._relied.get(table_id, {}), **relied}

    def followed(self, was: int, table_id: int, version: int, left: Iterable[int]) -> None:
        """A table has followed the DDL of `version`, with which it has another id, perhaps; `left`: dispatchers."""
        relied = self._relied.pop(was, {})
        self._relied[table_id] = {each: Relied(version, relied[each].last) for each in relied.keys() - set(left)}

    def forget(self, table_id: int) -> None:
        """The upstream has no such table any more."""
        self._relied.pop(table_id, None)

    def _make(self, folder: str, definition: FirstVersion) -> DeltaTable:
        if definition.table_id in self._relied or definition.was in self._relied:
            raise NeedsHuman(
                f"Table {folder} is not in {self._where}, and this changefeed has written to it.",
                "Somebody has removed or moved its folder: put it back, or create a new changefeed with a folder of "
                "its own.",
            )
        return self._create(folder, definition)

    @contextmanager
    def telling(self, folder: str) -> Iterator[None]:
        """As `told`, and what the library can't do with a table, which others may have changed."""
        try:
            with told(self._where):
                yield
        except UNABLE as error:
            raise NeedsHuman(
                f"Table {folder} in {self._where} can't be written: {type(error).__name__}: {error}",
                "If somebody has changed it (a table feature, a constraint, a NOT NULL), undo that; report it as a bug "
                "otherwise.",
            ) from None

    def _taken(self, folder: str, there: DeltaTable, table_id: int) -> NeedsHuman:
        return NeedsHuman(
            f"Table {folder} in {self._where} is that of the upstream's table {self.marks(there).of(TABLE)}, not of "
            f"{table_id}.",
            "Move it away, then start again.",
        )

    def forgotten(self, folder: str) -> NeedsHuman:
        return NeedsHuman(
            f"{self._where} has confirmed a change of table {folder} and does not have it when it is read.",
            "It loses writes, or reads are answered from a copy that is behind: use a store that is consistent.",
        )
