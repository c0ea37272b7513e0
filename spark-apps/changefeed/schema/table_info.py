"""TableInfo and DBInfo as TiDB stores them, reduced to what affects decoding and output.

See docs/design/tidb.md, Definitions.

Parsing ignores unknown fields and fills in missing ones with zero values, because each TiDB version adds and drops
some. A field that affects no output byte (update_timestamp, auto ids, comments) must never get into `TableInfo.hash`:
the log identifies a TableInfo by it (rule 10).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from changefeed.errors import NeedsHuman
from changefeed.schema.masks import Mask
from changefeed.schema.sql_type import SqlType

INTEGERS = frozenset({SqlType.TINYINT, SqlType.SMALLINT, SqlType.MEDIUMINT, SqlType.INT, SqlType.BIGINT})
STRINGS = frozenset({SqlType.VARCHAR, SqlType.VAR_STRING, SqlType.CHAR})
BLOBS = frozenset({SqlType.TINYTEXT, SqlType.MEDIUMTEXT, SqlType.LONGTEXT, SqlType.TEXT})

FLAG_NOT_NULL, FLAG_PRI_KEY, FLAG_UNIQUE_KEY, FLAG_UNSIGNED = 1, 2, 4, 32

STATE_PUBLIC = 5


@dataclass(frozen=True)
class ColumnInfo:
    """One column. `flag` has the bits of FLAG_NOT_NULL and its like; `flen` and `decimal` are -1 where unset."""

    id: int
    name: str
    offset: int
    type: SqlType
    flag: int
    flen: int
    decimal: int
    charset: str
    collate: str
    elems: tuple[str, ...]
    default: Any  # of future inserts; JSON value, normally a string
    default_bit: str | None  # base64
    origin_default: Any  # of rows older than the column; JSON value
    origin_default_bit: str | None
    is_generated: bool
    is_generated_stored: bool
    hidden: bool
    version: int

    @property
    def nullable(self) -> bool:
        return not self.flag & FLAG_NOT_NULL

    @property
    def is_pk(self) -> bool:
        return bool(self.flag & FLAG_PRI_KEY)

    @property
    def is_unsigned(self) -> bool:
        return bool(self.flag & FLAG_UNSIGNED)

    @property
    def is_binary(self) -> bool:
        """Bytes without a charset. TiDB says "binary" of numbers and times too, whose text is text."""
        return self.charset == "binary" and self.type in STRINGS | BLOBS

    @property
    def is_generated_virtual(self) -> bool:
        """Computed when read: such a column never stands in a row's value."""
        return self.is_generated and not self.is_generated_stored


@dataclass(frozen=True)
class IndexInfo:
    """A public index: column names with the prefix length that is indexed (-1 = the whole column)."""

    id: int
    name: str
    columns: tuple[tuple[str, int], ...]
    is_unique: bool
    is_primary: bool


@dataclass(frozen=True)
class DatabaseInfo:
    id: int
    name: str
    charset: str
    collate: str
    state: int


@dataclass(frozen=True)
class TableInfo:
    """One version of a table's definition. `columns` are the public ones, ordered by offset."""

    id: int
    name: str
    schema_name: str
    columns: tuple[ColumnInfo, ...]
    pk_is_handle: bool
    is_common_handle: bool
    indexes: tuple[IndexInfo, ...]
    partition_ids: tuple[int, ...]
    is_view: bool
    is_sequence: bool
    is_temporary: bool
    state: int
    raw: Mapping[str, Any] = field(compare=False, repr=False)
    upstream: str = "tikv"  # whose decoder knows its rows
    source: tuple[str, str] | None = None  # (database, table) upstream, of one that is written under another name
    stored: TableInfo | None = None  # as the upstream defines it, of one whose columns are written otherwise
    masks: tuple[tuple[int, Mask], ...] = ()  # by the ids of columns

    @property
    def full_name(self) -> str:
        """For people: of another table it can be the same text."""
        return f"{self.schema_name}.{self.name}"

    @property
    def qualified(self) -> tuple[str, str]:
        """(database, table), by which a table is known."""
        return self.schema_name, self.name

    @property
    def upstream_name(self) -> tuple[str, str]:
        """(database, table), by which the upstream and `spec.filter` know it."""
        return self.source or self.qualified

    @property
    def unrouted(self) -> TableInfo:
        """The table as the upstream defines it."""
        if self.stored is not None:
            return self.stored
        if self.source is None:
            return self
        return replace(self, schema_name=self.source[0], name=self.source[1], source=None)

    @property
    def decoded_by(self) -> TableInfo:
        """The definition that has the columns of the upstream's rows."""
        return self if self.stored is None else self.stored

    def said_key(self, key: bytes) -> str:
        """A row's raw key for a message, unless there are columns that nobody outside is to see."""
        return f"key {key.hex()}" if self.stored is None else "a key that is not shown (spec.columns)"

    @property
    def physical_ids(self) -> tuple[int, ...]:
        """The ids under which rows stand: the partitions', or the table's own."""
        return self.partition_ids or (self.id,)

    @cached_property
    def output_columns(self) -> tuple[ColumnInfo, ...]:
        """The columns that a sink sees: virtual generated ones are not on the wire.

        See docs/design/tidb.md, Visible columns.
        """
        return tuple(column for column in self.columns if not column.is_generated_virtual)

    @cached_property
    def handle_column(self) -> ColumnInfo | None:
        """The column whose value is the key's int handle."""
        if not self.pk_is_handle:
            return None
        return next((column for column in self.columns if column.is_pk), None)

    @cached_property
    def common_handle(self) -> tuple[tuple[ColumnInfo, bool], ...]:
        """The columns of a clustered primary key that is no int handle, and whether keys hold the whole of each."""
        if not self.is_common_handle:
            return ()
        by_name = {column.name: column for column in self.columns}
        primary = next(index for index in self.indexes if index.is_primary)
        members = ((by_name[name], length) for name, length in primary.columns)
        return tuple((column, length == -1 or length >= column.flen) for column, length in members)

    @cached_property
    def hash(self) -> str:
        """Hex SHA-256 of the canonical JSON of what decides decoding and output (rule 10)."""
        canonical = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """What the log stores by `hash`: TiDB's own member names, nothing else than what `from_json` needs."""
        return {
            "schema_name": self.schema_name,
            "id": self.id,
            "name": self.name,
            "cols": [column_json(column) for column in self.columns],
            "pk_is_handle": self.pk_is_handle,
            "is_common_handle": self.is_common_handle,
            "index_info": [_index_json(index) for index in self.indexes],
            "partition": {"enable": True, "definitions": [{"id": i} for i in self.partition_ids]}
            if self.partition_ids
            else None,
            "view": {} if self.is_view else None,
            "sequence": {} if self.is_sequence else None,
            "temp_table_type": int(self.is_temporary),
            "state": self.state,
            **({} if self.upstream == "tikv" else {"upstream": self.upstream}),
            **({} if self.source is None else {"routed_from": list(self.source)}),
            **({} if self.stored is None else {"shaped_from": self.stored.to_json()}),
            **({} if not self.masks else {"masks": {str(id_): mask.to_json() for id_, mask in self.masks}}),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> TableInfo:
        """The inverse of `to_json`."""
        return parse_table_info(stored, stored["schema_name"])


def column_type_name(column: ColumnInfo) -> str:
    """The upper-case type as TiCDC's schema file has it, e.g. "INT UNSIGNED" (docs/sink-files.md, The schema file)."""
    name = "DATE" if column.type is SqlType.NEW_DATE else column.type.name
    if column.is_binary:
        name = name.replace("TEXT", "BLOB").replace("VARCHAR", "VARBINARY").replace("CHAR", "BINARY")
    return f"{name} UNSIGNED" if column.is_unsigned else name


@contextmanager
def as_tidb_writes(what: str) -> Iterator[None]:
    """Around the reading of JSON that TiDB has written. Raises NeedsHuman when its members are of other kinds."""
    try:
        yield
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise NeedsHuman(
            f"{what} is not as TiDB writes it ({type(error).__name__}: {error}).",
            "This TiDB version is not supported: report it with that JSON.",
        ) from error


def parse_database_info(info: Mapping[str, Any]) -> DatabaseInfo:
    """A DBInfo JSON object. Raises NeedsHuman."""
    with as_tidb_writes("a database's definition"):
        return DatabaseInfo(
            id=_int(info, "id"),
            name=name_of(info.get("db_name")),
            charset=info.get("charset") or "",
            collate=info.get("collate") or "",
            state=_int(info, "state"),
        )


def parse_table_info(info: Mapping[str, Any], schema_name: str) -> TableInfo:
    """A TableInfo JSON object of the database `schema_name`. Raises NeedsHuman."""
    with as_tidb_writes(f"the definition of a table of {schema_name}"):
        return _table(info, schema_name)


def _table(info: Mapping[str, Any], schema_name: str) -> TableInfo:
    columns = (_column(column) for column in info.get("cols") or () if _is_public(column))
    partition = info.get("partition") or {}
    definitions = (partition.get("definitions") or ()) if partition.get("enable") else ()
    return TableInfo(
        id=_int(info, "id"),
        name=name_of(info.get("name")),
        schema_name=schema_name,
        columns=tuple(sorted(columns, key=lambda column: column.offset)),
        pk_is_handle=bool(info.get("pk_is_handle")),
        is_common_handle=bool(info.get("is_common_handle")),
        indexes=tuple(_index(index) for index in info.get("index_info") or () if _is_public(index)),
        partition_ids=tuple(_int(definition, "id") for definition in definitions),
        is_view=info.get("view") is not None,
        is_sequence=info.get("sequence") is not None,
        is_temporary=_int(info, "temp_table_type") != 0,
        state=_int(info, "state"),
        raw=info,
        upstream=info.get("upstream") or "tikv",
        source=tuple(source) if (source := info.get("routed_from")) else None,
        stored=TableInfo.from_json(stored) if (stored := info.get("shaped_from")) else None,
        masks=tuple((int(id_), Mask.from_json(mask)) for id_, mask in (info.get("masks") or {}).items()),
    )


def _column(info: Mapping[str, Any]) -> ColumnInfo:
    field_type = info.get("type") or {}
    return ColumnInfo(
        id=_int(info, "id"),
        name=name_of(info.get("name")),
        offset=_int(info, "offset"),
        type=SqlType(_int(field_type, "Tp")),
        flag=_int(field_type, "Flag"),
        flen=_int(field_type, "Flen", -1),
        decimal=_int(field_type, "Decimal", -1),
        charset=field_type.get("Charset") or "",
        collate=field_type.get("Collate") or "",
        elems=tuple(field_type.get("Elems") or ()),
        default=info.get("default"),
        default_bit=info.get("default_bit"),
        origin_default=info.get("origin_default"),
        origin_default_bit=info.get("origin_default_bit"),
        is_generated=bool(info.get("generated_expr_string")),
        is_generated_stored=bool(info.get("generated_stored")),
        hidden=bool(info.get("hidden")),
        version=_int(info, "version"),
    )


def column_json(column: ColumnInfo) -> dict[str, Any]:
    """A column as `TableInfo.to_json` has it."""
    return {
        "id": column.id,
        "name": column.name,
        "offset": column.offset,
        "type": {
            "Tp": column.type,
            "Flag": column.flag,
            "Flen": column.flen,
            "Decimal": column.decimal,
            "Charset": column.charset,
            "Collate": column.collate,
            "Elems": list(column.elems),
        },
        "default": column.default,
        "default_bit": column.default_bit,
        "origin_default": column.origin_default,
        "origin_default_bit": column.origin_default_bit,
        "generated_expr_string": "generated" if column.is_generated else "",
        "generated_stored": column.is_generated_stored,
        "hidden": column.hidden,
        "version": column.version,
        "state": STATE_PUBLIC,
    }


def _index(info: Mapping[str, Any]) -> IndexInfo:
    return IndexInfo(
        id=_int(info, "id"),
        name=name_of(info.get("idx_name")),
        columns=tuple((name_of(c.get("name")), _int(c, "length", -1)) for c in info.get("idx_cols") or ()),
        is_unique=bool(info.get("is_unique")),
        is_primary=bool(info.get("is_primary")),
    )


def _index_json(index: IndexInfo) -> dict[str, Any]:
    return {
        "id": index.id,
        "idx_name": index.name,
        "idx_cols": [{"name": name, "length": length} for name, length in index.columns],
        "is_unique": index.is_unique,
        "is_primary": index.is_primary,
        "state": STATE_PUBLIC,
    }


def _is_public(info: Mapping[str, Any]) -> bool:
    return _int(info, "state") == STATE_PUBLIC


def _int(info: Mapping[str, Any], member: str, absent: int = 0) -> int:
    value = info.get(member)
    return absent if value is None else int(value)


def name_of(value: object) -> str:
    """An identifier: TiDB's {"O": original, "L": lower case}, or the original alone."""
    if isinstance(value, Mapping):
        return str(value.get("O") or "")
    return str(value or "")
