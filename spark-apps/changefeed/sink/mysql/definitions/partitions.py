"""Partitions on both sides. Pure.

Rows are where they belong with any partitions, or with none; but what a DDL drops, empties or exchanges by a
partition's name must be the rows that the upstream's partition has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from changefeed.schema.sql.definition import HASH, KEY, LIST, RANGE, Partition, Partitioning
from changefeed.sink.mysql.definitions.found import FoundPartition

_METHODS = {RANGE: "RANGE", HASH: "HASH", LIST: "LIST", KEY: "KEY"}
_DEFAULT = "DEFAULT"
#: As which servers show it: MariaDB says 0 of a LIST, and MAXVALUE of a LIST COLUMNS.
_DEFAULTS = frozenset({_DEFAULT, "0", "MAXVALUE"})
_MIDNIGHT = (" 00:00:00.000000", " 00:00:00.000", " 00:00:00")


@dataclass(frozen=True)
class OtherPartitions:
    """How they differ; see `Difference`."""

    what: str
    is_harmless: bool = False
    may_be_left_out: bool = False


def partitions(
    upstream: Partitioning, found: Sequence[FoundPartition] | None, is_same: Callable[[str, str], bool | None]
) -> OtherPartitions | None:
    """None: there are none downstream, or they are the same. `is_same`: whether two expressions are; None: unknown."""
    if not found or upstream.type not in _METHODS:
        return None
    if (what := _other_method(upstream, found, is_same) or _other_values(upstream, found)) is not None:
        return OtherPartitions(what)
    return _other_names(upstream, found)


def _other_method(
    upstream: Partitioning, found: Sequence[FoundPartition], is_same: Callable[[str, str], bool | None]
) -> str | None:
    method = _METHODS[upstream.type] + (" COLUMNS" if upstream.columns and upstream.type != KEY else "")
    if method != found[0].method.removeprefix("LINEAR "):
        return f"its partitions are by {found[0].method} and not by {method}"
    by, there = upstream.expression or ",".join(upstream.columns), found[0].expression
    if not by or not there or _plain(by) == _plain(there):
        return None
    is_other = bool(upstream.columns) or is_same(by, there) is False
    return f"its partitions are by {there} and not by {by}" if is_other else None


def _other_values(upstream: Partitioning, found: Sequence[FoundPartition]) -> str | None:
    """Return how the values of a partition that both have differ."""
    there = {each.name.lower(): each for each in found}
    for one in upstream.partitions:
        given, other = _values(one), there.get(one.name.lower())
        if other is None or given == (values := _split(other.description)):
            continue
        is_default = _is_default(one, upstream.type) and set(values) <= _DEFAULTS
        is_call = any("(" in value for value in given)  # of which the server shows the result
        if not (is_default or is_call):
            return f"its partition {one.name} has {other.description} and not {', '.join(_shown(one))}"
    return None


def _other_names(upstream: Partitioning, found: Sequence[FoundPartition]) -> OtherPartitions | None:
    names, there = ([each.name.lower() for each in side] for side in (upstream.partitions, found))
    if names == there:
        return None
    what = f"its partitions are {', '.join(there)} and not {', '.join(names)}"
    more, less = set(there) - set(names), set(names) - set(there)
    if upstream.type in (HASH, KEY) or (more and less):
        return OtherPartitions(what)
    short, long = (names, there) if more else (there, names)
    # Whether rows of the surplus ones fit in none of the others, so that they are refused where these are not.
    is_apart = long[: len(short)] == short
    if upstream.type == LIST:
        defaults = {each.name.lower() for each in upstream.partitions if _is_default(each, LIST)}
        is_apart = not defaults & set(short)
    # Else they are in the next one there: what is dropped by its name downstream is never more.
    return OtherPartitions(what, is_harmless=bool(more) and is_apart, may_be_left_out=bool(more) or is_apart)


def _shown(partition: Partition) -> Iterable[str]:
    return partition.below or (", ".join(row) for row in partition.values)


def _values(partition: Partition) -> list[str]:
    """In any order, which LIST does not have."""
    given = partition.below or [value for row in partition.values for value in row]
    return sorted(_value(each) for each in given)


def _is_default(partition: Partition, type_: int) -> bool:
    """Whether it holds all values that no other one does."""
    return type_ == LIST and _values(partition) in ([], [_DEFAULT])


def _split(description: str) -> list[str]:
    """`10`, `'a','b'` or `(1,'a'),(2,'b')`."""
    found: list[str] = []
    text, is_text = "", False
    for letter in description:
        if letter == "'":
            is_text = not is_text
        if letter == "," and not is_text:
            found.append(text)
            text = ""
        elif is_text or letter not in "() ":
            text += letter
    return sorted(_value(each) for each in [*found, text] if each)


def _value(text: str) -> str:
    """Without what servers write otherwise: quotes, the time of a day's begin."""
    plain = text.strip("'\" ")
    for midnight in _MIDNIGHT:
        plain = plain.removesuffix(midnight)
    return plain.upper() if plain.upper() in ("MAXVALUE", _DEFAULT, "NULL") else plain


def _plain(text: str) -> str:
    return "".join(letter for letter in text.lower() if letter not in "`() ")
