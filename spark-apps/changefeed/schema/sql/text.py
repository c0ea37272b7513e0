"""Names, literals and expressions as they stand in a statement of ours.

A session that runs one has a `sql_mode` in which a backslash escapes and double quotes are a string's, which is how
TiDB reads the expressions in its definitions (session.sql_mode).
"""

from __future__ import annotations

import re

from changefeed.errors import ExecuteByHand

#: A string, a quoted name, a comment (its end may be missing), a semicolon, or anything else.
_PART = re.compile(
    r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|`(?:[^`]|``)*`"
    r"|(?P<comment>/\*.*?(?:\*/|\Z)|--(?=\s|\Z)[^\n]*|\#[^\n]*)|(?P<odd>['\"`;])|[^'\"`/\#;-]+|.",
    re.DOTALL,
)


def quoted(*names: str) -> str:
    """A name of a database, table or column, or several that are joined by dots."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def listed(names: object) -> str:
    """Names in parentheses."""
    return f"({', '.join(quoted(name) for name in names)})"  # type: ignore[attr-defined]


def literal(text: str) -> str:
    """A string."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def expression(text: str, what: str) -> str:
    """An expression or a query of a definition without its comments. Raises ExecuteByHand if it is no single one."""
    kept: list[str] = []
    for match in _PART.finditer(text):
        if match["odd"]:
            raise ExecuteByHand(f"{what} is {text!r}: {match['odd']} at {match.start()} is no part of one expression.")
        kept.append(" " if match["comment"] else match[0])
    return "".join(kept).strip()
