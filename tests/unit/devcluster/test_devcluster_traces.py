"""The dev cluster tells its clients what a real TiKV told in the same scenario, message by message.

Compared are all Events, errors and resolved-ts of each registration, in their order; `test_devcluster_trace_calls.py`
compares the answers of the calls. `DIFFERENCES` is what remains; docs/development-cluster.md says it to users.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from changefeed_devcluster.server import DevCluster
from devcluster_traces import TICK_MS, Play, Recording, Told
from trace_calls import names

ROOT = Path(__file__).parents[3]
PHASES_MS = range(0, TICK_MS, 20)


class Difference(NamedTuple):
    """`registration`: (stream, request id, region) of a trace that is left out; () for what no comparison looks at."""

    what: str
    tikv: str
    here: str
    why: str
    trace: str = ""
    registration: tuple[int, ...] = ()


DIFFERENCES = (
    Difference(
        "a registration of a region whose leader is being elected",
        "`not_leader` that names no leader",
        "the region always has a leader",
        "there is no Raft",
        "txn_source",
        (0, 1, 504),
    ),
    Difference(
        "the order of live rows of one call in an Event",
        "that of a hash table",
        "that of the request",
        "the protocol orders them by nothing; `harm reorder` mixes what it does not order",
    ),
    Difference(
        "Events in one message",
        "what was ready when the stream was free",
        "what was queued within 3 ms, up to 6 MiB",
        "it depends on time, in both",
    ),
    Difference(
        "when in a second resolved-ts come",
        "at the ticks of the store's own clock",
        "at those of one clock for all stores",
        "there is one thread for all stores",
    ),
)


def differences(wanted: Told, found: Told) -> list[str]:
    """In words; what is found may go on telling resolved-ts for longer."""
    unlike = []
    for registration in sorted(wanted.keys() | found.keys()):
        real, here = wanted.get(registration, []), found.get(registration, [])
        rest = [told for told in here[len(real) :] if not str(told).startswith("resolved-ts")]
        wrong = [at for at, told in enumerate(real) if here[at : at + 1] != [told]]
        unlike += [f"{registration} message {at}: TiKV {real[at]}, here {here[at : at + 1]}" for at in wrong[:1]]
        unlike += [f"{registration}: here alone {told}" for told in rest[:1]]
    return unlike


def _without(told: Told, trace: str) -> Told:
    out = [each.registration for each in DIFFERENCES if each.trace == trace]
    return {registration: each for registration, each in told.items() if registration not in out}


@pytest.mark.parametrize("name", names())
def test_the_dev_cluster_tells_what_tikv_told(name: str) -> None:
    recording = Recording(name)
    wanted = _without(recording.recorded(), name)
    tried: list[list[str]] = []
    for phase_ms in PHASES_MS:
        tried.append(differences(wanted, _without(Play(recording, phase_ms).run(), name)))
        if not tried[-1]:
            break
    assert min(tried, key=len) == []


def test_a_cluster_ticks_as_often_as_tikv_by_default() -> None:
    assert inspect.signature(DevCluster).parameters["min_ts_interval"].default * 1000 == TICK_MS


@pytest.mark.parametrize("left", [each for each in DIFFERENCES if each.trace], ids=lambda left: str(left.trace))
def test_what_is_left_out_is_other_indeed(left: Difference) -> None:
    for name in {left.trace}.intersection(names()):
        recording = Recording(name)
        wanted, found = recording.recorded(), Play(recording, 0).run()
        key: Any = left.registration
        assert differences({key: wanted[key]}, {key: found[key]})


def test_users_are_told_of_all_that_is_other() -> None:
    document = (ROOT / "docs" / "development-cluster.md").read_text(encoding="utf-8")
    lines = [f"| {each.what} | {each.tikv} | {each.here} | {each.why} |" for each in DIFFERENCES]
    assert [line for line in lines if line not in document] == []
