"""Table and database definitions and DDL jobs, as JSON in TiDB's own form (facts, tikv-wire 4.4 and 4.6).

A `Column` is what a caller asks for, in SQL's words; a `TableInfo` what TiDB would store for it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from .partitions import Partition, partition_holding, partitions_from_json, partitions_to_json

Json = dict[str, Any]

NOT_NULL = 1
PRIMARY_KEY = 2
UNIQUE_KEY = 4
UNSIGNED = 32
ZEROFILL = 64
BINARY = 128
NO_DEFAULT = 4096

PUBLIC = 5
UNSPECIFIED = -1
CHARSET = "utf8mb4"
COLLATE = "utf8mb4_bin"

MYSQL_DB_ID = 1
DDL_JOB_TABLE_ID = (1 << 48) - 2
DDL_JOB_TABLE = "tidb_ddl_job"
ROWID = "_tidb_rowid"
PRIMARY = "PRIMARY"


class Tp(IntEnum):
    """MySQL type codes (`FieldType.Tp`) of the types that the development cluster can write."""

    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    DURATION = 11
    DATETIME = 12
    YEAR = 13
    VARCHAR = 15
    BIT = 16
    DECIMAL = 246
    ENUM = 247
    SET = 248
    TINY_BLOB = 249
    MEDIUM_BLOB = 250
    LONG_BLOB = 251
    BLOB = 252
    STRING = 254


INTEGERS = frozenset({Tp.TINY, Tp.SHORT, Tp.INT24, Tp.LONG, Tp.LONGLONG})
TIMES = frozenset({Tp.DATE, Tp.DATETIME, Tp.TIMESTAMP})
CHOICES = frozenset({Tp.ENUM, Tp.SET})
_INTEGER_NAMES = {  # name: type, signed and unsigned display width
    "tinyint": (Tp.TINY, 4, 3),
    "smallint": (Tp.SHORT, 6, 5),
    "mediumint": (Tp.INT24, 9, 8),
    "int": (Tp.LONG, 11, 10),
    "bigint": (Tp.LONGLONG, 20, 20),
}
_BLOB_NAMES = {
    "tiny": (Tp.TINY_BLOB, 255),
    "": (Tp.BLOB, 65535),
    "medium": (Tp.MEDIUM_BLOB, 16777215),
    "long": (Tp.LONG_BLOB, 4294967295),
}
_STRING_NAMES = {  # name: type, is it binary
    "char": (Tp.STRING, False),
    "varchar": (Tp.VARCHAR, False),
    "binary": (Tp.STRING, True),
    "varbinary": (Tp.VARCHAR, True),
}
_SQL_TYPE = re.compile(
    r"(?P<name>[a-z]+)\s*(?:\(\s*(?P<a>\d+)\s*(?:,\s*(?P<b>\d+)\s*)?\))?(?P<unsigned>\s+unsigned)?(?P<zerofill>\s+zerofill)?"
)
_SQL_CHOICE = re.compile(r"(enum|set)\s*\((\s*'[^']*'\s*(?:,\s*'[^']*'\s*)*)\)", re.IGNORECASE)


@dataclass(frozen=True)
class FieldType:
    """TiDB's FieldType: `flen` and `decimal` may be -1 (unspecified); for time types `decimal` is the fsp."""

    tp: Tp
    flag: int = 0
    flen: int = UNSPECIFIED
    decimal: int = 0
    charset: str = "binary"
    collate: str = "binary"
    elems: tuple[str, ...] = ()  # of ENUM and SET

    @property
    def unsigned(self) -> bool:
        return bool(self.flag & UNSIGNED)

    @property
    def is_text(self) -> bool:
        return self.charset != "binary"

    def to_json(self) -> Json:
        return {
            "Tp": int(self.tp), "Flag": self.flag, "Flen": self.flen, "Decimal": self.decimal,
            "Charset": self.charset, "Collate": self.collate,
            "Elems": list(self.elems) or None, "ElemsIsBinaryLit": None, "Array": False,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Json) -> FieldType:
        return cls(
            Tp(data["Tp"]), data["Flag"], data["Flen"], data["Decimal"], data.get("Charset", ""), data["Collate"],
            tuple(data.get("Elems") or ()),
        )  # fmt: skip


def field_type(sql: str) -> FieldType:
    """The type of SQL text such as `bigint unsigned` or `decimal(18,2)`. Raises ValueError for others."""
    if choice := _SQL_CHOICE.fullmatch(sql.strip()):
        tp = Tp[choice[1].upper()]
        return FieldType(tp, 0, UNSPECIFIED, 0, CHARSET, COLLATE, tuple(re.findall("'([^']*)'", choice[2])))
    match = _SQL_TYPE.fullmatch(sql.strip().lower())
    if match is None:
        raise ValueError(f"not a column type: {sql!r}")
    name = match["name"]
    a = int(match["a"]) if match["a"] else None
    b = int(match["b"]) if match["b"] else 0
    flag = ZEROFILL | UNSIGNED if match["zerofill"] else UNSIGNED if match["unsigned"] else 0
    if name in _INTEGER_NAMES:
        tp, signed_width, unsigned_width = _INTEGER_NAMES[name]
        return FieldType(tp, flag, a or (unsigned_width if flag else signed_width))
    if name == "decimal":
        return FieldType(Tp.DECIMAL, flag, 10 if a is None else a, b)
    if name in ("float", "double"):
        tp, flen = (Tp.FLOAT, 12) if name == "float" else (Tp.DOUBLE, 22)
        return FieldType(tp, flag, flen, UNSPECIFIED)
    if name in ("date", "datetime", "timestamp"):
        fsp = a or 0
        flen = 10 if name == "date" else 19 + (fsp + 1 if fsp else 0)
        return FieldType(Tp[name.upper()], BINARY, flen, fsp)
    if name == "time":
        return FieldType(Tp.DURATION, BINARY, 10 + (a + 1 if a else 0), a or 0)
    if name == "year":
        return FieldType(Tp.YEAR, UNSIGNED | ZEROFILL | BINARY, 4)
    if name == "bit":
        return FieldType(Tp.BIT, UNSIGNED, 1 if a is None else a)
    return _string_type(sql, name, a)


def _string_type(sql: str, name: str, length: int | None) -> FieldType:
    if name in _STRING_NAMES:
        tp, binary = _STRING_NAMES[name]
        flen = 1 if length is None else length
    elif name.endswith(("text", "blob")) and name[:-4] in _BLOB_NAMES:
        tp, flen = _BLOB_NAMES[name[:-4]]
        binary = name.endswith("blob")
    else:
        raise ValueError(f"the development cluster can't write columns of type {sql!r}")
    return FieldType(tp, BINARY, flen) if binary else FieldType(tp, 0, flen, 0, CHARSET, COLLATE)


@dataclass(frozen=True)
class Column:
    """A column to be made. `type` is SQL text; `default` a text or number; `unique` makes a secondary unique index."""

    name: str
    type: str
    nullable: bool = False
    default: str | int | None = None
    unique: bool = False

    def sql(self) -> str:
        parts = [f"`{self.name}`", self.type, "NULL" if self.nullable else "NOT NULL"]
        if self.default is not None:
            parts.append(f"DEFAULT '{self.default}'")
        return " ".join(parts)


@dataclass(frozen=True)
class ColumnInfo:
    """A stored column. `origin_default` is what rows written before the column was added have."""

    id: int
    name: str
    offset: int
    type: FieldType
    default: str | None = None
    origin_default: str | None = None

    @property
    def nullable(self) -> bool:
        return not self.type.flag & NOT_NULL

    def to_json(self) -> Json:
        (origin, origin_bit), (default, bit) = _kept(self.type, self.origin_default), _kept(self.type, self.default)
        return {
            "id": self.id, "name": ci_str(self.name), "offset": self.offset,
            "origin_default": origin, "origin_default_bit": origin_bit,
            "default": default, "default_bit": bit, "default_is_expr": False,
            "generated_expr_string": "", "generated_stored": False, "dependences": None,
            "type": self.type.to_json(), "state": PUBLIC, "comment": "", "hidden": False,
            "change_state_info": None, "version": 2,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Json) -> ColumnInfo:
        field = FieldType.from_json(data["type"])
        default, origin = (_given(data[name], data[f"{name}_bit"]) for name in ("default", "origin_default"))
        return cls(data["id"], data["name"]["O"], data["offset"], field, default, origin)


def _kept(field: FieldType, default: str | None) -> tuple[str | None, str | None]:
    """A default as TiDB keeps it: of BIT its bytes, as text that may be spoilt, and in base64."""
    if default is None or field.tp is not Tp.BIT:
        return default, None
    raw = int(default).to_bytes((field.flen + 7) // 8, "big")
    return raw.decode(errors="replace"), base64.b64encode(raw).decode()


def _given(default: str | None, bits: str | None) -> str | None:
    return default if bits is None else str(int.from_bytes(base64.b64decode(bits), "big"))


@dataclass(frozen=True)
class IndexInfo:
    """A unique secondary index over one whole column."""

    id: int
    name: str
    column: str

    def to_json(self, offsets: Mapping[str, int]) -> Json:
        return _index_json(self.id, self.name, [self.column], offsets)

    @classmethod
    def from_json(cls, data: Json) -> IndexInfo:
        return cls(data["id"], data["idx_name"]["O"], data["idx_cols"][0]["name"]["O"])


def _index_json(index_id: int, name: str, columns: Sequence[str], offsets: Mapping[str, int]) -> Json:
    return {
            "id": index_id, "idx_name": ci_str(name), "tbl_name": ci_str(""),
            "idx_cols": [{"name": ci_str(c), "offset": offsets[c], "length": UNSPECIFIED} for c in columns],
            "state": PUBLIC, "backfill_state": 0, "comment": "", "index_type": 1, "is_unique": True,
            "is_primary": name == PRIMARY, "is_invisible": False, "is_global": False, "mv_index": False,
        "vector_index": None,
    }  # fmt: skip


@dataclass(frozen=True)
class TableInfo:
    """A stored table. `pk` is the integer primary key column, None for a table whose handle is another.

    `clustered` are the columns of a primary key of other types or of more than one column; without any the handle is
    `_tidb_rowid`.
    """

    id: int
    name: str
    columns: tuple[ColumnInfo, ...]
    indexes: tuple[IndexInfo, ...] = ()
    pk: str | None = None
    max_column_id: int = 0
    update_ts: int = 0
    clustered: tuple[str, ...] = ()
    partitions: tuple[Partition, ...] = ()

    @property
    def only_in_key(self) -> frozenset[str]:
        """The columns that rows lack: a sort key in the key does not give a VARCHAR's trailing spaces back."""
        if self.pk is not None:
            return frozenset({self.pk})
        types = {column.name: column.type for column in self.columns}
        return frozenset(c for c in self.clustered if not (types[c].is_text and types[c].tp is Tp.VARCHAR))

    def to_json(self) -> Json:
        offsets = {column.name: column.offset for column in self.columns}
        indexes = [index.to_json(offsets) for index in self.indexes]
        if self.clustered:
            indexes.append(_index_json(len(indexes) + 1, PRIMARY, self.clustered, offsets))
        return {
            "id": self.id, "name": ci_str(self.name), "charset": CHARSET, "collate": COLLATE,
            "cols": [column.to_json() for column in self.columns],
            "index_info": indexes,
            "constraint_info": None, "fk_info": None, "state": PUBLIC, "pk_is_handle": self.pk is not None,
            "is_common_handle": bool(self.clustered), "common_handle_version": int(bool(self.clustered)),
            "comment": "", "auto_inc_id": 0,
            "auto_id_cache": 0, "auto_rand_id": 0, "max_col_id": self.max_column_id, "max_idx_id": len(indexes),
            "max_fk_id": 0, "max_cst_id": 0, "update_timestamp": self.update_ts, "ShardRowIDBits": 0,
            "max_shard_row_id_bits": 0, "auto_random_bits": 0, "auto_random_range_bits": 0, "pre_split_regions": 0,
            "partition": partitions_to_json(self.pk or "", self.partitions),
            "compression": "", "view": None, "sequence": None, "Lock": None, "version": 5,
            "tiflash_replica": None, "is_columnar": False, "temp_table_type": 0, "cache_table_status": 0,
            "policy_ref_info": None, "stats_options": None, "exchange_partition_info": None, "ttl_info": None,
            "revision": 1,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Json) -> TableInfo:
        columns = tuple(ColumnInfo.from_json(column) for column in data["cols"])
        pk = None
        if data["pk_is_handle"]:
            pk = next(column.name for column in columns if column.type.flag & PRIMARY_KEY)
        indexes = tuple(IndexInfo.from_json(index) for index in data["index_info"] if not index["is_primary"])
        primary = next((index["idx_cols"] for index in data["index_info"] if index["is_primary"]), ())
        clustered = tuple(column["name"]["O"] for column in primary)
        name, last_id, ts = data["name"]["O"], data["max_col_id"], data["update_timestamp"]
        partitions = partitions_from_json(data["partition"])
        return cls(data["id"], name, columns, indexes, pk, last_id, ts, clustered, partitions)


@dataclass(frozen=True)
class DbInfo:
    id: int
    name: str

    def to_json(self) -> Json:
        return {
            "id": self.id, "db_name": ci_str(self.name), "charset": CHARSET, "collate": COLLATE,
            "Deprecated": {}, "state": PUBLIC, "policy_ref_info": None,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Json) -> DbInfo:
        return cls(data["id"], data["db_name"]["O"])


def ci_str(name: str) -> Json:
    return {"O": name, "L": name.lower()}


def dump(data: Json) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def make_column(column: Column, column_id: int, offset: int, is_pk: bool = False) -> ColumnInfo:
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
    return ColumnInfo(column_id, column.name, offset, replace(base, flag=flag), default)


PrimaryKey = str | Sequence[str] | None  # a column, several, or none: `_tidb_rowid`


def _key_columns(pk: PrimaryKey) -> tuple[str, ...]:
    return () if pk is None else (pk,) if isinstance(pk, str) else tuple(pk)


def make_table(table_id: int, name: str, columns: Sequence[Column], pk: PrimaryKey) -> TableInfo:
    """A new table's stored form; its primary key is clustered. Raises ValueError when `pk` names no columns."""
    members = _key_columns(pk)
    for missing in set(members) - {column.name for column in columns}:
        raise ValueError(f"table {name}: its primary key {missing!r} is not one of its columns")
    infos = tuple(make_column(column, n + 1, n, column.name in members) for n, column in enumerate(columns))
    is_int = len(members) == 1 and any(c.name in members and c.type.tp in INTEGERS for c in infos)
    unique = [column.name for column in columns if column.unique]
    indexes = tuple(IndexInfo(n + 1, column, column) for n, column in enumerate(unique))
    handle, clustered = (members[0], ()) if is_int else (None, members)
    return TableInfo(table_id, name, infos, indexes, handle, len(infos), clustered=clustered)


def with_column(info: TableInfo, column: Column) -> TableInfo:
    """The table after ADD COLUMN: old rows have the column's default."""
    column_id = info.max_column_id + 1
    added = make_column(column, column_id, len(info.columns))
    added = replace(added, origin_default=added.default)
    return replace(info, columns=(*info.columns, added), max_column_id=column_id)


def create_table_sql(db: str, name: str, columns: Sequence[Column], pk: PrimaryKey) -> str:
    parts = [column.sql() for column in columns]
    if pk is not None:
        parts.append(f"PRIMARY KEY ({', '.join(f'`{column}`' for column in _key_columns(pk))})")
    parts += [f"UNIQUE KEY `{column.name}` (`{column.name}`)" for column in columns if column.unique]
    return f"CREATE TABLE `{db}`.`{name}` ({', '.join(parts)})"


def ddl_job_table() -> TableInfo:
    """`mysql.tidb_ddl_job`, where changefeeds learn of DDLs (facts, 4.5)."""
    columns = [
        Column("job_id", "bigint"),
        Column("reorg", "int", nullable=True),
        Column("schema_ids", "text", nullable=True),
        Column("table_ids", "text", nullable=True),
        Column("job_meta", "longblob", nullable=True),
        Column("type", "int", nullable=True),
        Column("processing", "int", nullable=True),
    ]
    return make_table(DDL_JOB_TABLE_ID, DDL_JOB_TABLE, columns, "job_id")


@dataclass(frozen=True)
class Table:
    """A table of a database, as it stands after some DDL."""

    db: DbInfo
    info: TableInfo

    @property
    def id(self) -> int:
        return self.info.id

    @property
    def name(self) -> str:
        return f"{self.db.name}.{self.info.name}"

    @property
    def physical_ids(self) -> tuple[int, ...]:
        """Under which its rows stand."""
        return tuple(partition.id for partition in self.info.partitions) or (self.id,)

    def physical_id(self, handle: int | bytes) -> int:
        """Under which a row stands. Raises ValueError for one that no partition holds."""
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
