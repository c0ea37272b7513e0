"""Which stores spare large transactions, as a design proposes: no TiKV does that for change data.

A rolling upgrade changes the mechanism of all stores at once, at its end. In a cluster without any store that has the
proposed mechanism an upgrade changes nothing but the version.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..pd.pd import VERSION

NEWER_VERSION = "9.0.0"


class VersionGate:
    """Tells old stores from those with the proposed mechanism.

    `store_ids`: the first `proposed` of them have the proposed mechanism already.

    While `is_shut` the old mechanism is everybody's until every store has the proposed one; without it each store goes
    by its own, as in a cluster whose gate has failed.
    """

    def __init__(self, store_ids: Sequence[int], proposed: int = 0, is_shut: bool = True) -> None:
        if not 0 <= proposed <= len(store_ids):
            raise ValueError(f"{proposed} of {len(store_ids)} stores can't have the proposed watermark")
        self._old = set(store_ids[proposed:])
        self._is_proposed = proposed > 0
        self._is_shut = is_shut

    def upgrade(self, store_id: int) -> None:
        self._old.discard(store_id)

    def is_new(self, store_id: int) -> bool:
        """Tell whether it can say what has become of a large transaction."""
        return store_id not in self._old

    def spares_large(self, store_id: int) -> bool:
        """Tell whether the store's watermarks go by what large transactions have promised."""
        return self._is_proposed and self.is_new(store_id) and not (self._is_shut and self._old)

    def version(self, store_id: int) -> str:
        return NEWER_VERSION if self.is_new(store_id) else VERSION
