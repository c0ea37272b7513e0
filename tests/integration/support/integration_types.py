"""Values of every scalar type, and what stands for each in the files.

The texts are written out here, one by one, from what TiCDC documents (docs/sink-files.md, csv,
canal-json): nothing of the product has computed them. Clocks are those of `ZONE`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

ZONE = "Europe/Berlin"


@dataclass(frozen=True)
class Cell:
    """A value, as the development cluster takes it, and what stands for it in a line, its quotes included."""

    value: Any
    csv: str
    json: str
    java: int | None = None  # its Java type, where that is not the column's


@dataclass(frozen=True)
class Kind:
    """A column type, its names in canal-json, and cells of it."""

    sql: str
    mysql: str
    java: int
    cells: tuple[Cell, ...]


NULL = Cell(None, "\\N", "null")


def plain(value: Any, csv: str, json: str | None = None, java: int | None = None) -> Cell:
    """A number: without quotes in csv."""
    return Cell(value, csv, f'"{csv if json is None else json}"', java)


def text(value: Any, csv: str, json: str | None = None) -> Cell:
    return Cell(value, f'"{csv}"', f'"{csv if json is None else json}"')


def integers(sql: str, java: int, *numbers: tuple[int, str], larger: tuple[int, str, int] | None = None) -> Kind:
    """`larger`: one more, whose Java type is not the column's."""
    cells = [plain(*number) for number in numbers]
    if larger is not None:
        cells.append(plain(larger[0], larger[1], java=larger[2]))
    return Kind(sql, sql, java, tuple(cells))


INTEGERS = (
    integers("tinyint", -6, (-128, "-128"), (127, "127"), (0, "0"), (-1, "-1")),
    integers("tinyint unsigned", -6, (0, "0"), (127, "127"), larger=(255, "255", 5)),
    integers("smallint", 5, (-32768, "-32768"), (32767, "32767"), (-129, "-129"), (128, "128")),
    integers("smallint unsigned", 5, (0, "0"), (32767, "32767"), larger=(65535, "65535", 4)),
    integers("mediumint", 4, (-8388608, "-8388608"), (8388607, "8388607"), (0, "0")),
    integers("mediumint unsigned", 4, (0, "0"), (16777215, "16777215")),
    integers("int", 4, (-2147483648, "-2147483648"), (2147483647, "2147483647"), (32768, "32768")),
    integers("int unsigned", 4, (0, "0"), (2147483647, "2147483647"), larger=(4294967295, "4294967295", -5)),
    integers("int unsigned zerofill", 4, (0, "0"), (7, "7"), larger=(2147483648, "2147483648", -5)),
    integers("bigint", -5, (-(1 << 63), "-9223372036854775808"), ((1 << 63) - 1, "9223372036854775807"), (0, "0")),
    integers(
        "bigint unsigned", -5, (0, "0"), ((1 << 63) - 1, "9223372036854775807"),
        larger=((1 << 64) - 1, "18446744073709551615", 3),
    ),
    Kind("year", "year", 12, (plain(0, "0"), plain(1901, "1901"), plain(2155, "2155"))),
    Kind("bit(1)", "bit", -7, (plain(0, "0"), plain(1, "1"))),
    Kind("bit(64)", "bit", -7, (plain(0, "0"), plain((1 << 64) - 1, "18446744073709551615"), plain(256, "256"))),
)  # fmt: skip
FLOATS = (
    Kind(
        "float", "float", 7,
        (
            plain(0.0, "0"), plain(-1.5, "-1.5"), plain(0.1, "0.1"), plain(999999.0, "999999"),
            plain(1e6, "1e+06", "1000000"), plain(16777216.0, "1.6777216e+07", "16777216"),
            plain(3.4028234663852886e38, "3.4028235e+38", "34028235" + 31 * "0"),
            plain(1.401298464324817e-45, "1e-45", "0." + 44 * "0" + "1"),
        ),
    ),
    Kind(
        "double", "double", 8,
        (
            plain(0.0, "0"), plain(0.1, "0.1"), plain(-123456.75, "-123456.75"), plain(0.0001, "0.0001"),
            plain(0.00001, "1e-05", "0.00001"), plain(-123456789.125, "-1.23456789125e+08", "-123456789.125"),
            plain(1.7976931348623157e308, "1.7976931348623157e+308", "17976931348623157" + 292 * "0"),
            plain(5e-324, "5e-324", "0." + 323 * "0" + "5"),
        ),
    ),
)  # fmt: skip
DECIMALS = (
    Kind(
        "decimal(20,4)", "decimal", 3,
        (
            text(Decimal(0), "0.0000"), text(Decimal("-0.0001"), "-0.0001"), text(Decimal("12.5"), "12.5000"),
            text(Decimal("9999999999999999.9999"), "9999999999999999.9999"),
            text(Decimal("-9999999999999999.9999"), "-9999999999999999.9999"),
        ),
    ),
    Kind(
        "decimal(65,30)", "decimal", 3,
        (
            text(Decimal("1e-30"), "0." + 29 * "0" + "1"), text(Decimal(0), "0." + 30 * "0"),
            text(Decimal("-" + 35 * "9" + "." + 30 * "9"), "-" + 35 * "9" + "." + 30 * "9"),
        ),
    ),
    Kind("decimal(10,0)", "decimal", 3, (text(Decimal(-9999999999), "-9999999999"), text(Decimal(0), "0"))),
    Kind("decimal(3,3) unsigned", "decimal unsigned", 3, (text(Decimal("0.999"), "0.999"), text(0, "0.000"))),
)  # fmt: skip
#: Of CHAR, VARCHAR and TEXT.
TEXTS = (
    text("", ""),
    text("plain", "plain"),
    text('say "hi"', 'say ""hi""', 'say \\"hi\\"'),
    text("two\r\nlines\n", "two\r\nlines\n", "two\\r\\nlines\\n"),
    text("\\N", "\\N", "\\\\N"),
    text("a,b\t\0z", "a,b\t\0z", "a,b\\t\\u0000z"),
    text("ä€😀\u2028", "ä€😀\u2028", "ä€😀\\u2028"),
    text("<b>&'", "<b>&'", "\\u003cb\\u003e\\u0026'"),
)
#: Bytes that are not UTF-8, as Python's "surrogateescape" has them, and what canal-json has instead.
BROKEN = (
    text("ab\udcff", "ab\udcff", "ab\\ufffd"),
    text('\udce4\udcbd"', '\udce4\udcbd""', '\\ufffd\\ufffd\\"'),
    text("whole ä", "whole ä"),
    text("\udce4\udcbc", "\udce4\udcbc", "\\ufffd\\ufffd"),
)
#: Of VARBINARY and BLOB.
BYTES = (
    text(b"", ""),
    text(b"\0", "AA==", "\\u0000"),
    text(b"abc", "YWJj", "abc"),
    text(b"\xff\0\x80", "/wCA", "\u00ff\\u0000\u0080"),
    text(b'"\\\r\n', "IlwNCg==", '\\"\\\\\\r\\n'),
    text("é".encode(), "w6k=", "\u00c3\u00a9"),
)
STRINGS = (
    Kind("char(20)", "char", 1, (*TEXTS, text("padded  ", "padded"))),
    Kind("varchar(20)", "varchar", 12, (*TEXTS[1:], text("kept  ", "kept  "))),
    Kind("tinytext", "tinytext", 2005, TEXTS[2:]),
    Kind("text", "text", 2005, (*TEXTS[3:], TEXTS[0])),
    Kind("mediumtext", "mediumtext", 2005, TEXTS[4:]),
    Kind("longtext", "longtext", 2005, (text("x" * 70_000, "x" * 70_000), *TEXTS[1:4])),  # a row in the large form
    Kind(
        "binary(4)", "binary", 2004,
        (
            text(b"", "AAAAAA==", 4 * "\\u0000"), text(b"a", "YQAAAA==", "a" + 3 * "\\u0000"),
            text(b"\xff\xfe\xfd\xfc", "//79/A==", "\u00ff\u00fe\u00fd\u00fc"),
        ),
    ),
    Kind("varbinary(20)", "varbinary", 2004, BYTES),
    Kind("tinyblob", "tinyblob", 2004, BYTES[1:]),
    Kind("blob", "blob", 2004, (*BYTES[2:], BYTES[0])),
    Kind("mediumblob", "mediumblob", 2004, BYTES[3:]),
    Kind("longblob", "longblob", 2004, (*BYTES[4:], BYTES[1])),
)  # fmt: skip
TIMES = (
    Kind(
        "date", "date", 91,
        (
            text("0000-00-00", "0000-00-00"), text(date(1000, 1, 1), "1000-01-01"), text("2024-02-00", "2024-02-00"),
            text(date(2024, 2, 29), "2024-02-29"), text(date(9999, 12, 31), "9999-12-31"),
        ),
    ),
    Kind(
        "datetime", "datetime", 93,
        (
            text("0000-00-00 00:00:00", "0000-00-00 00:00:00"), text(datetime(1, 1, 1), "0001-01-01 00:00:00"),
            text(datetime(2024, 2, 29, 23, 59, 59), "2024-02-29 23:59:59"),
            text("2024-00-07 01:02:03", "2024-00-07 01:02:03"),
        ),
    ),
    Kind(
        "datetime(6)", "datetime", 93,
        (
            text(datetime(9999, 12, 31, 23, 59, 59, 999999), "9999-12-31 23:59:59.999999"),
            text(datetime(2000, 1, 1, 0, 0, 0, 1), "2000-01-01 00:00:00.000001"),
            text("0000-00-00 00:00:00", "0000-00-00 00:00:00.000000"),
        ),
    ),
    # Berlin's clocks show 02:30 twice on 2024-10-27, and never on 2024-03-31.
    Kind(
        "timestamp", "timestamp", 93,
        (
            text("0000-00-00 00:00:00", "0000-00-00 00:00:00"),
            text(datetime(1970, 1, 1, 0, 0, 1), "1970-01-01 01:00:01"),
            text(datetime(2024, 10, 27, 0, 30), "2024-10-27 02:30:00"),
            text(datetime(2024, 10, 27, 1, 30), "2024-10-27 02:30:00"),
            text(datetime(2024, 3, 31, 1, 0), "2024-03-31 03:00:00"),
            text(datetime(2038, 1, 19, 3, 14, 7), "2038-01-19 04:14:07"),
        ),
    ),
    Kind(
        "timestamp(3)", "timestamp", 93,
        (
            text(datetime(2024, 7, 1, 23, 0, 0, 5000), "2024-07-02 01:00:00.005"),
            text(datetime(2023, 12, 31, 23, 0, 0, 999000), "2024-01-01 00:00:00.999"),
        ),
    ),
    Kind(
        "time", "time", 92,
        (
            text(timedelta(hours=838, minutes=59, seconds=59), "838:59:59"),
            text(-timedelta(hours=838, minutes=59, seconds=59), "-838:59:59"),
            text(timedelta(), "00:00:00"), text(-timedelta(seconds=1), "-00:00:01"),
        ),
    ),
    Kind(
        "time(6)", "time", 92,
        (
            text(timedelta(microseconds=-1), "-00:00:00.000001"),
            text(timedelta(hours=100, seconds=1, microseconds=20), "100:00:01.000020"),
        ),
    ),
)  # fmt: skip
CHOICES = (
    Kind(
        "enum('red','a \"b\",c','ä')", "enum", 4,
        (
            text("red", "red", "1"), text('a "b",c', 'a ""b"",c', "2"), text("ä", "ä", "3"),
            text("", "", "0"),  # the error value
        ),
    ),
    Kind(
        "set('a','b c','ü')", "set", -7,
        (text("", "", "0"), text("a", "a", "1"), text("b c,ü", "b c,ü", "6"), text("a,b c,ü", "a,b c,ü", "7")),
    ),
)  # fmt: skip
KINDS = (*INTEGERS, *FLOATS, *DECIMALS, *STRINGS, *TIMES, *CHOICES)


@dataclass(frozen=True)
class Default:
    """A type, a default of it as TiDB keeps it, and its cell. `zero`: of a column that forbids NULL and has none."""

    sql: str
    default: str
    cell: Cell
    zero: Cell


DEFAULTS = (
    Default("tinyint", "-5", plain(-5, "-5"), plain(0, "0")),
    Default("bigint unsigned", f"{(1 << 64) - 1}", plain(None, "18446744073709551615", java=3), plain(0, "0")),
    Default("year", "2024", plain(2024, "2024"), plain(0, "0")),
    Default("bit(12)", "2571", plain(2571, "2571"), plain(0, "0")),
    Default("float", "1.5", plain(1.5, "1.5"), plain(0.0, "0")),
    Default("double", "1e20", plain(1e20, "1e+20", "1" + 20 * "0"), plain(0.0, "0")),
    Default("decimal(8,3)", "-1.50", text(Decimal("-1.5"), "-1.500"), text(Decimal(0), "0.000")),
    Default("char(9)", 'a "b"', text('a "b"', 'a ""b""', 'a \\"b\\"'), text("", "")),
    Default("varchar(9)", "é", text("é", "é"), text("", "")),
    Default("varbinary(9)", "abc", text(b"abc", "YWJj", "abc"), text(b"", "")),
    Default("date", "2024-02-29", text(date(2024, 2, 29), "2024-02-29"), text("0000-00-00", "0000-00-00")),
    Default(
        "datetime(3)", "2024-02-29 01:02:03.500", text(None, "2024-02-29 01:02:03.500"),
        text("0000-00-00 00:00:00.000", "0000-00-00 00:00:00.000"),
    ),
    Default(
        "timestamp", "2024-07-01 22:30:00", text(None, "2024-07-02 00:30:00"),
        text("0000-00-00 00:00:00", "0000-00-00 00:00:00"),
    ),
    Default("time", "-100:00:01", text(-timedelta(hours=100, seconds=1), "-100:00:01"), text(timedelta(), "00:00:00")),
    Default("enum('x','y')", "y", text("y", "y", "2"), text("x", "x", "1")),
    Default("set('x','y','z')", "x,z", text("x,z", "x,z", "5"), text("", "", "0")),
)  # fmt: skip
