"""Regular expressions in Go's dialect, which is TiCDC's: RE2's, whose syntax Go has taken over."""

from __future__ import annotations

import re

import re2

# RE2 takes \C, any byte, which Go refuses. Between \Q and \E it is text.
_ESCAPE = re.compile(r"\\Q.*?(?:\\E|\Z)|\\.", re.DOTALL)
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.never_capture = True


class BadRegex(ValueError):
    """The text is no regular expression; the message says why."""


class GoRegex:
    """A compiled regular expression, which is matched in linear time. Raises BadRegex."""

    def __init__(self, pattern: str) -> None:
        if r"\C" in _ESCAPE.findall(pattern):
            raise BadRegex(r"invalid pattern: invalid escape sequence: \C")
        try:
            self._regex = re2.compile(pattern, _OPTIONS)
        except re2.error as e:
            (why,) = e.args
            raise BadRegex(f"invalid pattern: {why.decode()}") from e

    def is_in(self, text: str) -> bool:
        """Tell whether some part of the text matches."""
        return self._regex.search(text.encode()) is not None
