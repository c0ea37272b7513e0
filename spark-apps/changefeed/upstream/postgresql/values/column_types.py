"""For each of PostgreSQL's types the SQL type that is nearest.

| PostgreSQL | here |
| --- | --- |
| boolean | TINYINT(1), 1 or 0 |
| smallint, integer, bigint | SMALLINT, INT, BIGINT |
| oid | BIGINT |
| real, double precision | FLOAT, DOUBLE; NaN and infinity stay |
| numeric(p, s), with p up to 65 and s up to 30 | DECIMAL; a NaN is refused |
| numeric of other or no precision | text, with NaN and infinity as they are |
| varchar(n), up to 16383; name | VARCHAR |
| char(n), up to 255; uuid | CHAR; char keeps the blanks up to its length |
| bytea | LONGBLOB |
| date | DATE |
| timestamp | DATETIME, without a zone |
| timestamptz | TIMESTAMP, in the changefeed's time zone |
| time | TIME |
| bit(n), up to 64 | BIT |
| json, jsonb | JSON; json keeps its spelling |
| all others | text, as PostgreSQL writes it |

The others are text and longer varchar and char, timetz, interval (in the style that the session sets), arrays, enums,
ranges, inet and its like, money (in the session's lc_monetary), longer bit and varbit, xml, hstore, tsvector,
geometric types, composites, pg_lsn, xid8, and what extensions bring. An enum is text because its values are not
numbered: one may be added between two others. A domain is what it is based on, which the catalog knows, not the stream.

docs/reference/postgresql-types.md has what each sink makes of them.

Of dates and times those are refused that a sink's types can't hold: infinity, years before 1 and after 9999. A row is
never changed to fit; the error names table, column and key.
"""

from __future__ import annotations

from dataclasses import dataclass

from changefeed.schema.sql_type import SqlType

_BOOL, _BYTEA, _NAME, _INT8, _INT2, _INT4, _OID, _JSON = 16, 17, 19, 20, 21, 23, 26, 114
_FLOAT4, _FLOAT8, _BPCHAR, _VARCHAR, _DATE, _TIME, _TIMESTAMP, _TIMESTAMPTZ = (
    700,
    701,
    1042,
    1043,
    1082,
    1083,
    1114,
    1184,
)
_BIT, _NUMERIC, _UUID, _JSONB = 1560, 1700, 2950, 3802

_TYPMOD_HEAD = 4  # bytes that typmods of variable length count, too
_MAX_PRECISION, _MAX_SCALE = 65, 30
_MAX_VARCHAR = 16_383
_MAX_CHAR = 255
_MAX_BIT = 64
_MAX_FSP = 6


@dataclass(frozen=True)
class NearestType:
    """What a ColumnInfo says of the type; -1 where it says nothing."""

    type: SqlType
    flen: int = -1
    decimal: int = -1
    charset: str = ""
    collate: str = ""

    def to_json(self, flag: int) -> dict[str, object]:
        """The member `type` of a column for `parse_table_info`. `flag`: NOT NULL and its like."""
        return {
            "Tp": int(self.type),
            "Flag": flag,
            "Flen": self.flen,
            "Decimal": self.decimal,
            "Charset": self.charset,
            "Collate": self.collate,
            "Elems": [],
        }


def _text(kind: SqlType, flen: int = -1) -> NearestType:
    return NearestType(kind, flen, charset="utf8mb4", collate="utf8mb4_bin")


_LONG_TEXT = _text(SqlType.LONGTEXT)
_PLAIN = {
    _BOOL: NearestType(SqlType.TINYINT, 1),
    _INT2: NearestType(SqlType.SMALLINT),
    _INT4: NearestType(SqlType.INT),
    _INT8: NearestType(SqlType.BIGINT),
    _OID: NearestType(SqlType.BIGINT),
    _FLOAT4: NearestType(SqlType.FLOAT),
    _FLOAT8: NearestType(SqlType.DOUBLE),
    _BYTEA: NearestType(SqlType.LONGTEXT, charset="binary", collate="binary"),
    _DATE: NearestType(SqlType.DATE),
    _UUID: _text(SqlType.CHAR, 36),
    _NAME: _text(SqlType.VARCHAR, 63),
    _JSON: NearestType(SqlType.JSON),
    _JSONB: NearestType(SqlType.JSON),
}
_CLOCKS = {_TIME: SqlType.TIME, _TIMESTAMP: SqlType.DATETIME, _TIMESTAMPTZ: SqlType.TIMESTAMP}


def nearest_type(type_oid: int, typmod: int) -> NearestType:
    """What columns of that type are here; `type_oid` is that of a domain's base type."""
    if type_oid in _PLAIN:
        return _PLAIN[type_oid]
    if type_oid in _CLOCKS:
        return NearestType(_CLOCKS[type_oid], decimal=typmod if 0 <= typmod <= _MAX_FSP else _MAX_FSP)
    size = typmod - _TYPMOD_HEAD
    if type_oid == _NUMERIC and typmod >= _TYPMOD_HEAD:
        return _numeric(size)
    if type_oid == _VARCHAR and 0 < size <= _MAX_VARCHAR:
        return _text(SqlType.VARCHAR, size)
    if type_oid == _BPCHAR and 0 < size <= _MAX_CHAR:
        return _text(SqlType.CHAR, size)
    if type_oid == _BIT and 0 < typmod <= _MAX_BIT:
        return NearestType(SqlType.BIT, typmod)
    return _LONG_TEXT


def _numeric(modifier: int) -> NearestType:
    """Precision and a signed scale of 11 bits: digits may begin behind the point, or end ahead of it."""
    precision, scale = modifier >> 16 & 0xFFFF, ((modifier & 0x7FF) ^ 0x400) - 0x400
    whole, fraction = max(precision - scale, 0), max(scale, 0)
    if whole + fraction > _MAX_PRECISION or fraction > _MAX_SCALE:
        return _LONG_TEXT
    return NearestType(SqlType.DECIMAL, whole + fraction, fraction)
