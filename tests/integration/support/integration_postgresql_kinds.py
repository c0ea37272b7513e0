"""A table with a column of each of PostgreSQL's types, whose rows and columns change, and what its csv files must say.

Who writes rows of it puts into a journal, in the same transaction, what each of them is then by the server's own text.
So whatever the files have of the table at a ts must be what they have of the journal at that ts.
"""

from __future__ import annotations

import json
import random
import re
import struct
from base64 import b64decode
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import pg8000.native
from changefeed.upstream.postgresql.server import SETTINGS
from integration_postgresql import Postgresql
from integration_postgresql_bank import LOST, Change

KINDS, JOURNAL = "kinds", "journal"
_NULL = "\\N"
_LONG = 3_000  # characters that are put aside (TOAST), however they are compressed
_MOST_ROWS, _MOST_COLUMNS = 40, 90  # of these a row still fits a page
_WORDS = (
    "",
    " ",
    "a",
    "null",
    "NULL",
    "\\",
    "\\\\N",
    '"',
    '""',
    "'",
    ",",
    "a,b",
    "\n",
    "\r\n",
    "\t",
    "é",
    "李",
    "😀",
    "{}",
)
#: What two meet who change rows of one table.
_DEADLOCK = "40P01"
_AWAY_S = 0.1  # before a server that is away is asked again


Draw = Callable[[random.Random], str]


def _one_of(*texts: str) -> Draw:
    return lambda rng: rng.choice(texts)


def _whole(bits: int) -> Draw:
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1
    return lambda rng: str(rng.choice((least, most, 0, -1, rng.randint(least, most))))


def _float(rng: random.Random) -> str:
    return rng.choice(("NaN", "Infinity", "-Infinity", "-0", "1e-30", "3e38", repr(rng.uniform(-1e9, 1e9))))


def _numeric(whole: int, fraction: int) -> Draw:
    """One of so many digits ahead of the point and behind it."""

    def draw(rng: random.Random) -> str:
        digits = "".join(rng.choices("0123456789", k=rng.randint(1, whole + fraction)))
        most = "9" * whole + ("." + "9" * fraction if fraction else "")
        short = digits[-whole:] + (f".{digits[:fraction]}" if fraction else "")
        return rng.choice(("0", most, f"-{most}", short, f"-{short}"))

    return draw


def _free_numeric(rng: random.Random) -> str:
    known = ("NaN", "Infinity", "-Infinity", "0.000", f"1e{rng.randint(0, 400)}", f"1e-{rng.randint(0, 400)}")
    return rng.choice((*known, _numeric(300, 200)(rng)))


def _text(most: int) -> Draw:
    def draw(rng: random.Random) -> str:
        return "".join(rng.choices(_WORDS, k=rng.randint(0, 6)))[:most]

    return draw


def _long_text(rng: random.Random) -> str:
    if rng.random() < 0.8:
        return _text(100)(rng)
    return "".join(chr(rng.randint(0x20, 0x2FFF)) for _ in range(_LONG))


def _bytes(*sizes: int) -> Draw:
    return lambda rng: "\\x" + rng.randbytes(rng.choice(sizes)).hex()


def _bits(least: int, most: int) -> Draw:
    return lambda rng: "".join(rng.choices("01", k=rng.randint(least, most)))


def _document(rng: random.Random) -> str:
    values = [None, True, -1, 1.50, 10**30, _text(40)(rng), _long_text(rng), [], {}, {"b": [1, {"a": None}], "a": 2}]
    return json.dumps({"z": rng.choice(values), "a": rng.choice(values)}, ensure_ascii=rng.random() < 0.5)


def _array(of: Draw) -> Draw:
    """One- or two-dimensional, some with NULL, some not from 1 on."""

    def draw(rng: random.Random) -> str:
        texts = [_quoted(of(rng)) if rng.random() < 0.8 else "NULL" for _ in range(rng.randint(1, 4))]
        one = "{" + ",".join(texts) + "}"
        return rng.choice(("{}", one, "{" + one + "," + one + "}", f"[-1:{len(texts) - 2}]={one}"))

    return draw


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _pair(rng: random.Random) -> str:
    return f"({rng.choice(('', '7'))},{rng.choice(('', _quoted(_text(20)(rng))))})"


def _range(of: Draw, key: Callable[[str], Any]) -> Draw:
    def draw(rng: random.Random) -> str:
        low, high = sorted((of(rng), of(rng)), key=key)
        return rng.choice(("empty", "(,)", f"[{low},)", f'(,"{high}"]', f"[{low},{high}]"))

    return draw


_DATE = _one_of("0001-01-01", "9999-12-31", "2024-02-29", "1582-10-10", "1970-01-01")
_CLOCK = _one_of("00:00:00", "24:00:00", "23:59:59.999999", "12:30:00.5")
_STAMP = _one_of("0001-01-01 00:00:00", "9999-12-31 23:59:59", "2024-10-27 02:30:00.000001", "1969-12-31 23:59:59.9")
_ZONED = _one_of("0001-01-01 00:00:00+00", "9999-12-31 23:59:59+00", "2024-10-27 01:30:00.25+02", "1900-01-01 12:00-07")
_BEYOND = _one_of(
    "infinity", "-infinity", "4713-01-01 00:00:00 BC", "0044-03-15 12:00:00.1 BC", "294276-12-31 23:59:59"
)
_SPAN = _one_of("0", "1 year 2 mons -3 days 04:05:06.000007", "-178000000 years", "-00:00:00.000001", "1 mon -1 day")
_POINT = _one_of("(0,0)", "(1.5,-2)", "(NaN,1e300)", "(Infinity,-0)")

#: By the name that the server has for a type: texts of values.
DRAWS: dict[str, Draw] = {
    "boolean": _one_of("t", "f"),
    '"char"': _one_of("", "x", '"', ","),
    "smallint": _whole(16),
    "integer": _whole(32),
    "bigint": _whole(64),
    "oid": _one_of("0", "1", "4294967295"),
    "real": _float,
    "double precision": lambda rng: rng.choice((_float(rng), "5e-324", "1.7976931348623157e308")),
    "numeric": _free_numeric,
    "numeric(10,2)": _numeric(8, 2),
    "numeric(65,30)": _numeric(35, 30),
    "numeric(70,35)": lambda rng: rng.choice((_numeric(35, 35)(rng), "NaN")),
    "numeric(5,-2)": _one_of("0", "9999900", "-9999900", "-49", "150.5"),
    "numeric(3,5)": _one_of("0", "0.00999", "-0.00999", "0.00001"),
    "character varying(30)": _text(30),
    "character varying(20000)": _long_text,
    "character varying": _long_text,
    "character(5)": _text(5),
    "character(300)": _text(300),
    "name": _text(15),
    "text": _long_text,
    "uuid": lambda rng: f"{rng.getrandbits(128):032x}",
    "bytea": _bytes(0, 1, 7, _LONG),
    "date": _DATE,
    "timestamp without time zone": _STAMP,
    "timestamp(3) without time zone": _STAMP,
    "timestamp with time zone": _ZONED,
    "timestamp(0) with time zone": _one_of("0001-01-01 00:00:00.4+00", "2024-10-27 01:30:00.5+02"),
    "time without time zone": _CLOCK,
    "time(0) without time zone": _CLOCK,
    "time with time zone": _one_of("00:00:00+15:59:59", "24:00:00-15:59", "12:00:00.5+02"),
    "interval": _SPAN,
    "interval(0)": _SPAN,
    "bit(9)": _bits(9, 9),
    "bit(64)": _bits(64, 64),
    "bit(70)": _bits(70, 70),
    "bit varying": _bits(0, 90),
    "json": _document,
    "jsonb": _document,
    "jsonpath": _one_of("$", '$.a[*] ? (@ > 1)."b"'),
    "xml": _one_of("<a/>", "<a b='\"'>&lt;, ü</a>", ""),
    "money": _one_of("0", "-92233720368547758.08", "1234567.89"),
    "inet": _one_of("10.0.0.1", "10.0.0.1/8", "::1", "::ffff:1.2.3.4/96"),
    "cidr": _one_of("10.0.0.0/8", "::/0"),
    "macaddr": _one_of("08:00:2b:01:02:03"),
    "macaddr8": _one_of("08:00:2b:ff:fe:01:02:03"),
    "point": _POINT,
    "line": _one_of("{1,-1,0}", "{0,1,1e-5}"),
    "lseg": lambda rng: f"[{_POINT(rng)},{_POINT(rng)}]",
    "box": _one_of("(1,2),(-3,0.1)"),
    "path": _one_of("((0,0),(1,1.5))", "[(0,0),(1,1),(2,0)]"),
    "polygon": _one_of("((0,0),(1,1),(2,0))"),
    "circle": _one_of("<(1,2),3.5>"),
    "tsvector": _one_of("", "'a':1A,3 'b c':2", "'it''s'"),
    "tsquery": _one_of("'a' & !'b'", "'a' <-> 'b c'"),
    "pg_lsn": _one_of("0/0", "FFFFFFFF/FFFFFFFF"),
    "xid": _one_of("0", "4294967295"),
    "xid8": _one_of("0", "18446744073709551615"),
    "tid": _one_of("(0,1)", "(4294967295,65535)"),
    "int4range": _range(_one_of("-2147483648", "-1", "0", "5"), int),
    "numrange": _range(_one_of("-1e10", "0.5", "1e30"), float),
    "daterange": _range(_one_of("0044-03-15 BC", "infinity"), lambda text: text == "infinity"),
    "tstzrange": _range(_one_of("-infinity", "infinity"), lambda text: text == "infinity"),
    "int4multirange": _one_of("{}", "{[1,3),[5,8)}", "{(,)}"),
    "tsmultirange": _one_of("{}", '{["0044-03-15 12:00:00 BC",infinity)}'),
    "integer[]": _array(_whole(32)),
    "text[]": _array(_text(20)),
    "numeric[]": _array(_free_numeric),
    "bytea[]": _array(_bytes(0, 1, 7)),
    "timestamp with time zone[]": _array(_BEYOND),
    "date[]": _array(_one_of("infinity", "0044-03-15 BC")),
    "jsonb[]": _array(_document),
    "bank.mood": _one_of("glad", "sad, or so"),
    "bank.mood[]": _array(_one_of("glad", "sad, or so")),
    "bank.pair": _pair,
    "bank.pair[]": _array(_pair),
    "bank.positive": _one_of("1", "2147483647"),
    "bank.more": _one_of("11", "2147483647"),
    "bank.price": _one_of("0.00", "-12345678.90"),
    "public.hstore": _one_of("", '"a"=>NULL', '"a b"=>"1, \\"2\\"", "é"=>"=>"'),
}  # fmt: skip
#: What a column may become.
_RETYPED = {
    "smallint": "integer",
    "integer": "bigint",
    "bigint": "numeric",
    "real": "double precision",
    "numeric(10,2)": "numeric(65,30)",
    "character varying(30)": "text",
    "character(5)": "character varying(30)",
    "date": "timestamp without time zone",
    "timestamp without time zone": "timestamp(3) without time zone",
    "bit(9)": "bit varying",
    "json": "jsonb",
    "bank.mood": "text",
}
_TYPES = (
    "CREATE EXTENSION hstore",
    "CREATE TYPE bank.mood AS ENUM ('glad', 'sad, or so')",
    "CREATE TYPE bank.pair AS (a int, b text)",
    "CREATE DOMAIN bank.positive AS int CHECK (VALUE > 0)",
    "CREATE DOMAIN bank.more AS bank.positive CHECK (VALUE > 10)",
    "CREATE DOMAIN bank.price AS numeric(10, 2)",
    f"CREATE TABLE bank.{JOURNAL} (n bigserial PRIMARY KEY, writer text, id int, line text)",
    f"ALTER TABLE bank.{JOURNAL} REPLICA IDENTITY FULL",
)
#: An empty one is NULL, an empty text has quotes; within quotes, quotes and backslashes are doubled.
_FIELD = re.compile(r'"(?P<quoted>(?:[^"]|"")*)"|(?P<plain>[^,]*)')
_COLUMNS = (
    "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped "
    f"AND attrelid = 'bank.{KINDS}'::regclass ORDER BY attnum"
)
_TOUCH = (
    f"WITH touched AS (UPDATE bank.{KINDS} k SET {{}} WHERE {{}} RETURNING id, (k.*)::text AS line) "
    f"INSERT INTO bank.{JOURNAL} (writer, id, line) SELECT '{{}}', id, line FROM touched"
)


def make_kinds(database: Postgresql) -> list[str]:
    """Makes the tables, before the publication; which types the server lacks."""
    with suppress(pg8000.native.DatabaseError):
        database.query(_TYPES[0])
    database.query(*_TYPES[1:])
    lacking = []
    for type_ in DRAWS:
        try:
            database.query(f"SELECT {_literal(DRAWS[type_](random.Random(0)))}::{type_} IS NULL")
        except pg8000.native.DatabaseError:
            lacking.append(type_)
    columns = (f"c{number} {type_}" for number, type_ in enumerate(DRAWS) if type_ not in lacking)
    database.query(
        f"CREATE TABLE bank.{KINDS} (id int PRIMARY KEY, v int NOT NULL, {', '.join(columns)})",
        f"ALTER TABLE bank.{KINDS} REPLICA IDENTITY FULL",
        f"ALTER TABLE bank.{KINDS} ALTER COLUMN c{list(DRAWS).index('text')} SET STORAGE EXTERNAL",
    )
    return lacking


def _literal(text: str | None) -> str:
    return "NULL" if text is None else "'" + text.replace("'", "''") + "'"


def _session(database: Postgresql) -> Any:
    """One to whom values are what they are to the product."""
    return database.connect(startup_params=dict(SETTINGS))


class _Writer:
    """Does one thing after the other until it is stopped. A server that is away is asked again."""

    def __init__(self, database: Postgresql, rng: random.Random, say: Callable[[str], None]) -> None:
        self._database, self._rng, self._say = database, rng, say
        self._number = 0
        self.done: Counter[str] = Counter()

    def run(self, stop: Event, longest_pause_s: float) -> None:
        while not stop.is_set():
            try:
                with _session(self._database) as connection:
                    while not stop.wait(self._rng.uniform(0, longest_pause_s)):
                        self._one(connection)
            except LOST as error:
                self._check(error)
                stop.wait(_AWAY_S)

    def _one(self, connection: Any) -> None:
        raise NotImplementedError

    def _check(self, error: Exception) -> None:
        """What has been asked for was no mistake."""
        said = error.args[0] if error.args else None
        code = said.get("C", "") if isinstance(said, dict) else ""
        if code and not code.startswith("57P") and code != _DEADLOCK:
            raise error
        self._say(f"{type(self).__name__}: {str(error)[:160]}")


class KindsWriter(_Writer):
    """Inserts, updates, renumbers and deletes a few rows in each transaction; some are rolled back, in part too."""

    def _one(self, connection: Any) -> None:
        rng = self._rng
        connection.run("BEGIN")
        connection.run(f"LOCK TABLE bank.{KINDS} IN ROW EXCLUSIVE MODE")
        types = dict(connection.run(_COLUMNS))
        before = {id_ for (id_,) in connection.run(f"SELECT id FROM bank.{KINDS}")}
        touched: set[int] = set()
        is_in_part = rng.random() < 0.1
        for number in range(rng.randint(1, 3)):
            if is_in_part and number:
                connection.run("SAVEPOINT s")
                self._step(connection, types)
                connection.run("ROLLBACK TO s")
            else:
                touched |= self._step(connection, types)
        ids = ", ".join(map(str, sorted(touched))) or "NULL"
        connection.run(
            f"INSERT INTO bank.{JOURNAL} (writer, id, line) "
            f"SELECT 'kinds', id, (k.*)::text FROM bank.{KINDS} k WHERE id IN ({ids})"
        )
        there = {id_ for (id_,) in connection.run(f"SELECT id FROM bank.{KINDS} WHERE id IN ({ids})")}
        for id_ in sorted((touched & before) - there):
            connection.run(f"INSERT INTO bank.{JOURNAL} (writer, id) VALUES ('kinds', {id_})")
        is_kept = rng.random() < 0.9
        connection.run("COMMIT" if is_kept else "ROLLBACK")
        self.done["commits"] += is_kept

    def _step(self, connection: Any, types: dict[str, str]) -> set[int]:
        """One change; the rows that are other ones by it."""
        rng = self._rng
        ids = [id_ for (id_,) in connection.run(f"SELECT id FROM bank.{KINDS} ORDER BY id")]
        values = [name for name in types if name not in ("id", "v")]
        if len(ids) < 3 or (len(ids) < _MOST_ROWS and rng.random() < 0.3):
            self._number += 1
            texts = [_literal(self._draw(types[name])) for name in values]
            columns = ", ".join(["id", "v", *values])
            connection.run(
                f"INSERT INTO bank.{KINDS} ({columns}) VALUES ({', '.join([str(self._number), '0', *texts])})"
            )
            return {self._number}
        id_ = rng.choice(ids)
        kind = rng.random()
        if kind < 0.15:
            connection.run(f"DELETE FROM bank.{KINDS} WHERE id = {id_}")
            return {id_}
        if kind < 0.3 and -id_ not in ids:
            connection.run(f"UPDATE bank.{KINDS} SET id = -id, v = v + 1 WHERE id = {id_}")
            return {id_, -id_}
        chosen = rng.sample(values, rng.choice((0, 1, 5, len(values))))  # of others, what is large stays where it is
        sets = ", ".join(["v = v + 1", *(f"{name} = {_literal(self._draw(types[name]))}" for name in chosen)])
        connection.run(f"UPDATE bank.{KINDS} SET {sets} WHERE id = {id_}")
        return {id_}

    def _draw(self, type_: str) -> str | None:
        return None if self._rng.random() < 0.15 else DRAWS[type_](self._rng)


class KindsBuilder(_Writer):
    """Adds, drops, renames and retypes columns of the table, and empties it."""

    _types: tuple[str, ...] = ()  # that it had in the beginning

    def _one(self, connection: Any) -> None:
        steps = (self._add, self._add, self._drop, self._rename, self._retype, self._grow, self._empty)
        step: Callable[[Any], list[str]] = self._rng.choice(
            [step for step in steps if not self.done[step.__name__]] or steps
        )
        self._number += 1
        if not (statements := step(connection)):
            return
        is_one = step in (self._grow, self._empty)  # a new name of an enum is nothing before its commit
        if self._rng.random() < 0.5 and not is_one:
            statements = ["BEGIN", *statements, "COMMIT"]
        for statement in statements:
            connection.run(statement)
        self.done[step.__name__] += 1

    def _columns(self, connection: Any, known: Callable[[str], bool]) -> list[tuple[str, str]]:
        found = [(name, type_) for name, type_ in connection.run(_COLUMNS) if name not in ("id", "v")]
        return [(name, type_) for name, type_ in found if known(type_)]

    def _touched(self, sets: str = "v = v + 1", where: str = "true") -> str:
        return _TOUCH.format(sets, where, "builder")

    def _add(self, connection: Any) -> list[str]:
        columns = self._columns(connection, lambda _: True)
        self._types = self._types or tuple(type_ for _, type_ in columns)
        if len(columns) > _MOST_COLUMNS:
            return []
        type_ = self._rng.choice(self._types)
        text = _literal(DRAWS[type_](self._rng))
        default = f"DEFAULT {text}" if self._rng.random() < 0.3 else ""
        name = f"x{self._number}"
        where = f"id % 3 = {self._number % 3}"
        return [
            f"ALTER TABLE bank.{KINDS} ADD COLUMN {name} {type_} {default}",
            self._touched(f"v = v + 1, {name} = {text}", where),
        ]

    def _drop(self, connection: Any) -> list[str]:
        names = [name for name, _ in self._columns(connection, lambda _: True) if name.startswith("x")]
        if not names:
            return []
        return [f"ALTER TABLE bank.{KINDS} DROP COLUMN {self._rng.choice(names)}", self._touched(where="id % 4 = 0")]

    def _rename(self, connection: Any) -> list[str]:
        name, _ = self._rng.choice(self._columns(connection, lambda _: True))
        return [
            f"ALTER TABLE bank.{KINDS} RENAME COLUMN {name} TO x{self._number}",
            self._touched(where="id % 4 = 1"),
        ]

    def _retype(self, connection: Any) -> list[str]:
        columns = self._columns(connection, lambda type_: type_ in _RETYPED)
        if not columns:
            return []
        name, type_ = self._rng.choice(columns)
        to = _RETYPED[type_]
        return [f"ALTER TABLE bank.{KINDS} ALTER COLUMN {name} TYPE {to} USING {name}::{to}", self._touched()]

    def _grow(self, connection: Any) -> list[str]:
        """An enum gets a name, ahead of others."""
        moods = [name for name, _ in self._columns(connection, lambda type_: type_ == "bank.mood")]
        name = f"mood {self._number}"
        sets = ", ".join(["v = v + 1", *(f"{mood} = '{name}'" for mood in moods)])
        return [
            f"ALTER TYPE bank.mood ADD VALUE '{name}' BEFORE 'glad'",
            self._touched(sets, "id % 5 = 2"),
        ]

    def _empty(self, connection: Any) -> list[str]:
        row = f"INSERT INTO bank.{KINDS} (id, v) VALUES ({1_000_000 + self._number}, 0)"
        return ["BEGIN", f"TRUNCATE bank.{KINDS}", row, self._touched(), "COMMIT"]


def touch_all(database: Postgresql) -> None:
    """A change of each row that is there, as the table is defined now."""
    with _session(database) as connection:
        connection.run(_TOUCH.format("v = v + 1", "true", "end"))


# What the files must say.


class Files:
    """What csv files have of the table, by ts: of each row its cells with their types, or None where it is deleted."""

    def __init__(self, lake: Path, found: list[Change]) -> None:
        self._types: dict[int, dict[str, str]] = {}
        for path in (lake / "bank" / KINDS / "meta").glob("schema_*.json"):
            schema = json.loads(path.read_text())
            self._types[schema["TableVersion"]] = {
                each["ColumnName"]: each["ColumnType"] for each in schema["TableColumns"]
            }
        self.of_table = [change for change in found if change.table == KINDS]
        self.of_journal = [change for change in found if change.table == JOURNAL]
        self.compared = 0  # cells

    def faults(self) -> Iterator[str]:
        """Where the files have another row of the table than the journal at that ts."""
        said: defaultdict[int, dict[str, str]] = defaultdict(dict)
        for change in self.of_journal:
            row = dict(change.row)
            said[change.ts][row["id"]] = row["line"]
        done: defaultdict[int, dict[str, Change]] = defaultdict(dict)
        for change in self.of_table:
            if change.op:
                done[change.ts][change.key] = change
        for ts in sorted(said.keys() | done.keys()):
            if said[ts].keys() != done[ts].keys():
                yield f"at {ts} the rows {sorted(done[ts])} were changed, not {sorted(said[ts])}"
                continue
            for key, change in done[ts].items():
                yield from self._compared(change, said[ts][key])

    def _compared(self, change: Change, line: str) -> Iterator[str]:
        where = f"row {change.key} at {change.ts}"
        if (line == _NULL) != (change.op == "D"):
            yield f"{where} has {change.op}, and was {line[:80]}"
        elif change.op != "D":
            yield from self.differences(where, dict(change.row), change.version, line)

    def differences(self, where: str, row: dict[str, str], version: int, line: str) -> Iterator[str]:
        texts = list(fields(line))
        if len(texts) != len(row):
            yield f"{where} has {len(row)} columns, not {len(texts)}"
            return
        self.compared += len(row)
        for (name, cell), text in zip(row.items(), texts, strict=True):
            type_ = self._types[version][name]
            if not is_same(type_, cell, text):
                yield f"{where}: {name} {type_} is {cell[:80]!r}, not {text if text is None else text[:80]!r}"

    def gaps(self, database: Postgresql) -> list[str]:
        """By writer, what the files lack though they have later ones: it writes one transaction after the other."""
        here = {dict(change.row)["n"] for change in self.of_journal}
        gaps = []
        for (writer,) in database.query(f"SELECT DISTINCT writer FROM bank.{JOURNAL}"):
            numbers = database.query(f"SELECT n FROM bank.{JOURNAL} WHERE writer = '{writer}' ORDER BY n")
            are_here = [str(n) in here for (n,) in numbers]
            if are_here != sorted(are_here, reverse=True):
                gaps.append(f"{writer}: of {len(are_here)} there are {sum(are_here)}, and they are not the first ones")
        return gaps

    def newest(self) -> dict[str, Change]:
        """By key, what is there in the end."""
        rows: dict[str, Change] = {}
        for change in self.of_table:
            if not change.op:
                rows.clear()
            elif change.op == "D":
                del rows[change.key]
            else:
                rows[change.key] = change
        return rows

    def against(self, database: Postgresql) -> list[str]:
        """What differs from what the server has now."""
        with _session(database) as connection:
            there = {str(id_): line for id_, line in connection.run(f"SELECT id, (k.*)::text FROM bank.{KINDS} k")}
        here = self.newest()
        if here.keys() != there.keys():
            return [f"the rows {sorted(here)} are there, not {sorted(there)}"]
        return [
            fault
            for key, line in there.items()
            for fault in self.differences(f"row {key}", dict(here[key].row), here[key].version, line)
        ]


def fields(line: str) -> Iterator[str | None]:
    """Those of a row as PostgreSQL writes it."""
    body, at = line[1:-1], 0
    while at <= len(body):
        found = _FIELD.match(body, at)
        assert found is not None
        if found["quoted"] is not None:
            yield found["quoted"].replace('""', '"').replace("\\\\", "\\")
        else:
            yield found["plain"] or None
        at = found.end() + 1


def is_same(type_: str, cell: str, text: str | None) -> bool:
    """Whether a cell of a csv file, of a column of such a type, is the server's text; None: it is NULL."""
    if text is None or cell == _NULL:
        return text is None and cell == _NULL
    match type_.split("(")[0].split()[0]:
        case "TINYINT":
            return cell == {"t": "1", "f": "0"}[text]
        case "BIT":
            return int(cell) == int(text, 2)
        case "FLOAT":
            return _bits_of("f", cell) == _bits_of("f", text)
        case "DOUBLE":
            return _bits_of("d", cell) == _bits_of("d", text)
        case "DATETIME" | "TIMESTAMP" | "TIME":
            return _without_zeros(cell) == _without_zeros(text.removesuffix("+00"))
        case "BLOB" | "LONGBLOB":
            return b64decode(cell) == bytes.fromhex(text.removeprefix("\\x"))
    return cell == text


def _bits_of(kind: str, text: str) -> bytes:
    return struct.pack(kind, float(text))


def _without_zeros(text: str) -> str:
    return text.rstrip("0").removesuffix(".") if "." in text else text
