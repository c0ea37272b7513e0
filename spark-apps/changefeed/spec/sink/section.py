"""What a kind of sink tells those who know no kind: the operator, and a driver that looks at its resource."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from changefeed.spec.field.section import Section


class InClearText(NamedTuple):
    """Credentials that go to a host unencrypted. `rows`: so do the rows. `mend`: what would encrypt them."""

    field: str
    host: str
    rows: bool
    mend: str


class SinkSection(Section):
    """A kind's section of `spec.sink`. A kind overrides what it has."""

    def servers(self) -> Iterable[str]:
        """URLs of what pods connect to, but for stores."""
        return ()

    def stores(self) -> Iterable[str]:
        """URIs of the stores that pods read or write."""
        return ()

    def folders(self) -> Iterable[tuple[str, str]]:
        """(field, URI) of the stores that rows are written to: several pods write there."""
        return ()

    def matchers(self) -> Mapping[str, tuple[str, ...]]:
        """Return by field, from `spec.sink` on, the rules by which an option is for some of the selected tables."""
        return {}

    def in_clear_text(self) -> Iterable[InClearText]:
        """Whatever the host, this machine included."""
        return ()
