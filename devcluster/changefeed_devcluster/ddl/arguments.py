"""Arguments of DDL jobs: an object in TiDB from 8.4 on, a list before.

Written from TiDB's pkg/meta/model/job_args.go, which knows both. A job that is done keeps some arguments for what comes
after it, such as the deletion of ranges; in a list these stand instead of those that it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Args = Mapping[str, Any]
_ZEROS: tuple[Any, ...] = (None, False, 0, "", [], {})


def without_zeros(args: Args) -> dict[str, Any]:
    """Leave out zeros, as Go does with members that may be left out."""
    return {name: value for name, value in args.items() if not any(value is z or value == z for z in _ZEROS)}


def as_list(kind: str, args: Args, is_done: bool) -> list[Any]:
    """Encode arguments as version 1 has them. `kind`: the name of a `JobType`."""
    if is_done and kind in _DONE:
        return _DONE[kind](args)
    made = _LISTS.get(kind)
    return made(args) if made is not None else list(args.values())


def _members(*names: str) -> Callable[[Args], list[Any]]:
    return lambda args: [args.get(name) for name in names]


def _renames(args: Args) -> list[Any]:
    """Up to TiDB 8.1 there are no old names of tables."""
    infos: Sequence[Args] = args.get("rename_table_infos", ())
    names = "old_schema_id", "new_schema_id", "new_table_name", "table_id", "old_schema_name"
    return [*([info.get(name) for info in infos] for name in names), None]


_LISTS: dict[str, Callable[[Args], list[Any]]] = {
    "CREATE_SCHEMA": _members("db_info"),
    "DROP_SCHEMA": _members("fk_check"),
    "MODIFY_SCHEMA_CHARSET_AND_COLLATE": _members("to_charset", "to_collate"),
    "CREATE_TABLE": _members("table_info", "fk_check"),
    "CREATE_TABLES": lambda args: [[each["table_info"] for each in args["tables"]], args.get("fk_check")],
    "CREATE_VIEW": _members("table_info", "on_exist_replace", "old_view_tbl_id"),
    "DROP_TABLE": _members("identifiers", "fk_check"),
    "TRUNCATE_TABLE": lambda args: [
        *_members("new_table_id", "fk_check", "new_partition_ids")(args),
        len(args.get("old_partition_ids") or ()),
    ],
    "RENAME_TABLE": _members("old_schema_id", "new_table_name", "old_schema_name"),
    "RENAME_TABLES": _renames,
    "EXCHANGE_TABLE_PARTITION": _members(
        "partition_id", "pt_schema_id", "pt_table_id", "partition_name", "with_validation"
    ),
    "ADD_COLUMN": _members("column_info", "position", "offset", "ignore_existence_err"),
    "DROP_COLUMN": lambda args: [args["column_info"]["name"], bool(args.get("ignore_existence_err"))],
    "MODIFY_COLUMN": _members("column", "old_column_name", "position", "modify_column_type", "new_shard_bits"),
    "ADD_TABLE_PARTITION": _members("part_info"),
    "DROP_TABLE_PARTITION": _members("part_names"),
    "REORGANIZE_PARTITION": _members("part_names", "part_info"),
}
_DONE: dict[str, Callable[[Args], list[Any]]] = {
    "DROP_SCHEMA": _members("all_dropped_table_ids"),
    "DROP_TABLE": lambda args: ["", args.get("old_partition_ids") or [], []],
    "TRUNCATE_TABLE": lambda args: ["", args.get("old_partition_ids") or []],
    "MODIFY_COLUMN": _members("index_ids", "partition_ids"),
}
