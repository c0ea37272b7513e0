"""Schema files: what a table version's rows mean, with the format and checksum that TiCDC's readers recompute.

See docs/sink-files.md, The schema file. The bytes are exact: the checksum in the name covers a form of them.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from changefeed.errors import OutputConflict
from changefeed.objectstore import ObjectStore
from changefeed.objectstore.once import create_bytes
from changefeed.objectstore.patience import Patience
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo, TableInfo, column_type_name
from changefeed.sink.contract import Ddl
from changefeed.sink.storage.layout import schema_file, table_path

_FORMAT_VERSION = 1
_VIRTUAL = "ColumnVirtual"
_UNSET = -1
# MySQL's (length, decimals) of a type that was declared without them.
_DEFAULT_LENGTHS = {
    SqlType.BIT: (1, 0),
    SqlType.TINYINT: (4, 0),
    SqlType.SMALLINT: (6, 0),
    SqlType.MEDIUMINT: (9, 0),
    SqlType.INT: (11, 0),
    SqlType.BIGINT: (20, 0),
    SqlType.DOUBLE: (22, _UNSET),
    SqlType.FLOAT: (12, _UNSET),
    SqlType.DECIMAL: (10, 0),
    SqlType.TIME: (10, 0),
    SqlType.TIMESTAMP: (19, 0),
    SqlType.DATETIME: (19, 0),
    SqlType.YEAR: (4, 0),
    SqlType.CHAR: (1, 0),
    SqlType.VARCHAR: (5, 0),
    SqlType.VAR_STRING: (5, 0),
    SqlType.TINYTEXT: (255, 0),
    SqlType.TEXT: (65_535, 0),
    SqlType.MEDIUMTEXT: (16_777_215, 0),
    SqlType.LONGTEXT: (4_294_967_295, 0),
}
_WITH_FSP = frozenset({SqlType.TIMESTAMP, SqlType.DATETIME, SqlType.TIME})
_FLOATS = frozenset({SqlType.FLOAT, SqlType.DOUBLE})
_WITH_ELEMS = frozenset({SqlType.ENUM, SqlType.SET})
# Go's encoder writes these so, because they mean something in HTML or in JavaScript.
_GO_ESCAPES = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


@dataclass(frozen=True)
class SchemaFile:
    """A schema file's content; `table` "" and no columns: a database's. `table_id`: of whose folder it stands in; None:
    folders have names.
    """

    schema: str
    table: str
    table_version: int
    columns: tuple[Mapping[str, Any], ...] = ()
    query: str = ""
    type: int = 0  # TiDB's ActionType; 0 with no query: the table was there before
    table_id: int | None = None

    @classmethod
    def of(
        cls, table: TableInfo, table_version: int, query: str = "", type_: int = 0, table_id: int | None = None
    ) -> SchemaFile:
        columns = tuple(column_json(column) for column in table.columns)
        return cls(table.schema_name, table.name, table_version, columns, query, type_, table_id)

    @property
    def path(self) -> str:
        directory = f"{self.schema}/{self.table}" if self.table else self.schema
        if self.table_id is not None:
            directory = str(self.table_id)
        return schema_file(directory, self.table_version, self.checksum)

    @property
    def checksum(self) -> int:
        """CRC-32 of the part that TiCDC's readers know: no versions, no query, columns by name."""
        content = {
            "Table": self.table,
            "Schema": self.schema,
            "Version": 0,
            "TableColumns": sorted(_unmarked(self.columns), key=lambda column: str(column["ColumnName"]).encode()),
            "TableColumnsTotal": len(self.columns),
        }
        return zlib.crc32(_go_json(content))

    @property
    def body(self) -> bytes:
        return self._body(self.columns)

    @property
    def unmarked_body(self) -> bytes:
        """As TiCDC has it, and 0.1.0 wrote it."""
        return self._body(_unmarked(self.columns))

    def _body(self, columns: Sequence[Mapping[str, Any]]) -> bytes:
        return _go_json(
            {
                "Table": self.table,
                "Schema": self.schema,
                "Version": _FORMAT_VERSION,
                "TableVersion": self.table_version,
                "Query": self.query,
                "Type": self.type,
                "TableColumns": list(columns) or None,
                "TableColumnsTotal": len(columns),
            }
        )


def files_of(ddl: Ddl, by_id: bool = False) -> list[SchemaFile]:
    """The schema files that tell readers of a DDL.

    By id, the table's own folder gets the statement, and each partition's the definition. A database has no folder
    then, so readers are told nothing about what is done to it as a whole.
    """
    files: list[SchemaFile] = []
    for notice in ddl.notices:
        statement = (ddl.query, ddl.change.type if ddl.change else 0) if notice.with_statement else ("", 0)
        if (table := notice.table) is None:
            files += [] if by_id else [SchemaFile(notice.database, "", ddl.ts, (), *statement)]
            continue
        files.append(SchemaFile.of(table, ddl.ts, *statement, table.id if by_id else None))
        if by_id and notice.has_rows:
            files += [SchemaFile.of(table, ddl.ts, table_id=partition) for partition in table.partition_ids]
    return files


def write_schema_file(
    store: ObjectStore,
    table: TableInfo,
    table_version: int,
    query: str = "",
    type_: int = 0,
    table_id: int | None = None,
) -> str:
    """Make sure that the schema file of exactly this version stands; its path (rule 26).

    Raises OutputConflict when it stands with another content, NeedsHuman for a name that can't be a folder.
    """
    if table_id is None:
        table_path(table)
    return write(store, SchemaFile.of(table, table_version, query, type_, table_id))


def write(
    store: ObjectStore,
    file: SchemaFile,
    patience: Patience | None = None,
    again: Callable[[], object] = lambda: None,
) -> str:
    """See `write_schema_file`, and `create_once`. One that 0.1.0 has written stays as it is."""
    try:
        create_bytes(store, file.path, file.body, patience, again)
    except OutputConflict:
        if store.get(file.path).body != file.unmarked_body:
            raise
    return file.path


def column_json(column: ColumnInfo) -> dict[str, Any]:
    """One of TableColumns, members in their order."""
    optional = {
        "ColumnDefault": column.default,
        **_lengths(column),
        "ColumnNullable": None if column.nullable else "false",
        "ColumnIsPk": "true" if column.is_pk else None,
        "ColumnElems": (list(column.elems) or None) if column.type in _WITH_ELEMS else None,
        _VIRTUAL: "true" if column.is_generated_virtual else None,
    }
    present = {name: value for name, value in optional.items() if value is not None}
    return {"ColumnName": column.name, "ColumnType": column_type_name(column), **present}


def _unmarked(columns: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [{name: value for name, value in column.items() if name != _VIRTUAL} for column in columns]


def _lengths(column: ColumnInfo) -> dict[str, str]:
    default_length, default_decimals = _DEFAULT_LENGTHS.get(column.type, (_UNSET, 0))
    precision = str(default_length if column.flen == _UNSET else column.flen)
    scale = str(default_decimals if column.decimal == _UNSET else column.decimal)
    has_own_scale = column.decimal not in (default_decimals, 0, _UNSET)
    if column.type in _WITH_FSP:
        return {"ColumnScale": scale} if has_own_scale else {}
    if column.type == SqlType.DECIMAL or (column.type in _FLOATS and has_own_scale):
        return {"ColumnPrecision": precision, "ColumnScale": scale}
    return {"ColumnPrecision": precision} if column.type in _DEFAULT_LENGTHS else {}


def _go_json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=4, ensure_ascii=False).translate(_GO_ESCAPES).encode()
