"""Which stores spare large transactions: a rolling upgrade changes the mechanism of all stores at once, at its end."""

from __future__ import annotations

from collections.abc import Sequence

from ..pd.pd import VERSION

NEW_VERSION = "9.0.0"


class VersionGate:
    """`store_ids`: the first `new` of them are upgraded already.

    While `is_shut` the old mechanism is everybody's until every store is new; without it each store goes by its own
    version, as in a cluster whose gate has failed.
    """

    def __init__(self, store_ids: Sequence[int], new: int = 0, is_shut: bool = True) -> None:
        if not 0 <= new <= len(store_ids):
            raise ValueError(f"{new} of {len(store_ids)} stores can't be new")
        self._old = set(store_ids[new:])
        self._is_shut = is_shut

    def upgrade(self, store_id: int) -> None:
        self._old.discard(store_id)

    def is_new(self, store_id: int) -> bool:
        """Whether it can say what has become of a large transaction."""
        return store_id not in self._old

    def spares_large(self, store_id: int) -> bool:
        """Whether the store's watermarks go by what large transactions have promised."""
        return self.is_new(store_id) and not (self._is_shut and self._old)

    def version(self, store_id: int) -> str:
        return NEW_VERSION if self.is_new(store_id) else VERSION
