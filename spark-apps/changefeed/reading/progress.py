"""Who is told how far a reader of a sink has got."""

from __future__ import annotations

from typing import Protocol


class ReadingProgress(Protocol):
    """Stages follow each other."""

    def stage(self, name: str, total: int | None = None) -> None:
        """A new stage of `total` units; None: nobody knows how many."""
        ...

    def advance(self, count: int) -> None:
        """So many units more of the present stage are done."""
        ...


class NoProgress:
    """Tells nobody."""

    def stage(self, name: str, total: int | None = None) -> None:
        pass

    def advance(self, count: int) -> None:
        pass
