"""Partitions in CREATE TABLE, and the statements that lead from some to others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from changefeed.errors import ExecuteByHand
from changefeed.schema.ddl.actions import Action
from changefeed.schema.sql.definition import HASH, KEY, LIST, RANGE, Partition, Partitioning
from changefeed.schema.sql.dialect import Dialect
from changefeed.schema.sql.text import expression, listed, literal, quoted

_COUNTED = (HASH, KEY)
_NAMES = {RANGE: "RANGE", HASH: "HASH", LIST: "LIST", KEY: "KEY"}


def partitioning_text(of: Partitioning, dialect: Dialect) -> str:
    """PARTITION BY and all partitions. Raises ExecuteByHand for what is not known, here or to the server."""
    if of.type not in _NAMES:
        raise ExecuteByHand(f"The partitions are of kind {of.type}, which is not known.")
    method = _NAMES[of.type]
    if of.type == KEY:
        by = f"{method} {listed(of.columns)}"
    elif of.columns:
        by = f"{method} COLUMNS {listed(of.columns)}"
    else:
        by = f"{method} ({expression(of.expression, 'PARTITION BY')})"
    if of.type in _COUNTED and _are_plain(of.partitions):
        return f"PARTITION BY {by} PARTITIONS {len(of.partitions)}"
    return f"PARTITION BY {by} {_listed(of, of.partitions, dialect)}"


def changes(before: Partitioning | None, after: Partitioning | None, action: int, dialect: Dialect) -> list[str]:
    """Clauses of an ALTER TABLE each. `action`: the job's type, which says what was done to partitions of new ids."""
    if after is None:
        return [] if before is None else ["REMOVE PARTITIONING"]
    if before is None or action == Action.ALTER_TABLE_PARTITIONING or before.method != after.method:
        return [partitioning_text(after, dialect)]
    old, new = {each.id for each in before.partitions}, {each.id for each in after.partitions}
    gone = [each for each in before.partitions if each.id not in new]
    come = [each for each in after.partitions if each.id not in old]
    if not gone and not come:
        return []
    if action == Action.TRUNCATE_TABLE_PARTITION:
        return [f"TRUNCATE PARTITION {_names(come)}"]
    if after.type in _COUNTED:
        more = len(after.partitions) - len(before.partitions)
        return [f"ADD PARTITION PARTITIONS {more}" if more > 0 else f"COALESCE PARTITION {-more}"] if more else []
    if not gone:
        return [f"ADD PARTITION {_listed(after, come, dialect)}"]
    if not come:
        return [f"DROP PARTITION {_names(gone)}"]
    return [f"REORGANIZE PARTITION {_names(gone)} INTO {_listed(after, come, dialect)}"]


def _are_plain(partitions: Sequence[Partition]) -> bool:
    return all(each.name == f"p{number}" and not each.comment for number, each in enumerate(partitions))


def _names(partitions: Iterable[Partition]) -> str:
    return ", ".join(quoted(each.name) for each in partitions)


def _listed(of: Partitioning, partitions: Iterable[Partition], dialect: Dialect) -> str:
    return f"({', '.join(_text(of, each, dialect) for each in partitions)})"


def _text(of: Partitioning, partition: Partition, dialect: Dialect) -> str:
    text = f"PARTITION {quoted(partition.name)}"
    if of.type == RANGE:
        text += f" VALUES LESS THAN ({', '.join(expression(each, partition.name) for each in partition.below)})"
    elif of.type == LIST:
        text += _in(partition, dialect)
    return f"{text} COMMENT {literal(partition.comment)}" if partition.comment else text


def _in(partition: Partition, dialect: Dialect) -> str:
    rows = [[expression(each, partition.name) for each in row] for row in partition.values]
    if not rows or (len(rows) == 1 and [each.upper() for each in rows[0]] == ["DEFAULT"]):
        if not dialect.has_default_partitions:
            raise ExecuteByHand(f"{dialect} knows no partition of all other values, such as {partition.name}.")
        return " DEFAULT"
    return f" VALUES IN ({', '.join(row[0] if len(row) == 1 else '(' + ', '.join(row) + ')' for row in rows)})"
