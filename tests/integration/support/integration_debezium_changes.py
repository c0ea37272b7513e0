"""The transactions of a PostgreSQL as Debezium tells them and as canal-json files do, in one form that can be compared.

Debezium tells each change, the files each row's in a transaction once: so several of one row are made one
(`told_by_debezium`). A value is brought into one form from both, by what Debezium's schema says of its column:

| type of Debezium | of Debezium | of the files |
| --- | --- | --- |
| boolean | true, false | 1, 0 |
| int16, int32, int64, Json, Uuid, Enum | as it is | the same as text |
| string | as it is; a NaN is NAN, and a negative scale 2046 digits | as it is; money with $ and commas |
| float, double, also as strings (NaN) | the number | its text, to the nearest |
| Date | days since 1970 | ISO 8601 |
| Timestamp, MicroTimestamp | ms, µs since 1970 | ISO 8601 without a zone |
| ZonedTimestamp | ISO 8601 | the same in UTC, without a zone |
| Time, MicroTime | ms, µs | hours, minutes and seconds |
| ZonedTime | in UTC | with the offset that was written |
| Interval | ISO 8601 with all parts | ISO 8601 without those that are 0 |
| Bits | bytes, the lowest first | a number; above 64 bits and of varbit, the bits |
| Point | x and y | (x,y) |
| array | a list | {...} as PostgreSQL writes it |
| bytes of a bytea | base64 | a character each |
| bytes of other types | base64 of a text | the text; of geometric types by its numbers, which Java writes otherwise |
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from changefeed.schema.ddl.actions import Action

Row = dict[str, Any]
Tables = dict[tuple[str, str], Row]  # by table and id
_EPOCH = datetime(1970, 1, 1)
_LONGEST_NUMBER = 64
_NUMBER = re.compile(r"[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?")
_GEOMETRIC = re.compile(r"[][(){}<>,.0-9eE+-]*[][(){}<>][][(){}<>,.0-9eE+-]*")
_MONEY, _PART = re.compile(r"-?[$][0-9,]+[.][0-9]{2}"), re.compile(r"(-?[0-9.]+)([A-Z])")
_ZEROS = f".{2046 * '0'}"
_OF_ARRAY = re.compile(r'[{},]|"((?:[^"\\]|\\.)*)"|[^{},"]+')


class Form(NamedTuple):
    """How a column's values get their form: of Debezium's, and of the files' texts."""

    theirs: Callable[[Any], Any]
    ours: Callable[[str], Any]


Forms = dict[tuple[str, str], Form]  # by table and column


@dataclass
class Transaction:
    """`truncated`: the table that is emptied; nothing else is in it then. `rows`: by table and id: before and after."""

    truncated: str = ""
    rows: dict[tuple[str, str], tuple[Row | None, Row | None]] = field(default_factory=dict)


def told_by_debezium(changes: Path, leave_out: str) -> tuple[list[Transaction], Forms]:
    """In the order of their commits, without those of a table."""
    found: dict[int, list[Transaction]] = {}
    forms: Forms = {}
    for message in _messages(changes):
        told, table = message["payload"], message["payload"]["source"]["table"]
        if table == leave_out:
            continue
        parts = found.setdefault(told["source"]["txId"], [Transaction()])
        if told["op"] == "t":
            for key in [key for key in parts[-1].rows if key[0] == table]:
                del parts[-1].rows[key]
            parts.insert(0, Transaction(truncated=table))
            continue
        before, after = _rows(message, table, forms)
        key = table, (after or before or {})["id"]
        first, last = parts[-1].rows.pop(key, (before, after))
        del last
        if first is not None or after is not None:
            parts[-1].rows[key] = first, after
    return [part for parts in found.values() for part in parts if part.truncated or part.rows], forms


def _messages(path: Path) -> Iterator[dict[str, Any]]:
    with path.open() as lines:
        yield from map(json.loads, lines)


def _rows(message: dict[str, Any], table: str, forms: Forms) -> list[Row | None]:
    sides = {side["field"]: side for side in message["schema"]["fields"] if side["field"] in ("before", "after")}
    found: list[Row | None] = []
    for name in ("before", "after"):
        row = message["payload"][name]
        if row is None:
            found.append(None)
            continue
        here = {column["field"]: form_of(column) for column in sides[name]["fields"]}
        forms.update({(table, column): form for column, form in here.items()})
        found.append({column: None if value is None else here[column].theirs(value) for column, value in row.items()})
    return found


def told_by_files(lake: Path, leave_out: str, forms: Forms) -> list[Transaction]:
    """As `told_by_debezium`, of canal-json files with TiDB's extension."""
    found: dict[int, Transaction] = {}
    for folder in (lake / "bank").iterdir():
        if folder.name == leave_out:
            continue
        for path in (folder / "meta").glob("schema_*.json"):
            schema = json.loads(path.read_text())
            if schema["Type"] == Action.TRUNCATE_TABLE:
                assert schema["TableVersion"] not in found
                found[schema["TableVersion"]] = Transaction(truncated=folder.name)
        for path in folder.rglob("CDC*.json"):
            for message in _messages(path):
                told, (row,) = message["type"], message["data"]
                before = row if told == "DELETE" else message["old"] and message["old"][0]
                sides = [_of_texts(side, folder.name, forms) for side in (before, None if told == "DELETE" else row)]
                transaction = found.setdefault(message["_tidb"]["commitTs"], Transaction())
                assert not transaction.truncated
                assert (folder.name, row["id"]) not in transaction.rows, message
                transaction.rows[folder.name, row["id"]] = sides[0], sides[1]
    return [found[ts] for ts in sorted(found)]


def rows_after(transactions: list[Transaction]) -> Tables:
    """The tables that they lead to; fails where a row is not as a change has it before."""
    found: Tables = {}
    for transaction in transactions:
        for key in [key for key in found if key[0] == transaction.truncated]:
            del found[key]
        for key, (before, after) in transaction.rows.items():
            assert found.pop(key, None) == before, key
            if after is not None:
                found[key] = after
    return found


def differences(ours: Tables, theirs: Tables) -> list[tuple[tuple[str, str], str, Any, Any]]:
    """Row, column, what it is here, and there."""
    found = []
    for key in ours.keys() | theirs.keys():
        here, there = ours.get(key, {}), theirs.get(key, {})
        names = here.keys() | there.keys()
        found += [(key, name, here.get(name), there.get(name)) for name in names if here.get(name) != there.get(name)]
    return found


def _of_texts(row: dict[str, str | None] | None, table: str, forms: Forms) -> Row | None:
    if row is None:
        return None
    return {name: None if text is None else forms[table, name].ours(text) for name, text in row.items()}


def form_of(column: dict[str, Any]) -> Form:
    """By a column's schema of Connect."""
    if column["type"] == "array":
        items = form_of(column["items"])
        return Form(
            lambda value: _each(items.theirs, value),
            lambda text: _each(items.ours, _elements(text)),
        )
    name = column.get("name", "").rpartition(".")[2]
    if name == "Bits":
        return Form(lambda value: int.from_bytes(base64.b64decode(value), "little"), _bits(column))
    return _FORMS[name if name in _FORMS else column["type"]]


def _each(form: Callable[[Any], Any], values: Any) -> Any:
    return [None if value is None else form(value) for value in values]


def _elements(text: str) -> list[Any]:
    """The elements of an array, each as text or None, or a list."""
    open_lists: list[list[Any]] = [[]]
    for token in _OF_ARRAY.finditer(text):
        match token[0]:
            case "{":
                open_lists.append([])
            case "}":
                closed = open_lists.pop()
                open_lists[-1].append(closed)
            case ",":
                pass
            case _ if token[1] is not None:
                open_lists[-1].append(re.sub(r"\\(.)", r"\1", token[1]))
            case unquoted:
                open_lists[-1].append(None if unquoted == "NULL" else unquoted)
    ((whole,),) = open_lists
    return list(whole)


def _bits(column: dict[str, Any]) -> Callable[[str], int]:
    is_number = int(column["parameters"]["length"]) <= _LONGEST_NUMBER
    return lambda text: int(text, 10 if is_number else 2)


def _interval(text: str) -> dict[str, float]:
    """By its units; those of a clock begin with T."""
    days, _, clock = text.removeprefix("P").partition("T")
    parts = _PART.findall(days) + [(number, f"T{unit}") for number, unit in _PART.findall(clock)]
    return {unit: float(number) for number, unit in parts if float(number)}


def _plain(text: str) -> str:
    """What both say of numeric and money; other text as it is."""
    if _MONEY.fullmatch(text):
        return re.sub("[$,]", "", text)
    return "NaN" if text == "NAN" else text.removesuffix(_ZEROS)


def _moment(since_epoch: timedelta) -> str:
    return (_EPOCH + since_epoch).isoformat(" ", "microseconds")


def _in_utc(text: str) -> str:
    return datetime.fromisoformat(text).astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


def _micros(text: str) -> int:
    """What a clock shows, which may be 24:00:00."""
    hours, minutes, seconds = text.split(":")
    whole, _, fraction = seconds.partition(".")
    return ((int(hours) * 60 + int(minutes)) * 60 + int(whole)) * 1_000_000 + int(fraction.ljust(6, "0"))


def _time_in_utc(text: str) -> str:
    moment = datetime.combine(date(2000, 1, 2), time.fromisoformat(text))
    return moment.astimezone(UTC).time().isoformat("microseconds")


def _by_numbers(text: str) -> str:
    if _GEOMETRIC.fullmatch(text) is None:
        return text
    return _NUMBER.sub(lambda number: repr(float(number[0])), text)


def _same(value: Any) -> str:
    return str(value)


def _point(text: str) -> tuple[float, ...]:
    return tuple(float(number) for number in text.strip("()").split(","))


#: By the last part of Debezium's semantic type, or else Connect's type.
_FORMS: dict[str, Form] = {
    "boolean": Form(lambda value: str(int(value)), _same),
    **dict.fromkeys(("int16", "int32", "int64"), Form(_same, _same)),
    "string": Form(_plain, _plain),
    "Interval": Form(_interval, _interval),
    "float": Form(lambda value: repr(np.float32(value)), lambda text: repr(np.float32(text))),
    "double": Form(lambda value: repr(float(value)), lambda text: repr(float(text))),
    "Date": Form(lambda days: (_EPOCH.date() + timedelta(days)).isoformat(), _same),
    "Timestamp": Form(
        lambda ms: _moment(timedelta(milliseconds=ms)), lambda text: _moment(datetime.fromisoformat(text) - _EPOCH)
    ),
    "MicroTimestamp": Form(
        lambda us: _moment(timedelta(microseconds=us)), lambda text: _moment(datetime.fromisoformat(text) - _EPOCH)
    ),
    "ZonedTimestamp": Form(_in_utc, lambda text: _in_utc(f"{text}+00:00")),
    "Time": Form(lambda ms: ms * 1000, _micros),
    "MicroTime": Form(int, _micros),
    "ZonedTime": Form(_time_in_utc, _time_in_utc),
    "Point": Form(lambda value: (value["x"], value["y"]), _point),
    "bytes": Form(
        lambda value: _by_numbers(base64.b64decode(value).decode("latin-1")),
        _by_numbers,
    ),
}
