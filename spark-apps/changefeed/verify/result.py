"""What verify reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Verdict:
    """What is said of any sink."""

    ok: bool = True
    checkpoint_ts: str = "0"
    first_problem: str | None = None
    notes: list[str] = field(default_factory=list)  # what was assumed, and what was not checked

    def problem(self, what: str) -> None:
        """Note a broken promise; the first one is what a person sees."""
        self.ok = False
        if self.first_problem is None:
            self.first_problem = what

    def note(self, what: str) -> None:
        if what not in self.notes:
            self.notes.append(what)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class ChangesVerdict(Verdict):
    """The verdict on a sink that keeps each change: what was read, and what was found."""

    rows: int = 0
    transactions: int = 0
    tables: int = 0
    missing: int = 0
    duplicate: int = 0
    unexpected: int = 0
    out_of_order: int = 0
    replayed: int = 0  # rows of the tables at the checkpoint that the changes' replay was compared with
    replay_missing: int = 0
    replay_extra: int = 0
    replay_different: int = 0


@dataclass
class Result(ChangesVerdict):
    """The verdict on files."""

    files: int = 0
    consumed: int = 0  # rows of the tables at the checkpoint that a consumer's replay was compared with
    consumed_missing: int = 0
    consumed_extra: int = 0
    consumed_different: int = 0
    conserved: str | None = None


@dataclass
class SnapshotVerdict(Verdict):
    """The verdict on files whose upstream has no history: `consumed` rows of a snapshot were compared."""

    rows: int = 0
    transactions: int = 0
    tables: int = 0
    files: int = 0
    consumed: int = 0
    duplicate: int = 0
    unexpected: int = 0
    out_of_order: int = 0
    consumed_missing: int = 0
    consumed_extra: int = 0
    consumed_different: int = 0


@dataclass(frozen=True)
class TableRows:
    """A table's rows in a database, held against the upstream's. `rows`: of the upstream."""

    table: str
    rows: int
    missing: int = 0
    surplus: int = 0
    different: int = 0
    examples: tuple[str, ...] = ()  # "missing: id=1", a few of each

    @property
    def differs(self) -> bool:
        return bool(self.missing or self.surplus or self.different)


@dataclass
class RowsVerdict(Verdict):
    """The verdict on a database that has the tables themselves."""

    tables: int = 0
    rows: int = 0
    missing: int = 0
    surplus: int = 0
    different: int = 0
    by_table: list[TableRows] = field(default_factory=list)

    def add(self, table: TableRows) -> None:
        self.tables += 1
        self.rows += table.rows
        self.missing += table.missing
        self.surplus += table.surplus
        self.different += table.different
        self.by_table.append(table)
        if table.differs:
            self.problem(
                f"{table.table}: {table.missing} rows are missing, {table.surplus} are surplus, {table.different} "
                f"different: {'; '.join(table.examples)}."
            )


@dataclass
class TopicsVerdict(Verdict):
    """What is said of topics. `repeated`: rows that stand there again where that is allowed; a `duplicate` is not."""

    topics: int = 0
    partitions: int = 0
    messages: int = 0
    repeated: int = 0
    early: int = 0  # rows behind a resolved-ts that is not below theirs
    went_back: int = 0  # a resolved-ts behind a higher one


@dataclass
class MessagesVerdict(ChangesVerdict, TopicsVerdict):
    """The verdict on topics, by the upstream's history."""


@dataclass
class TopicRowsVerdict(RowsVerdict, TopicsVerdict):
    """The verdict on topics whose upstream has no history: what their replay leads to, and what they say alone."""

    duplicate: int = 0
    unexpected: int = 0
    out_of_order: int = 0
