"""What the transaction log says at one point, as a value: `history.apply` derives the next one from a record.

A snapshot of the log is one of these. Pure data; it only answers questions about itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, ValidationError, model_validator

from changefeed.errors import NeedsHuman
from changefeed.log.records import PlanEntry, PlanRecord, Ts, uid_of
from changefeed.model.frozen import Frozen
from changefeed.model.position import Position
from changefeed.model.table_copy import COPY_TICKS, TableCopy

NEXT_STEP = (
    "The log is damaged or was written by something else: keep it as it is for examination, and start a new changefeed."
)


class NewestEntry(Frozen):
    """The newest of a dispatcher's committed entries that have rows. `table_version`: the entry's."""

    plan: int
    entry: int
    table_version: Ts


class DispatcherState(Frozen):
    """How far one dispatcher's entries have got."""

    dispatcher: int  # span_id
    table_id: int  # 0: joined by a DDL, or defined, and nothing planned yet
    flushed_ts: Ts  # every row <= it is in committed files; see State.flushed_ts for the one to resume at
    planned_ts: Ts  # every row <= it is in entries that are planned; what follows is the newest one's
    table_version: Ts = 0
    output: dict[str, Any] = Field(default={})  # which the next one's follows
    table_info: str = ""  # hash of the newest entry's TableInfo
    definition: str = ""  # hash of the TableInfo of `table_version`; "": not known
    newest: NewestEntry | None = None  # also None: it was committed before this was kept

    @model_validator(mode="before")
    @classmethod
    def _as_0_1_0_wrote_it(cls, value: object) -> object:
        """It kept where the next file goes."""
        if not isinstance(value, dict) or "next_index" not in value:
            return value
        before = dict(value)
        directory, index, date = before.pop("directory"), before.pop("next_index") - 1, before.pop("date")
        return {**before, "output": {"directory": directory, "index": index, "date": date}}


class Epoch(Frozen):
    """The driver that the log belongs to."""

    number: int = 0
    nonce: str = ""
    attempt: int = 0
    config: dict[str, Any] = Field(default={})  # effective resource

    @property
    def uid(self) -> str:
        """The uid of the resource that the epoch drives."""
        return uid_of(self.config)

    @property
    def name(self) -> str:
        metadata = self.config.get("metadata", {})
        return f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"


class OpenPlan(Frozen):
    """A plan some of whose files are in no commit record."""

    plan: PlanRecord
    config: dict[str, Any]  # effective spec of the epoch that recorded it (rule 10)
    committed: tuple[int, ...] = ()  # entries whose files are, ascending

    @property
    def open_entries(self) -> tuple[PlanEntry, ...]:
        committed = frozenset(self.committed)
        return tuple(entry for entry in self.plan.entries if entry.entry not in committed)


class RecordedCopy(Frozen):
    """As the `copy` record has it."""

    from_ts: Ts
    bounds: tuple[str, ...]

    @cached_property
    def table_copy(self) -> TableCopy:
        return TableCopy(self.from_ts, tuple(map(bytes.fromhex, self.bounds)))


class Generation(Frozen):
    """What is in a folder of the sink that a rewind has ended: `(from_ts, checkpoint_ts]`."""

    from_ts: Ts
    checkpoint_ts: Ts
    expired_before: str = ""  # see State


def _by_dispatcher(value: object) -> object:
    return {item["dispatcher"]: item for item in value} if isinstance(value, list) else value


def _as_list(value: Mapping[int, DispatcherState]) -> list[DispatcherState]:
    return [value[dispatcher] for dispatcher in sorted(value)]


class State(Frozen):
    """The log up to and including record `n`; `State()` is the empty log. Its JSON is the snapshot.

    Never mutate a member.
    """

    v: Literal[1] = 1
    kind: Literal["snapshot"] = "snapshot"
    n: int = 0
    uid: str = ""
    origin: str = ""  # nonce of record 1, which no other log has; "": of a log from before this was kept
    cluster_id: Ts = 0
    start_ts: Ts = 0
    adopted: bool = False  # the first generation's folder has files of TiCDC's, of table versions below start_ts
    checkpoint_ts: Ts = 0
    epoch: Epoch = Epoch()
    plans: tuple[OpenPlan, ...] = ()  # in the order of their records
    dispatchers: Annotated[
        dict[int, DispatcherState],
        BeforeValidator(_by_dispatcher),
        PlainSerializer(_as_list, return_type=list[DispatcherState]),
    ] = Field(default={})
    table_infos: dict[str, dict[str, Any]] = Field(default={})  # by hash: all that are named, others until one is new
    rows: int = 0  # in committed files, since the start
    last_ddl: tuple[Ts, int] | None = Field(default=None)  # (ts, job_id) of the newest executed one
    last_statement: str = ""  # of that, its beginning: for people
    finished: bool = False
    closed: bool = False
    released: bool = False  # by `changefeed adopt`
    generations: tuple[Generation, ...] = ()  # those before the present one
    rewound_to: Ts | None = None  # where the present generation begins, if a rewind began it
    restart_nonce: int | None = None  # of the newest spec.restart that is done
    initial_copy: bool = False
    copied: dict[int, RecordedCopy] = Field(default={})  # by dispatcher: tables whose rows come before changes
    expired_before: str = ""  # files of this generation's days before it are deleted, or about to be
    superseded: tuple[str, ...] = ()  # uids of the resources before the one that the newest epoch drives

    @property
    def generation(self) -> int:
        """Number of the folder that is written now; the sink's own is 1."""
        return len(self.generations) + 1

    @property
    def from_ts(self) -> int:
        """Its files have what is after this."""
        return self.start_ts if self.rewound_to is None else self.rewound_to

    @property
    def asked_ts(self) -> int:
        """What the resource calls startTs: the first copy stands below it."""
        return self.start_ts + COPY_TICKS if self.initial_copy else self.start_ts

    @property
    def whole_from_ts(self) -> int:
        """At and above it no table stands in part."""
        return max([self.checkpoint_ts + 1, *(copy.ts for copy in self.copies().values())])

    def copies(self) -> dict[int, TableCopy]:
        """By dispatcher."""
        return {dispatcher: known.table_copy for dispatcher, known in self.copied.items()}

    def flushed_ts(self, dispatcher: int) -> int:
        """Every row of the dispatcher <= it is in committed files, or there was none (rule 11)."""
        known = self.dispatchers.get(dispatcher)
        return max(known.flushed_ts, self.checkpoint_ts) if known else self.checkpoint_ts

    def table_version(self, dispatcher: int) -> int:
        """That of the rows which are written next: the ts of the last DDL on its table, or where its files begin."""
        known = self.dispatchers.get(dispatcher)
        if known and known.table_version:
            return known.table_version
        return self.first_version(dispatcher)

    def first_version(self, dispatcher: int) -> int:
        """Where its table's files begin, unless a DDL made it."""
        return self.copied[dispatcher].from_ts if dispatcher in self.copied else self.from_ts

    def is_redefined(self, dispatcher: int, table_info: str) -> bool:
        """Whether its table was altered while no rule selected it: no DDL record says from which ts on."""
        known = self.dispatchers.get(dispatcher)
        return known is not None and known.definition not in ("", table_info)

    def output(self, dispatcher: int) -> dict[str, Any]:
        """Return what the dispatcher's newest entry was written to; {}: there is none, or it needed none."""
        known = self.dispatchers.get(dispatcher)
        return known.output if known else {}

    def position(self, dispatcher: int) -> Position:
        """Where the dispatcher's next entry must start."""
        return Position.end_of(self.planned_ts(dispatcher))

    def planned_ts(self, dispatcher: int) -> int:
        """As flushed_ts, with what is planned counted as done: where planning resumes."""
        known = self.dispatchers.get(dispatcher)
        return max(known.planned_ts, self.checkpoint_ts) if known else self.checkpoint_ts

    def reached_ts(self) -> int:
        """No row above it is planned, no DDL above it is executed."""
        planned = (known.planned_ts for known in self.dispatchers.values())
        return max([self.checkpoint_ts, *planned, *([self.last_ddl[0]] if self.last_ddl else [])])

    def open_entries(self) -> Iterator[tuple[int, PlanEntry]]:
        """(plan, entry) of each file that no commit record names; those of one dispatcher in order."""
        return ((each.plan.n, entry) for each in self.plans for entry in each.open_entries)


def snapshot(state: State) -> bytes:
    """Canonical JSON: equal states have equal bytes."""
    return state.model_dump_json(by_alias=True).encode()


def restore(body: bytes) -> State:
    """The state in a snapshot. Raises NeedsHuman for an unknown `v`, `kind` or member."""
    try:
        return State.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise NeedsHuman(
            f"A snapshot of the log can't be read: {where}: {first['msg']}.",
            "Use the version of the product that wrote it, or a newer one.",
        ) from error
