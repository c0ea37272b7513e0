"""Regular expressions in Go's dialect, which is TiCDC's, on the engine that pydantic brings.

Both take linear time, know the whole of Unicode, and have neither look-around nor back-references.
"""

from __future__ import annotations

import re

from pydantic_core import SchemaError, SchemaValidator, core_schema

_TOKEN = re.compile(r"\\.|\[\^?\]?|.", re.DOTALL)
_IN_CLASS = re.compile(r"\\.|\[:\^?[a-z]+:\]|--|.", re.DOTALL)
# Go's classes are ASCII, the engine's are Unicode.
_ESCAPES = {
    "d": "[0-9]",
    "D": "[^0-9]",
    "w": "[0-9A-Za-z_]",
    "W": "[^0-9A-Za-z_]",
    "s": r"[\t\n\f\r ]",
    "S": r"[^\t\n\f\r ]",
    "b": r"(?-u:\b)",
    "<": "<",
    ">": ">",
}


class BadRegex(ValueError):
    """It is no regular expression; the message says why."""


def compiled(pattern: str) -> SchemaValidator:
    """`isinstance_python(text)` of it: whether the pattern, in the engine's spelling, is found. Raises BadRegex."""
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern))
    except SchemaError as e:
        why = str(e).rpartition("error: ")[2].splitlines()[0]
        raise BadRegex(f"invalid pattern: {why}") from e


def from_go(expression: str) -> str:
    """The engine's spelling of an expression in Go's dialect. Raises BadRegex."""
    out, at, in_class = "", 0, False
    while at < len(expression):
        match = (_IN_CLASS if in_class else _TOKEN).match(expression, at)
        assert match, "the patterns match any character"
        token, at = match[0], match.end()
        if token == "--":
            raise BadRegex("'--' inside [...]: write \\- for the character '-'")
        if token.startswith("\\"):
            out += _ESCAPES.get(token[1:], token) if not in_class or token != r"\b" else token
        elif in_class:
            in_class = token != "]"
            # The engine has sets of sets ([a&&b], [a~~b], [a[b]]); Go has not.
            out += "\\" + token if token in "[&~" else token
        else:
            in_class = token.startswith("[")
            out += token.replace("]", "\\]")
    return out
