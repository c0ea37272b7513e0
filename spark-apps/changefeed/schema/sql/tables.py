"""CREATE TABLE and CREATE VIEW from a definition, and a table's options."""

from __future__ import annotations

from collections.abc import Iterator

from changefeed.schema.sql.columns import column_text, default_charset_text
from changefeed.schema.sql.definition import Definition
from changefeed.schema.sql.dialect import Dialect
from changefeed.schema.sql.keys import check_text, foreign_key_text, index_text, made
from changefeed.schema.sql.partitions import partitioning_text
from changefeed.schema.sql.text import expression, listed, literal, quoted

_ALGORITHMS = {1: "MERGE", 2: "TEMPTABLE"}
_INVOKER = 1
_UNITS = ("", "MICROSECOND", "SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR")


def create_table(definition: Definition, dialect: Dialect) -> str:
    """The whole of it, empty. Raises ExecuteByHand for what the server does not know."""
    parts = [column_text(column, dialect) for column in definition.columns]
    parts += [index_text(index, dialect, definition) for index in made(definition)]
    parts += [foreign_key_text(key) for key in definition.foreign_keys]
    parts += [check_text(*check) for check in definition.checks]
    text = f"CREATE TABLE {quoted(*definition.name)} ({', '.join(parts)})"
    charset = default_charset_text(definition.charset, definition.collate, dialect)
    text = " ".join([text, f"DEFAULT {charset}", *_options(definition, dialect)])
    return text if definition.partitioning is None else f"{text} {partitioning_text(definition.partitioning, dialect)}"


def changed_options(before: Definition, after: Definition, dialect: Dialect) -> list[str]:
    """Clauses of an ALTER TABLE."""
    texts = (before.charset, before.collate), (after.charset, after.collate)
    changed = [f"DEFAULT {default_charset_text(*texts[1], dialect)}"] if texts[0] != texts[1] else []
    old = dict(_named(before, dialect))
    changed += [f"{name} = {value}" for name, value in _named(after, dialect) if old.get(name) != value]
    if before.comment and not after.comment:
        changed.append("COMMENT = ''")
    if dialect.is_tidb and before.ttl is not None and after.ttl is None:
        changed.append("REMOVE TTL")
    return changed


def _options(definition: Definition, dialect: Dialect) -> list[str]:
    return [f"{name} = {value}" for name, value in _named(definition, dialect)]


def _named(definition: Definition, dialect: Dialect) -> Iterator[tuple[str, str]]:
    if definition.auto_increment:
        yield "AUTO_INCREMENT", str(definition.auto_increment)
    if definition.comment:
        yield "COMMENT", literal(definition.comment)
    if not dialect.is_tidb:
        return
    if definition.shard_row_id_bits:
        yield "SHARD_ROW_ID_BITS", str(definition.shard_row_id_bits)
    if (ttl := definition.ttl) is not None:
        interval = f"INTERVAL {expression(ttl.interval, 'TTL')} {_UNITS[ttl.unit]}"
        yield "TTL", f"{quoted(ttl.column)} + {interval} TTL_ENABLE = 'OFF'"  # rows go when the upstream's go
        if ttl.job_interval:
            yield "TTL_JOB_INTERVAL", literal(ttl.job_interval)


def create_view(definition: Definition, replaces: bool) -> str:
    """By the query that TiDB keeps, in which every table has its database. The view is that of who executes this."""
    view = definition.view
    algorithm = _ALGORITHMS.get(int(view.get("view_algorithm") or 0))
    words = ["CREATE OR REPLACE" if replaces else "CREATE"]
    words += [f"ALGORITHM = {algorithm}"] if algorithm else []
    words += ["SQL SECURITY INVOKER"] if int(view.get("view_security") or 0) == _INVOKER else []
    name = quoted(*definition.name)
    columns = listed(column.name for column in definition.columns)
    return " ".join([*words, "VIEW", name, columns, "AS", expression(str(view.get("view_select") or ""), name)])
