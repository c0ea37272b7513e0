"""The two ways in which reading a sink back can fail."""

from __future__ import annotations

from changefeed.errors import ChangefeedError


class NotVerifiable(ChangefeedError):
    """Verify can't answer: neither that the sink is right nor that it is wrong."""

    exit_code = 3


class Break(ChangefeedError):
    """A promise is broken; the message says where."""

    exit_code = 4
