"""A table that is altered while it is written, and what a consumer of its topic is to have of it in the end.

A topic has rows only. It can't tell a TRUNCATE, what rows have in a column that is younger than their last change, or
that a column is dropped or has another type.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from threading import Event
from typing import Any, NamedTuple

from changefeed_devcluster.ddl import columns
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn, TidbColumn
from changefeed_devcluster.tidb.server import CommittedChange
from changefeed_devcluster.tidb.tidb import Tidb
from changefeed_devcluster.tidb.values import absent_value
from changefeed_devcluster.workload import RowRate
from changefeed_devcluster.workload.random_values import value
from integration_kafka_history import Reading

Row = dict[str, Any]
State = dict[int, Row]

DATABASE, TABLE = "shop", "orders"
DDLS = ("add a column", "add a column with a default", "truncate", "widen a column", "drop a column")
_KEYS, _LEAST_COLUMNS, _SLOWER = 60, 12, 5
_EPOCH = datetime(1970, 1, 1)
_MICROSECOND, _MILLISECOND = timedelta(microseconds=1), timedelta(milliseconds=1)
_ENUM, _SET = ("a", "b,c", "it"), ("x", "y", "z")


class Kind(NamedTuple):
    """A type. `canal`, `debezium`: what Flink has of a value; `stored`: what the table of a JDBC sink needs, where that
    is another type; `shown`: how SQL reads it there. `default`: of an added column, `stored_default` the same there.
    """

    sql: str
    default: str
    canal: Reading
    debezium: Reading
    stored: str = ""
    shown: str = "{}"
    stored_default: str = ""
    wider: str = ""  # the kind that it can be widened to
    evolves: bool = True  # a JDBC sink adds a column, and one that has all values


def _same(flink: str) -> Reading:
    return Reading(flink)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _clock(value: timedelta) -> str:
    return f"{_EPOCH + value:%H:%M:%S.%f}"


def _mask(value: str) -> int:
    return sum(1 << _SET.index(each) for each in value.split(",") if each)


def _micros(value: datetime) -> int:
    return (value - _EPOCH) // _MICROSECOND


def _millis(value: datetime) -> int:
    return (value - _EPOCH) // _MILLISECOND


_STRING = _same("STRING")
_KINDS = {
    "small": Kind("smallint", "-7", _same("INT"), _same("INT"), wider="int"),
    "int": Kind("int", "-7", _same("BIGINT"), _same("BIGINT"), wider="big"),
    "big": Kind("bigint", "-7", _same("BIGINT"), _same("BIGINT")),
    "unsigned": Kind(
        "bigint unsigned",
        str((1 << 64) - 1),
        Reading("DECIMAL(20, 0)", Decimal),
        Reading("BIGINT", _signed),
        stored="bigint",
        shown="CAST({} AS UNSIGNED)",
        stored_default="-1",
    ),
    "text": Kind("varchar(24)", "so, 'so'", _STRING, _STRING, wider="long"),
    "long": Kind("varchar(60)", "so, 'so'", _STRING, _STRING, wider="longer"),
    "longer": Kind("varchar(240)", "so, 'so'", _STRING, _STRING),
    "char": Kind("char(8)", "c", _STRING, _STRING),
    "decimal": Kind("decimal(18,4)", "-1.5000", _same("DECIMAL(18, 4)"), Reading("DOUBLE", float), evolves=False),
    "double": Kind("double", "0.5", _same("DOUBLE"), _same("DOUBLE")),
    "date": Kind("date", "2024-02-29", _same("DATE"), Reading("INT", lambda day: (day - _EPOCH.date()).days)),
    "datetime": Kind("datetime", "1999-12-31 23:59:59", _same("TIMESTAMP(3)"), Reading("BIGINT", _millis)),
    "micros": Kind("datetime(6)", "1999-12-31 23:59:59.999999", _same("TIMESTAMP(6)"), Reading("BIGINT", _micros)),
    "timestamp": Kind(
        "timestamp(3)",
        "2001-01-01 00:00:00",
        _same("TIMESTAMP(3)"),
        Reading("TIMESTAMP_LTZ(3)", lambda moment: moment.replace(tzinfo=UTC)),
    ),
    "time": Kind(
        "time(6)",
        "12:00:00.500000",
        Reading("STRING", _clock),
        Reading("BIGINT", lambda clock: clock // _MICROSECOND),
    ),
    "year": Kind("year", "1999", _same("INT"), _same("INT")),
    "bit": Kind(
        "bit(12)",
        "5",
        _same("BIGINT"),
        Reading("BYTES", lambda bits: bits.to_bytes(2, "little")),
        stored="varbinary(8)",
        shown="CONV(HEX(REVERSE({})), 16, 10) + 0",
        stored_default="0x0500",
        evolves=False,
    ),
    "enum": Kind(
        "enum('a','b,c','it')",
        "b,c",
        Reading("BIGINT", lambda name: _ENUM.index(name) + 1),
        _STRING,
        evolves=False,
    ),
    "set": Kind("set('x','y','z')", "x,z", Reading("BIGINT", _mask), _STRING),
    "bytes": Kind(
        "varbinary(16)",
        "b",
        Reading("STRING", lambda raw: raw.decode("latin-1")),
        Reading("BYTES"),
        stored="varchar(24)",
        shown="FROM_BASE64({})",
        stored_default="'Yg=='",
    ),
}


def value_of(rng: random.Random, column: TidbColumn) -> Any:
    """What all readers can take: of TIME a moment of a day."""
    if column.nullable and rng.random() < 0.2:
        return None
    if column.name.startswith("time_"):
        return timedelta(microseconds=rng.randrange(86_400_000_000))
    return value(rng, column.type)


@dataclass
class Altered:
    """`by_hand`: executes what a JDBC sink's table needs before the upstream's DDL. `limit`: of DDLs, for now."""

    tidb: Tidb
    seed: int
    by_hand: Callable[[str], object]
    limit: int = 0
    done: Counter[str] = field(default_factory=Counter)
    written: int = 0  # rows
    start_ts: int = 0

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._kinds = {f"{kind}_0": kind for kind in _KINDS if kind not in ("big", "long", "longer")}
        self._kinds["order"] = "text"  # a reserved word
        self._added_ts: dict[str, int] = {}
        self._evolved: set[str] = set()  # a JDBC sink adds them when it meets them
        self._gone: list[NamedTable] = []  # before each TRUNCATE

    def create(self) -> None:
        self.tidb.create_database(DATABASE)
        made = [NewColumn(name, _KINDS[kind].sql, nullable=True) for name, kind in self._kinds.items()]
        self.tidb.create_table(DATABASE, TABLE, (NewColumn("id", "bigint"), *made))
        self.start_ts = self.tidb.now()
        stored = "".join(f", {self._stored(name)} NULL" for name in self._kinds)
        self.by_hand(f"CREATE TABLE {TABLE} (id BIGINT PRIMARY KEY{stored})")

    @property
    def table(self) -> NamedTable:
        return self.tidb.tables[f"{DATABASE}.{TABLE}"]

    def run(self, stop: Event, rate: float) -> None:
        pace = RowRate(rate, stop)
        states: Iterator[object] = iter(())
        while not stop.is_set():
            rows = self._transact()
            self.written += rows
            is_altered = self.done.total() < self.limit
            pace.keep(rows if is_altered else _SLOWER * rows)  # on a slow machine there is not more to read in the end
            if self._rng.random() < 0.25:
                states = self._go_on(states)
        for _ in states:
            self._look()

    # --- rows ---

    def _transact(self) -> int:
        table, rows = self.table, self._rng.randint(1, 3)
        with self.tidb.begin() as txn:
            for pk in self._rng.sample(range(_KEYS), rows):
                others = [column for column in table.info.public if column.name != "id"]
                if txn.get(table, pk) is None:
                    txn.insert(table, {"id": pk} | {each.name: value_of(self._rng, each) for each in others})
                elif self._rng.random() < 0.25:
                    txn.delete(table, pk)
                else:
                    chosen = [each for each in others if self._rng.random() < 0.6]
                    txn.update(table, {"id": pk} | {each.name: value_of(self._rng, each) for each in chosen})
        return rows

    # --- DDLs ---

    def _go_on(self, states: Iterator[object]) -> Iterator[object]:
        """A DDL's next state, or the next DDL."""
        if next(states, None) is not None:
            self._look()
        elif self.done.total() < self.limit:
            return self._begin()
        return states

    def _look(self) -> None:
        """Whether sessions see another column now."""
        for column in self.table.info.public:
            self._added_ts.setdefault(column.name, self.tidb.last_ddl_ts if self.done else 0)

    def _begin(self) -> Iterator[object]:
        self._look()
        ddl = DDLS[self.done.total() % len(DDLS)]
        self.done[ddl] += 1
        match ddl:
            case "add a column":
                return self._add()
            case "add a column with a default":
                return self._add_with_default(nullable=self._rng.random() < 0.3)
            case "truncate":
                return self._truncate()
            case "widen a column":
                return self._widen()
            case _:
                return self._drop()

    def _add(self) -> Iterator[object]:
        name, kind = self._new_column()
        if kind.evolves:
            self._evolved.add(name)
        else:
            self.by_hand(f"ALTER TABLE {TABLE} ADD COLUMN {self._stored(name)}")
        return columns.add_column(self.tidb, self.table, NewColumn(name, kind.sql, nullable=True))

    def _add_with_default(self, nullable: bool) -> Iterator[object]:
        name, kind = self._new_column()
        default = self._default(name, kind.default)
        self.by_hand(f"ALTER TABLE {TABLE} ADD COLUMN {self._stored(name)} {_null(nullable)}{default}")
        return columns.add_column(
            self.tidb, self.table, NewColumn(name, kind.sql, nullable, kind.default), columns.FIRST
        )

    def _new_column(self) -> tuple[str, Kind]:
        kind = self._rng.choice([*_KINDS])
        name = f"{kind}_{self.done.total()}"
        self._kinds[name] = kind
        return name, _KINDS[kind]

    def _widen(self) -> Iterator[object]:
        known = [each for each in self.table.info.public if each.name in self._kinds and each.name not in self._evolved]
        old = self._rng.choice([each for each in known if _KINDS[self._kinds[each.name]].wider])
        self._kinds[old.name] = _KINDS[self._kinds[old.name]].wider
        default = self._default(old.name, old.default)
        self.by_hand(f"ALTER TABLE {TABLE} MODIFY COLUMN {self._stored(old.name)} {_null(old.nullable)}{default}")
        new = NewColumn(old.name, _KINDS[self._kinds[old.name]].sql, old.nullable, old.default)
        return columns.modify_column(self.tidb, self.table, old.name, new)

    def _drop(self) -> Iterator[object]:
        droppable = [each.name for each in self.table.info.public if each.name != "id"]
        assert len(droppable) > _LEAST_COLUMNS
        return columns.drop_column(self.tidb, self.table, self._rng.choice(droppable))

    def _truncate(self) -> Iterator[object]:
        self._gone.append(self.table)
        yield self.tidb.truncate_table(self.table)

    def _stored(self, name: str) -> str:
        kind = _KINDS[self._kinds[name]]
        return f"`{name}` {kind.stored or kind.sql}"

    def _default(self, name: str, default: str | None) -> str:
        if default is None:
            return ""
        quoted = "'" + default.replace("'", "''") + "'"
        return f" DEFAULT {_KINDS[self._kinds[name]].stored_default or quoted}"

    # --- what is to come of it ---

    def columns(self, protocol: str) -> dict[str, Reading]:
        """What Flink is to read them as; those that there are in the end."""
        kinds = {each.name: _KINDS[self._kinds.get(each.name, "big")] for each in self.table.info.public}
        return {name: kind.canal if protocol == "canal-json" else kind.debezium for name, kind in kinds.items()}

    def shown(self) -> dict[str, str]:
        """The expressions by which SQL has the upstream's values of a JDBC sink's table."""
        kinds = {each.name: _KINDS[self._kinds.get(each.name, "big")] for each in self.table.info.public}
        return {name: kind.shown.format(f"`{name}`") for name, kind in kinds.items()}

    def changes(self) -> list[CommittedChange]:
        """All of them, in order."""
        upto = self.tidb.now()
        return [c for table in (*self._gone, self.table) for c in self.tidb.history(table, self.start_ts, upto)]

    def by_table(self) -> State:
        """What a JDBC sink's table is to have: the upstream's rows, and those that were only truncated."""
        absent = {column.name: absent_value(column) for column in self.table.info.public}
        rows = {
            pk: {name: change.row.get(name, value) for name, value in absent.items()}
            for pk, change in self._last().items()
            if change.row is not None
        }
        there = self.upstream()
        assert {pk: rows[pk] for pk in there} == there
        return rows

    def by_flink(self, protocol: str) -> State:
        """The same for Flink, which has NULL where a column is younger than a row's last change."""
        readings = self.columns(protocol)

        def told(change: CommittedChange, name: str) -> Any:
            assert change.row is not None
            if change.row.get(name) is None or change.commit_ts <= self._added_ts[name]:
                return None
            return readings[name].meaning(change.row[name])

        return {pk: {name: told(change, name) for name in readings} for pk, change in self._last().items()}

    def upstream(self) -> State:
        return self.tidb.snapshot(self.table, self.tidb.now())

    def _last(self) -> dict[int, CommittedChange]:
        """Return the last change of each row that was not deleted, but perhaps truncated."""
        last: dict[int, CommittedChange] = {}
        for change in self.changes():
            if change.op == "delete":
                last.pop(change.pk, None)
            else:
                last[change.pk] = change
        return last


def _null(nullable: bool) -> str:
    return "NULL" if nullable else "NOT NULL"
