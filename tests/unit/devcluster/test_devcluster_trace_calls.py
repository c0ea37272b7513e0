"""The transactional calls of the recorded traces, played into the dev cluster: it answers as a real TiKV did."""

from __future__ import annotations

import pytest
from devcluster_rig import Rig
from trace_calls import Player, Trace, names


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.golden("trace_calls")) for name in names()])
def test_calls_are_answered_as_a_real_store_did(name: str) -> None:
    rig, trace = Rig(), Trace(name)
    player = Player(trace, rig.store, rig.regions, rig.oracle, rig.watermarks.safe_ts)
    for number, call in enumerate(trace.calls):
        if call.is_of_a_client:
            answer, recorded = player.play(call)
            assert answer == recorded, f"call {number}, {call.name}, after {call.ms} ms"
