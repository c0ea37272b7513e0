"""Table and database definitions and DDL jobs, as JSON in TiDB's own form.

See docs/design/tidb.md, Definitions, Job contents.

A `NewColumn` is what a caller asks for, in SQL's words; a `TidbTable` what TiDB would store for it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .field_types import (
    CHARSET,
    COLLATE,
    INTEGERS,
    NO_DEFAULT,
    NOT_NULL,
    PRIMARY_KEY,
    UNIQUE_KEY,
    UNSPECIFIED,
    FieldType,
    Json,
    Tp,
    field_type,
)
from .partitions import TidbPartition, partition_holding, partitions_from_json, partitions_to_json

#: Schema states: nobody sees it, sessions delete it, write it, write it while old rows get it, delete it while old rows
#: lose it, everybody sees it.
NONE, DELETE_ONLY, WRITE_ONLY, WRITE_REORGANIZATION, DELETE_REORGANIZATION, PUBLIC = range(6)
#: On the way to being seen, and to being gone.
COMING = DELETE_ONLY, WRITE_ONLY, WRITE_REORGANIZATION
GOING = WRITE_ONLY, DELETE_ONLY, DELETE_REORGANIZATION

MYSQL_DB_ID = 1
DDL_JOB_TABLE_ID = (1 << 48) - 2
DDL_JOB_TABLE = "tidb_ddl_job"
ROWID = "_tidb_rowid"
PRIMARY = "PRIMARY"
EXPRESSION = "_V$_"  # begins the name of the hidden column that an index on an expression has


@dataclass(frozen=True)
class NewColumn:
    """A column to be made. `type` is SQL text; `default` a text or number; `unique` makes a secondary unique index;
    `generated` is the expression of a virtual column.
    """

    name: str
    type: str
    nullable: bool = False
    default: str | int | None = None
    unique: bool = False
    generated: str = ""

    def sql(self) -> str:
        computed = f"GENERATED ALWAYS AS ({self.generated}) VIRTUAL"
        parts = [f"`{self.name}`", self.type, computed if self.generated else "NULL" if self.nullable else "NOT NULL"]
        if self.default is not None:
            quoted = str(self.default).replace("'", "''")
            parts.append(f"DEFAULT '{quoted}'")
        return " ".join(parts)


@dataclass(frozen=True)
class TidbColumn:
    """A stored column. `origin_default` is what rows written before the column was added have.

    While a column of another type replaces column `cast_of`, sessions write both; nobody reads it yet.
    """

    id: int
    name: str
    offset: int
    type: FieldType
    default: str | None = None
    origin_default: str | None = None
    state: int = PUBLIC
    cast_of: str | None = None
    generated: str = ""  # the expression of a virtual column, which no row holds

    @property
    def nullable(self) -> bool:
        return not self.type.flag & NOT_NULL

    @property
    def is_public(self) -> bool:
        return self.state == PUBLIC

    @property
    def is_written(self) -> bool:
        """Tell whether sessions write it."""
        return self.state in (WRITE_ONLY, WRITE_REORGANIZATION, PUBLIC) and not self.generated

    def to_json(self, offsets: Mapping[str, int]) -> Json:
        (origin, origin_bit), (default, bit) = _kept(self.type, self.origin_default), _kept(self.type, self.default)
        return {
            "id": self.id, "name": ci_str(self.name), "offset": self.offset,
            "origin_default": origin, "origin_default_bit": origin_bit,
            "default": default, "default_bit": bit, "default_is_expr": False,
            "generated_expr_string": self.generated, "generated_stored": False, "dependences": None,
            "type": self.type.to_json(), "state": self.state, "comment": "",
            "hidden": self.name.startswith(EXPRESSION),
            "change_state_info": self.cast_of and {"relative_col_offset": offsets[self.cast_of]}, "version": 2,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Json, names: Sequence[str]) -> TidbColumn:
        field = FieldType.from_json(data["type"])
        default, origin = (_given(data[name], data[f"{name}_bit"]) for name in ("default", "origin_default"))
        change = data["change_state_info"]
        cast_of = names[change["relative_col_offset"]] if change else None
        name, expression = data["name"]["O"], data["generated_expr_string"]
        return cls(data["id"], name, data["offset"], field, default, origin, data["state"], cast_of, expression)


def _kept(field: FieldType, default: str | None) -> tuple[str | None, str | None]:
    """A default as TiDB keeps it: of BIT its bytes, as text that may be spoilt, and in base64."""
    if default is None or field.tp is not Tp.BIT:
        return default, None
    raw = int(default).to_bytes((field.flen + 7) // 8, "big")
    return raw.decode(errors="replace"), base64.b64encode(raw).decode()


def _given(default: str | None, bits: str | None) -> str | None:
    return default if bits is None else str(int.from_bytes(base64.b64decode(bits), "big"))


@dataclass(frozen=True)
class TidbIndex:
    """A secondary index over whole columns, or the primary key of a table whose handle is not that."""

    id: int
    name: str
    columns: tuple[str, ...]
    is_unique: bool = True
    is_visible: bool = True

    @property
    def is_primary(self) -> bool:
        return self.name == PRIMARY

    def to_json(self, offsets: Mapping[str, int]) -> Json:
        return {
            "id": self.id, "idx_name": ci_str(self.name), "tbl_name": ci_str(""),
            "idx_cols": [{"name": ci_str(c), "offset": offsets[c], "length": UNSPECIFIED} for c in self.columns],
            "state": PUBLIC, "backfill_state": 0, "comment": "", "index_type": 1, "is_unique": self.is_unique,
            "is_primary": self.is_primary, "is_invisible": not self.is_visible, "is_global": False, "mv_index": False,
            "vector_index": None,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Json) -> TidbIndex:
        columns = tuple(column["name"]["O"] for column in data["idx_cols"])
        return cls(data["id"], data["idx_name"]["O"], columns, data["is_unique"], not data["is_invisible"])


@dataclass(frozen=True)
class TidbTable:
    """A stored table. `pk` is the integer primary key column, None for a table whose handle is another.

    `clustered` are the columns of a primary key of other types or of more than one column; without any the handle is
    `_tidb_rowid`. `attributes`: members of the JSON that decide no byte of a row, where they are not what they are at
    first.
    """

    id: int
    name: str
    columns: tuple[TidbColumn, ...]
    indexes: tuple[TidbIndex, ...] = ()
    pk: str | None = None
    max_column_id: int = 0
    update_ts: int = 0
    clustered: tuple[str, ...] = ()
    partitions: tuple[TidbPartition, ...] = ()
    max_index_id: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def public(self) -> tuple[TidbColumn, ...]:
        """The columns that a session reads."""
        return tuple(column for column in self.columns if column.is_public)

    @property
    def secondary(self) -> tuple[TidbIndex, ...]:
        """The indexes that have keys of their own."""
        return tuple(index for index in self.indexes if not (index.is_primary and self.clustered))

    @property
    def has_rows(self) -> bool:
        return not (self.attributes.get("view") or self.attributes.get("sequence"))

    @property
    def only_in_key(self) -> frozenset[str]:
        """The columns that rows lack: a sort key in the key does not give a VARCHAR's trailing spaces back."""
        if self.pk is not None:
            return frozenset({self.pk})
        types = {column.name: column.type for column in self.columns}
        return frozenset(c for c in self.clustered if not (types[c].is_text and types[c].tp is Tp.VARCHAR))

    @property
    def state(self) -> int:
        """PUBLIC, or on the way to being gone."""
        return int(self.attributes.get("state", PUBLIC))

    def of_state(self, state: int) -> TidbTable:
        return replace(self, attributes={**self.attributes, "state": state})

    def column(self, name: str) -> TidbColumn:
        """Raises ValueError for one that no session sees."""
        for column in self.public:
            if column.name == name:
                return column
        raise ValueError(f"table {self.name} has no column {name}")

    def to_json(self) -> Json:
        offsets = {column.name: column.offset for column in self.columns}
        return {
            "id": self.id, "name": ci_str(self.name), "charset": CHARSET, "collate": COLLATE,
            "cols": [column.to_json(offsets) for column in self.columns],
            "index_info": [index.to_json(offsets) for index in self.indexes],
            "constraint_info": None, "fk_info": None, "state": PUBLIC, "pk_is_handle": self.pk is not None,
            "is_common_handle": bool(self.clustered), "common_handle_version": int(bool(self.clustered)),
            "comment": "", "auto_inc_id": 0,
            "auto_id_cache": 0, "auto_rand_id": 0, "max_col_id": self.max_column_id, "max_idx_id": self.max_index_id,
            "max_fk_id": 0, "max_cst_id": 0, "update_timestamp": self.update_ts, "ShardRowIDBits": 0,
            "max_shard_row_id_bits": 0, "auto_random_bits": 0, "auto_random_range_bits": 0, "pre_split_regions": 0,
            "partition": partitions_to_json(self.pk or "", self.partitions),
            "compression": "", "view": None, "sequence": None, "Lock": None, "version": 5,
            "tiflash_replica": None, "is_columnar": False, "temp_table_type": 0, "cache_table_status": 0,
            "policy_ref_info": None, "stats_options": None, "exchange_partition_info": None, "ttl_info": None,
            "revision": 1, **self.attributes,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Json) -> TidbTable:
        names = [column["name"]["O"] for column in data["cols"]]
        columns = tuple(TidbColumn.from_json(column, names) for column in data["cols"])
        pk = None
        if data["pk_is_handle"]:
            pk = next(column.name for column in columns if column.type.flag & PRIMARY_KEY)
        indexes = tuple(TidbIndex.from_json(index) for index in data["index_info"])
        clustered = next((i.columns for i in indexes if i.is_primary), ()) if data["is_common_handle"] else ()
        name, last_id, ts = data["name"]["O"], data["max_col_id"], data["update_timestamp"]
        partitions = partitions_from_json(data["partition"])
        plain = cls(data["id"], name, columns, indexes, pk, last_id, ts, clustered, partitions, data["max_idx_id"])
        at_first = plain.to_json()
        return replace(plain, attributes={key: value for key, value in data.items() if value != at_first[key]})


@dataclass(frozen=True)
class DbInfo:
    id: int
    name: str
    charset: str = CHARSET
    collate: str = COLLATE
    state: int = PUBLIC

    def to_json(self) -> Json:
        return {
            "id": self.id, "db_name": ci_str(self.name), "charset": self.charset, "collate": self.collate,
            "Deprecated": {}, "state": self.state, "policy_ref_info": None,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Json) -> DbInfo:
        return cls(data["id"], data["db_name"]["O"], data["charset"], data["collate"], data["state"])


def ci_str(name: str) -> Json:
    return {"O": name, "L": name.lower()}


def dump(data: Json) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def make_column(column: NewColumn, column_id: int, offset: int, is_pk: bool = False) -> TidbColumn:
    """The stored form of a new table's column. Raises ValueError for a type that can't be written."""
    base = field_type(column.type)
    flag = base.flag
    if is_pk:
        flag |= PRIMARY_KEY
    if not column.nullable or is_pk:
        flag |= NOT_NULL | (NO_DEFAULT if column.default is None else 0)
    if column.unique:
        flag |= UNIQUE_KEY
    default = None if column.default is None else str(column.default)
    return TidbColumn(column_id, column.name, offset, replace(base, flag=flag), default, generated=column.generated)


PrimaryKey = str | Sequence[str] | None  # a column, several, or none: `_tidb_rowid`


def _key_columns(pk: PrimaryKey) -> tuple[str, ...]:
    return () if pk is None else (pk,) if isinstance(pk, str) else tuple(pk)


def make_table(table_id: int, name: str, columns: Sequence[NewColumn], pk: PrimaryKey) -> TidbTable:
    """A new table's stored form; its primary key is clustered. Raises ValueError when `pk` names no columns."""
    members = _key_columns(pk)
    for missing in set(members) - {column.name for column in columns}:
        raise ValueError(f"table {name}: its primary key {missing!r} is not one of its columns")
    infos = tuple(make_column(column, n + 1, n, column.name in members) for n, column in enumerate(columns))
    is_int = len(members) == 1 and any(c.name in members and c.type.tp in INTEGERS for c in infos)
    handle, clustered = (members[0], ()) if is_int else (None, members)
    keys = [(PRIMARY, clustered)] if clustered else []
    keys += [(column.name, (column.name,)) for column in columns if column.unique]
    indexes = tuple(TidbIndex(n + 1, *each) for n, each in enumerate(keys))
    last = len(infos), 0, clustered, (), len(indexes)
    return TidbTable(table_id, name, infos, indexes, handle, *last)


def with_column(info: TidbTable, column: NewColumn) -> TidbTable:
    """The table after ADD COLUMN: old rows have the column's default, or where NULL is forbidden the type's zero."""
    column_id = info.max_column_id + 1
    added = make_column(column, column_id, len(info.columns))
    zero = None if added.nullable else added.type.zero_text
    added = replace(added, origin_default=zero if added.default is None else added.default)
    return replace(info, columns=(*info.columns, added), max_column_id=column_id)


def create_table_sql(db: str, name: str, columns: Sequence[NewColumn], pk: PrimaryKey) -> str:
    parts = [column.sql() for column in columns]
    if pk is not None:
        parts.append(f"PRIMARY KEY ({', '.join(f'`{column}`' for column in _key_columns(pk))})")
    parts += [f"UNIQUE KEY `{column.name}` (`{column.name}`)" for column in columns if column.unique]
    return f"CREATE TABLE `{db}`.`{name}` ({', '.join(parts)})"


def ddl_job_table() -> TidbTable:
    """`mysql.tidb_ddl_job`, where changefeeds learn of DDLs (docs/design/tidb.md, DDL jobs)."""
    columns = [
        NewColumn("job_id", "bigint"),
        NewColumn("reorg", "int", nullable=True),
        NewColumn("schema_ids", "text", nullable=True),
        NewColumn("table_ids", "text", nullable=True),
        NewColumn("job_meta", "longblob", nullable=True),
        NewColumn("type", "int", nullable=True),
        NewColumn("processing", "int", nullable=True),
    ]
    return make_table(DDL_JOB_TABLE_ID, DDL_JOB_TABLE, columns, "job_id")


def full_name(db: str, name: str) -> str:
    """Return the name by which `Tidb.tables` has a table: one with a dot in it stands between backticks."""
    return ".".join(f"`{each}`" if "." in each else each for each in (db, name))


@dataclass(frozen=True)
class NamedTable:
    """A table of a database, as it stands after some DDL."""

    db: DbInfo
    info: TidbTable

    @property
    def id(self) -> int:
        return self.info.id

    @property
    def name(self) -> str:
        return full_name(self.db.name, self.info.name)

    @property
    def physical_ids(self) -> tuple[int, ...]:
        """Return the ids under which its rows stand."""
        return tuple(partition.id for partition in self.info.partitions) or (self.id,)

    def physical_id(self, handle: int | bytes) -> int:
        """Return the id under which a row stands. Raises ValueError for one that no partition holds."""
        if not self.info.partitions:
            return self.id
        assert isinstance(handle, int)
        return partition_holding(self.info.partitions, handle).id

    @property
    def pk(self) -> str:
        """The column of the int handle; `_tidb_rowid`, which is not stored, if there is no other."""
        return self.info.pk or ROWID

    @property
    def address(self) -> tuple[str, ...]:
        """The columns that a row is addressed by."""
        return self.info.clustered or (self.pk,)
