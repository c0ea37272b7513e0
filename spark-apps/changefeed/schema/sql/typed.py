"""A statement as somebody typed it, for readers who have no definitions (restore): as little as can be is changed.

No comment stays in it, since some servers execute what others skip, and each character set gets the collation that TiDB
takes where none is said. Words are sqlglot's tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlglot
from sqlglot import TokenType
from sqlglot.errors import SqlglotError

from changefeed.schema.sql.columns import COLLATIONS

_NO_WORDS = (TokenType.STRING, TokenType.IDENTIFIER)
_CASTS = ("CAST", "CONVERT")


def standalone(text: str) -> str | None:
    """The statement; None: it is not one alone, or can't be read."""
    try:
        tokens = sqlglot.tokenize(text, read="mysql")
    except SqlglotError:
        return None
    words = ["" if token.token_type in _NO_WORDS else token.text.upper() for token in tokens]
    while words and words[-1] == ";":
        words.pop()
    if ";" in words or not words:
        return None
    collations = _collations(words)
    parts: list[str] = []
    end = 0
    for index, token in enumerate(tokens[: len(words)]):
        between = text[end : token.start]
        parts.append(between if index and not between.strip() else " " * bool(index))
        end = token.end + 1
        parts += [text[token.start : end], collations.get(index, "")]
    return "".join(parts)


def _collations(words: Sequence[str]) -> dict[int, str]:
    """What is missing behind a word."""
    found: dict[int, str] = {}
    for index, word in enumerate(words):
        if word == "CHARSET" or words[index : index + 2] in (["CHARACTER", "SET"], ["CHAR", "SET"]):
            name = index + (1 if word == "CHARSET" else 2)
            name += words[name : name + 1] == ["="]
            collate = COLLATIONS.get(words[name].lower()) if name < len(words) else None
            if collate is not None and not _is_said(words, index):
                found[name] = f" COLLATE {collate}"
    return found


def _is_said(words: Sequence[str], index: int) -> bool:
    """Whether a column, a clause or a table's options name their collation elsewhere; a cast takes none."""
    begin, depth = index, 0
    while begin > 0 and depth >= 0:
        begin -= 1
        depth += (words[begin] == ")") - (words[begin] == "(")
        if words[begin] == "," and not depth and not _are_options(words, begin):
            break
    if depth < 0 and begin > 0 and words[begin - 1] in _CASTS:
        return True
    depth = 0
    for word_at in range(begin + 1, len(words)):
        word = words[word_at]
        depth += (word == "(") - (word == ")")
        if depth < 0 or (word == "," and not depth and not _are_options(words, word_at) and word_at > index):
            return False
        if word == "COLLATE" and not depth:
            return True
    return False


def _are_options(words: Sequence[str], comma: int) -> bool:
    """Whether a comma stands between the options of CREATE, which all belong together."""
    depth = sum((word == "(") - (word == ")") for word in words[:comma])
    return words[0] == "CREATE" and not depth
