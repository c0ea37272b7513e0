"""All deliberate bugs, by which the simulation shows that it is awake (docs/simulation.md)."""

from __future__ import annotations

from barrier_mutations import BARRIER_MUTATIONS
from congestion_mutations import CONGESTION_MUTATIONS
from copy_mutations import COPY_MUTATIONS
from lake_mutations import LAKE_MUTATIONS
from log_mutations import LOG_MUTATIONS
from matcher_mutations import MATCHER_MUTATIONS
from owner_mutations import OWNER_MUTATIONS
from puller_mutations import PULLER_MUTATIONS
from slot_mutations import SLOT_MUTATIONS

MUTATIONS = (
    *MATCHER_MUTATIONS,
    *PULLER_MUTATIONS,
    *CONGESTION_MUTATIONS,
    *COPY_MUTATIONS,
    *BARRIER_MUTATIONS,
    *OWNER_MUTATIONS,
    *LOG_MUTATIONS,
    *LAKE_MUTATIONS,
    *SLOT_MUTATIONS,
)
