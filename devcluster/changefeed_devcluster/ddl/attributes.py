"""DDLs that change a member of a definition and no byte of a row: comments, TTL, placement, constraints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..tidb.schema import NamedTable, ci_str
from ..tidb.server import TidbServer
from .jobs import JobType
from .running import about, sql

_TTL = {
    "column": ci_str("id"), "interval_expr": "30", "interval_time_unit": 4, "enable": True, "job_interval": "24h",
}  # fmt: skip
_CHECK = {
    "id": 1, "constraint_name": ci_str("positive"), "tbl_name": ci_str(""), "constraint_cols": [ci_str("id")],
    "enforced": True, "expr_string": "`id` > 0", "state": 5,
}  # fmt: skip
_POLICY = {"id": 1, "name": ci_str("near")}
#: By kind: the statement behind ALTER TABLE, and what it sets.
ATTRIBUTES: dict[JobType, tuple[str, dict[str, Any]]] = {
    JobType.MODIFY_TABLE_COMMENT: ("COMMENT = 'it''s all'", {"comment": "it's all"}),
    JobType.MODIFY_TABLE_CHARSET_AND_COLLATE: (
        "DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_general_ci",
        {"collate": "utf8mb4_general_ci"},
    ),
    JobType.REBASE_AUTO_ID: ("AUTO_INCREMENT = 5000", {"auto_inc_id": 5000}),
    JobType.SHARD_ROW_ID: ("SHARD_ROW_ID_BITS = 4", {"ShardRowIDBits": 4, "max_shard_row_id_bits": 4}),
    JobType.SET_TIFLASH_REPLICA: ("SET TIFLASH REPLICA 0", {}),
    JobType.MODIFY_TABLE_AUTO_ID_CACHE: ("AUTO_ID_CACHE = 200", {"auto_id_cache": 200}),
    JobType.ALTER_TABLE_ATTRIBUTES: ("ATTRIBUTES = 'merge_option=deny'", {}),
    JobType.ALTER_TABLE_PLACEMENT: (
        "PLACEMENT POLICY = `near`",
        {"policy_ref_info": {"id": 1, "name": ci_str("near")}},
    ),
    JobType.ALTER_CACHE_TABLE: ("CACHE", {"cache_table_status": 2}),
    JobType.ALTER_NO_CACHE_TABLE: ("NOCACHE", {"cache_table_status": 0}),
    JobType.ALTER_TTL_INFO: ("TTL = `id` + INTERVAL 30 DAY", {"ttl_info": _TTL}),
    JobType.ALTER_TTL_REMOVE: ("REMOVE TTL", {"ttl_info": None}),
    JobType.ADD_CHECK_CONSTRAINT: ("ADD CONSTRAINT `positive` CHECK (`id` > 0)", {"constraint_info": [_CHECK]}),
    JobType.DROP_CHECK_CONSTRAINT: ("DROP CONSTRAINT `positive`", {"constraint_info": None}),
    JobType.ADD_FOREIGN_KEY: ("ADD CONSTRAINT `fk_1` FOREIGN KEY (`id`) REFERENCES `parents` (`id`)", {}),
    JobType.DROP_FOREIGN_KEY: ("DROP FOREIGN KEY `fk_1`", {}),
}


def set_attribute(tidb: TidbServer, table: NamedTable, kind: JobType) -> NamedTable:
    """One of ATTRIBUTES."""
    statement, members = ATTRIBUTES[kind]
    job = about(tidb, kind, table, f"ALTER TABLE {sql(table)} {statement}")
    changed = {name: value for name, value in {**table.info.attributes, **members}.items() if value}
    return job.finish(replace(table, info=replace(table.info, attributes=changed)))[0]
