"""Credentials of a spec that a network would carry as they are, which whoever listens there can read. Pure."""

from __future__ import annotations

from changefeed.spec.field.location import is_this_machine
from changefeed.spec.model import Changefeed


def in_clear_text(changefeed: Changefeed) -> str:
    """Which they are, and what encrypts them; "" if there are none."""
    return " ".join(
        f"{field} go to {host} in clear text{', and so do the rows' if rows else ''}. {mend}"
        for field, host, rows, mend in changefeed.spec.sink.section.in_clear_text()
        if not is_this_machine(host)
    )
