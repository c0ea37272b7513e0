"""Arguments that several verbs take."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated

from cyclopts import Parameter

from changefeed.errors import InvalidSpec
from changefeed.model import tso

AsJson = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object instead of text.")]
Namespace = Annotated[
    str | None, Parameter(name=["--namespace", "-n"], help="Namespace. Default: that of the kubeconfig context.")
]
Context = Annotated[str | None, Parameter(help="Kubeconfig context. Default: the current one.")]
Name = Annotated[str, Parameter(name="NAME", help="Name of the Changefeed.")]
Tables = Annotated[
    list[str] | None,
    Parameter(
        name="--table",
        negative="",
        help="Only tables that match this rule, as in spec.filter.rules; '!shop.other' excludes one. May be repeated.",
    ),
]
_ZONED = "ISO 8601 with a time zone, such as 2026-01-31T12:00:00Z"


def ts_of(text: str, field: str) -> int:
    """A ts in digits, or the first one of a time."""
    if text.isascii() and text.isdecimal():
        if int(text) > tso.MAX_TS:
            raise InvalidSpec(field, f"{text!r} is not a ts; allowed: a number below 2^64, or {_ZONED}")
        return int(text)
    return ts_of_time(text, field)


def ts_of_time(text: str, field: str) -> int:
    """The first ts of a time. Raises InvalidSpec."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidSpec(field, f"{text!r} is not a time; allowed: {_ZONED}") from None
    if moment.tzinfo is None:
        raise InvalidSpec(field, f"{text!r} has no time zone; allowed: {_ZONED}")
    found = tso.from_datetime(moment)
    if not 0 <= found <= tso.MAX_TS:
        raise InvalidSpec(field, f"{text!r} has no ts; allowed: from 1970 on")
    return found


def selects(rules: list[str] | None) -> Callable[[str, str], bool]:
    """Whether a table, by schema and name, is to be taken; a database's own DDLs have the name ""."""
    from changefeed.spec.filter.table_filter import BadRule, TableFilter

    given = rules or ["*.*"]
    try:
        chosen = TableFilter(["*.*", *given] if all(rule.startswith("!") for rule in given) else given)
    except BadRule as error:
        raise InvalidSpec("--table", str(error)) from None
    return lambda schema, name: chosen.matches(schema, name) if name else chosen.matches_schema(schema)
