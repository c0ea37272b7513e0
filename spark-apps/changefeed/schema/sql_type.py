"""The SQL types of columns, whichever upstream they come from."""

from __future__ import annotations

from enum import IntEnum


class SqlType(IntEnum):
    """A column's type, but for its length, sign and character set. Text and bytes differ by the latter alone.

    The numbers stand in the log (`TableInfo.to_json`). An upstream may have types that are not here: they are named by
    their numbers, and no table that has one can be selected.
    """

    TINYINT = 1
    SMALLINT = 2
    INT = 3
    FLOAT = 4
    DOUBLE = 5
    NULL = 6
    TIMESTAMP = 7
    BIGINT = 8
    MEDIUMINT = 9
    DATE = 10
    TIME = 11
    DATETIME = 12
    YEAR = 13
    NEW_DATE = 14
    VARCHAR = 15
    BIT = 16
    VECTOR = 225
    JSON = 245
    DECIMAL = 246
    ENUM = 247
    SET = 248
    TINYTEXT = 249
    MEDIUMTEXT = 250
    LONGTEXT = 251
    TEXT = 252
    VAR_STRING = 253
    CHAR = 254
    GEOMETRY = 255

    @classmethod
    def _missing_(cls, value: object) -> SqlType | None:
        if not isinstance(value, int):
            return None
        unknown = int.__new__(cls, value)
        unknown._name_, unknown._value_ = f"TYPE{value}", value
        return unknown
