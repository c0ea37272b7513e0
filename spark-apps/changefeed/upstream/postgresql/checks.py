"""What is looked at before a changefeed reads from a slot: what is wrong, in a sentence, and the SQL that mends it.

`read` asks the server, `findings` judges what it says, and is pure. Columns that a release lacks are missing there:
`idle_replication_slot_timeout` and `pubgencols` came with PostgreSQL 18, `invalidation_reason`, `failover` and
`synchronized_standby_slots` with 17, filters of rows with 15.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from changefeed.errors import NeedsHuman, SnapshotLostByGC
from changefeed.upstream.postgresql.server import PostgresqlSession, quoted

Row = Mapping[str, Any]

OLDEST, NEWEST = 14, 18
_PLUGIN = "pgoutput"

_SERVER = """
SELECT to_jsonb(found) FROM (
  SELECT current_setting('server_version_num')::int / 10000 AS version, current_setting('wal_level') AS wal_level,
    pg_is_in_recovery() AS is_standby, current_user::text AS "user", current_database()::text AS database,
    current_setting('max_replication_slots')::int AS max_slots,
    (SELECT count(*) FROM pg_replication_slots) AS slots,
    current_setting('max_wal_senders')::int AS max_senders,
    (SELECT count(*) FROM pg_stat_replication) AS senders,
    coalesce(current_setting('idle_replication_slot_timeout', true), '0') AS idle_timeout,
    current_setting('max_slot_wal_keep_size') AS kept_wal,
    string_to_array(replace(current_setting('synchronized_standby_slots', true), ' ', ''), ',') AS awaited,
    (SELECT coalesce(jsonb_agg(slot_name ORDER BY slot_name), '[]') FROM pg_replication_slots
      WHERE slot_type = 'physical') AS standbys,
    (SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user)
      OR EXISTS (SELECT FROM pg_roles WHERE rolname = 'rds_replication' AND pg_has_role(oid, 'member'))
      AS may_replicate -- Amazon RDS gives the right by a role
) found"""

_SLOT = "SELECT to_jsonb(found) FROM pg_replication_slots found WHERE slot_name = :name"
_PUBLICATION = "SELECT to_jsonb(found) FROM pg_publication found WHERE pubname = :name"

#: All tables but partitions. What stands in the WAL of a partitioned one is decided by its leaves.
_TABLES = """
SELECT to_jsonb(found) FROM (
  SELECT n.nspname AS schema, c.relname AS name, c.relkind::text = 'p' AS is_partitioned,
    c.relpersistence::text AS persistence,
    has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') AS is_readable,
    EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary) AS has_primary,
    (SELECT coalesce(jsonb_agg(attname ORDER BY attnum), '[]') FROM pg_attribute
      WHERE attrelid = c.oid AND attgenerated::text = 's' AND NOT attisdropped) AS generated,
    (SELECT coalesce(jsonb_agg(attname ORDER BY attnum), '[]') FROM pg_attribute
      WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attlen = -1 AND attstorage IN ('x', 'e', 'm')
    ) AS variable,
    (SELECT to_jsonb(p) ->> 'rowfilter' FROM pg_publication_tables p
      WHERE p.pubname = :name AND p.schemaname = n.nspname AND p.tablename = c.relname) AS row_filter,
    (SELECT jsonb_agg(jsonb_build_object('schema', ln.nspname, 'name', l.relname, 'identity', l.relreplident::text,
        'is_toasted', l.reltoastrelid <> 0, 'is_published', p.pubname IS NOT NULL,
        'has_index', EXISTS (SELECT FROM pg_index WHERE indrelid = l.oid AND indisreplident))
        ORDER BY ln.nspname, l.relname)
      FROM pg_class l JOIN pg_namespace ln ON ln.oid = l.relnamespace
        LEFT JOIN pg_publication_tables p
          ON p.pubname = :name AND p.schemaname = ln.nspname AND p.tablename = l.relname
      WHERE l.oid = c.oid OR l.oid IN (SELECT relid FROM pg_partition_tree(c.oid) WHERE isleaf)
    ) AS family
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
    AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg\\_toast%'
  ORDER BY n.nspname, c.relname
) found"""


@dataclass(frozen=True)
class Facts:
    """What the server says. `slot` and `publication`: None where there is none of that name."""

    slot_name: str
    publication_name: str
    server: Row
    slot: Row | None
    publication: Row | None
    tables: Sequence[Row]


@dataclass(frozen=True)
class Needs:
    """`selects`: whether a table, by schema and name, is one of the changefeed's.

    `whole_rows`: of each update all columns. `old_rows`: of each update and delete all columns as they were.
    """

    selects: Callable[[str, str], bool]
    whole_rows: bool = True
    old_rows: bool = False


@dataclass(frozen=True)
class Finding:
    """`sql`: what mends it, empty where nothing does. `stops`: nothing may be read; else it is worth a warning."""

    message: str
    sql: str = ""
    stops: bool = True
    is_lost: bool = False

    def __str__(self) -> str:
        return f"{self.message} {self.sql}".strip()


def read(session: PostgresqlSession, slot: str, publication: str) -> Facts:
    """Ask the server. Raises what PostgresqlSession does."""

    def found(query: str, **values: str) -> list[Row]:
        return [row for (row,) in session.rows(query, **values)]

    (server,) = found(_SERVER)
    return Facts(
        slot,
        publication,
        server,
        next(iter(found(_SLOT, name=slot)), None),
        next(iter(found(_PUBLICATION, name=publication)), None),
        found(_TABLES, name=publication),
    )


def findings(facts: Facts, needs: Needs) -> list[Finding]:
    """Those of the server first, then the slot's, the publication's, and the tables'."""
    return [
        *_of_server(facts),
        *_of_standbys(facts),
        *_of_slot(facts),
        *_of_publication(facts),
        *_of_tables(facts, needs),
    ]


def refuse(where: str, found: Sequence[Finding]) -> None:
    """Raise an error that names all that stop, if any does: SnapshotLostByGC or NeedsHuman."""
    stopping = [finding for finding in found if finding.stops]
    if not stopping:
        return
    kind = SnapshotLostByGC if any(finding.is_lost for finding in stopping) else NeedsHuman
    statements = " ".join(finding.sql for finding in stopping if finding.sql)
    raise kind(
        f"{where} can't be read from: {' '.join(finding.message for finding in stopping)}",
        f"Run there: {statements} Then start again." if statements else "Mend that, then start again.",
    )


def _of_server(facts: Facts) -> Iterator[Finding]:
    server = facts.server
    if not OLDEST <= server["version"] <= NEWEST:
        yield Finding(f"It is PostgreSQL {server['version']}; supported are {OLDEST} to {NEWEST}.")
    if server["is_standby"]:
        yield Finding("It is a standby, which takes no messages of ours: name the primary.")
    if server["wal_level"] != "logical":
        sql = "ALTER SYSTEM SET wal_level = logical; /* and restart the server */"
        yield Finding(f"Its wal_level is {server['wal_level']}, with which changes of rows can't be read.", sql)
    if not server["may_replicate"]:
        sql = f"ALTER ROLE {quoted(server['user'])} REPLICATION;"
        yield Finding(f"The user {server['user']} may not read a slot.", sql)
    if facts.slot is None and server["slots"] >= server["max_slots"]:
        sql = f"ALTER SYSTEM SET max_replication_slots = {server['slots'] + 10}; /* and restart the server */"
        yield Finding(f"All of its {server['max_slots']} replication slots are taken.", sql)
    if (facts.slot is None or not facts.slot["active"]) and server["senders"] >= server["max_senders"]:
        sql = f"ALTER SYSTEM SET max_wal_senders = {server['senders'] + 10}; /* and restart the server */"
        yield Finding(f"All of its {server['max_senders']} WAL senders are taken.", sql)
    if server["idle_timeout"] != "0":
        sql = "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf();"
        message = f"A changefeed that is paused for {server['idle_timeout']} loses its slot, and must begin anew."
        yield Finding(message, sql, stops=False)
    if server["kept_wal"] != "-1":
        sql = "ALTER SYSTEM SET max_slot_wal_keep_size = -1; SELECT pg_reload_conf();"
        message = f"A changefeed that is {server['kept_wal']} of WAL behind loses its slot, and must begin anew."
        yield Finding(message, sql, stops=False)


def _of_standbys(facts: Facts) -> Iterator[Finding]:
    """What a failover would lose, where there are standbys with slots: others have no copies of ours."""
    server, slot, standbys = facts.server, facts.slot, facts.server["standbys"]
    if server["awaited"] is None or not standbys:
        return
    if slot is not None and not slot["failover"]:
        message = (
            f"Standbys have no copy of slot {facts.slot_name}, so a failover loses it. As a replication command: "
            f"ALTER_REPLICATION_SLOT {quoted(facts.slot_name)} (FAILOVER true);"
        )
        yield Finding(message, stops=False)
    if not set(server["awaited"]) & set(standbys):
        names = ", ".join(standbys)
        message = (
            "What no standby has yet can be read, and a changefeed that has read such does not go on after a failover. "
            "Name those that may take over, which also need sync_replication_slots = on, hot_standby_feedback = on, "
            "primary_slot_name and a dbname in primary_conninfo."
        )
        sql = f"ALTER SYSTEM SET synchronized_standby_slots = '{names}'; SELECT pg_reload_conf();"
        yield Finding(message, sql, stops=False)


def _of_slot(facts: Facts) -> Iterator[Finding]:
    slot, name = facts.slot, facts.slot_name
    if slot is None:
        return
    if slot["plugin"] != _PLUGIN or slot["database"] != facts.server["database"]:
        what = f"{slot['plugin'] or 'no plugin'} in database {slot['database'] or 'none'}"
        wanted = f"{_PLUGIN} in {facts.server['database']}"
        yield Finding(f"Slot {name} is of {what}, not of {wanted}: give the changefeed another slot.")
    reason = slot.get("invalidation_reason")
    if slot["wal_status"] == "lost" or reason:
        message = f"Slot {name} has lost its history ({reason or 'its WAL is removed'})."
        yield Finding(message, f"SELECT pg_drop_replication_slot('{name}'); -- for a new changefeed", is_lost=True)
    elif slot["wal_status"] == "unreserved":
        yield Finding(f"Slot {name} is about to lose its history: too much WAL waits for it.", stops=False)


def _of_publication(facts: Facts) -> Iterator[Finding]:
    publication, name = facts.publication, quoted(facts.publication_name)
    if publication is None:
        sql = f"CREATE PUBLICATION {name} FOR ALL TABLES WITH (publish_via_partition_root = true);"
        yield Finding(f"There is no publication {facts.publication_name}.", sql)
        return
    lacking = [each for each in ("insert", "update", "delete", "truncate") if not publication[f"pub{each}"]]
    if lacking:
        sql = f"ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate');"
        yield Finding(f"Publication {facts.publication_name} leaves out each {' and '.join(lacking)}.", sql)


def _of_tables(facts: Facts, needs: Needs) -> Iterator[Finding]:
    selected = [table for table in facts.tables if needs.selects(table["schema"], table["name"])]
    if facts.publication is not None:
        yield from _not_sent(facts, facts.publication, selected)
    user = quoted(facts.server["user"])
    for table in selected:
        name, sql_name = _names(table)
        if not table["is_readable"]:
            grants = f"GRANT USAGE ON SCHEMA {quoted(table['schema'])} TO {user}; GRANT SELECT ON {sql_name} TO {user};"
            yield Finding(f"The user {facts.server['user']} may not read table {name}.", grants)
        if not _has_key(table):
            message = f"Table {name} has no primary key by which its rows could be told apart."
            yield Finding(message, f"ALTER TABLE {sql_name} ADD PRIMARY KEY (...);")
        yield from _identities(table, needs)


def _not_sent(facts: Facts, publication: Row, selected: Sequence[Row]) -> Iterator[Finding]:
    """Rows and columns that the publication leaves out."""
    name = quoted(facts.publication_name)
    partitioned = [table for table in selected if table["is_partitioned"]]
    if partitioned and not publication["pubviaroot"]:
        message = f"Publication {facts.publication_name} sends rows of {_names(partitioned[0])[0]} as its partitions'."
        yield Finding(message, f"ALTER PUBLICATION {name} SET (publish_via_partition_root = true);")
    for table in selected:
        text, sql_name = _names(table)
        if table["persistence"] == "u":
            message = f"Table {text} is unlogged: its changes are not in the WAL."
            yield Finding(message, f"ALTER TABLE {sql_name} SET LOGGED;")
        elif not any(member["is_published"] for member in table["family"]):
            message = f"Table {text} is not in publication {facts.publication_name}."
            yield Finding(message, f"ALTER PUBLICATION {name} ADD TABLE {sql_name};")
        if table["row_filter"] is not None:
            message = f"Of table {text} the publication sends only rows with {table['row_filter']}."
            yield Finding(f"{message} Others are missing.", stops=False)
        if table["generated"] and publication.get("pubgencols", "n") == "n":
            can = "pubgencols" in publication
            sql = f"ALTER PUBLICATION {name} SET (publish_generated_columns = stored);" if can else ""
            columns = ", ".join(table["generated"])
            yield Finding(f"Generated columns of table {text} are not sent: {columns}.", sql, stops=False)


def _identities(table: Row, needs: Needs) -> Iterator[Finding]:
    """What the WAL does not have of old rows, table by table of a partitioned one."""
    is_toasted = any(member["is_toasted"] for member in table["family"]) and bool(table["variable"])
    needs_full = needs.old_rows or (needs.whole_rows and is_toasted)
    members = [member for member in table["family"] if not _identifies(table, member, needs_full)]
    if not members:
        return
    text, _ = _names(table)
    if needs.old_rows:
        why = "old rows are needed whole"
    elif needs_full:
        why = f"an update leaves out large values of {', '.join(table['variable'])} that it does not change"
    else:
        why = "the server refuses updates and deletes"
    identity = "FULL" if needs_full else "DEFAULT"
    sql = " ".join(f"ALTER TABLE {_names(member)[1]} REPLICA IDENTITY {identity};" for member in members)
    yield Finding(f"The replica identity of table {text} does not do: {why}.", sql)


def _identifies(table: Row, member: Row, needs_full: bool) -> bool:
    if member["identity"] == "f":
        return True
    by_key = member["identity"] == "d" or (member["identity"] == "i" and member["has_index"])
    return not needs_full and (by_key or not _has_key(table))  # without a key there is another finding


def _has_key(table: Row) -> bool:
    """A primary key, or the unique one that is said to stand for it."""
    by_index = all(member["identity"] == "i" and member["has_index"] for member in table["family"])
    return bool(table["has_primary"] or by_index)


def _names(table: Row) -> tuple[str, str]:
    """Give its name for people, and for SQL."""
    return f"{table['schema']}.{table['name']}", quoted(table["schema"], table["name"])
