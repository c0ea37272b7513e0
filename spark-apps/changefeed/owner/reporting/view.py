"""What a person watches while a changefeed runs."""

from __future__ import annotations

from typing import Protocol

from changefeed.owner.reporting.snapshot import RunSnapshot


class View(Protocol):
    """Somebody who watches."""

    def update(self, snapshot: RunSnapshot) -> None:
        """Show it; called from one thread, a few times a second at most."""
        ...

    def close(self) -> None:
        """Give the terminal back: the process ends now. No error when it is done already."""
