"""What all watermarks of a cluster share: the gate, what stores know of large transactions, and safe ts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from ..pd.regions import Regions
from ..store.store import MvccStore
from .advancer import WatermarkAdvancer
from .gate import VersionGate
from .safe_ts import SafeTs
from .statuses import Statuses


class Watermarks:
    """Without a gate all stores are old. Inside the store's lock."""

    def __init__(
        self,
        store: MvccStore,
        regions: Regions,
        gate: VersionGate | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.gate = gate or VersionGate(regions.store_ids)
        self.statuses = Statuses(store, lambda key: regions.locate(key).leader_store, self.gate, clock)
        self.safe_ts = SafeTs(store, regions, self.gate, self.statuses)

    def ask(self, advancers: Mapping[int, Sequence[WatermarkAdvancer]]) -> None:
        """A round. `advancers`: those of subscribers, by store."""
        safe = self.safe_ts.advancers()
        stores = advancers.keys() | safe.keys()
        self.statuses.ask({store: [*advancers.get(store, ()), *safe.get(store, ())] for store in stores})
