"""What holds for `decide` whatever happens: it never raises, settles, writes nothing then, and runs one attempt."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from changefeed_operator import api
from changefeed_operator.actions import Decision
from changefeed_operator.decision.decide import decide
from hypothesis import given, settings
from operator_world import NAME, World

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["Running", "Failed", "Ended", "True", "9", "2026-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00"])
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def _running() -> World:
    world = World()
    world.create(spark={"driver": {"template": {"spec": {"containers": [{"name": api.DRIVER_CONTAINER, "env": []}]}}}})
    world.settle()
    return world


def _failed() -> World:
    world = _running()
    world.exit_driver(1, "OutputConflict")
    world.reconcile()
    return world


def _pausing() -> World:
    world = _running()
    world.edit("paused", True)
    world.reconcile()
    return world


MOMENTS = {"running": _running(), "failed": _failed(), "pausing": _pausing()}


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every member, at any depth."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    paths = [(*path, key) for key, _ in members]
    return paths + [deeper for key, member in members for deeper in _paths(member, (*path, key))]


def _replace(value: Any, path: tuple[Any, ...], by: Any) -> None:
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = by


@given(data=st.data(), moment=st.sampled_from(sorted(MOMENTS)), late=st.sampled_from([0.0, 100.0, 1e6]))
@settings(max_examples=80, deadline=None)
def test_nothing_that_can_be_observed_makes_it_raise_and_it_is_a_function(
    data: st.DataObject, moment: str, late: float
) -> None:
    world = MOMENTS[moment]
    was = copy.deepcopy(world.objects)
    for _ in range(data.draw(st.integers(1, 4))):
        key = data.draw(st.sampled_from(sorted(was)))
        path = data.draw(st.sampled_from(_paths(was[key])))
        try:
            _replace(was[key], path, data.draw(JSON))
        except (KeyError, IndexError, TypeError):
            continue  # the place went with what stood above it
    for key in data.draw(st.sets(st.sampled_from(sorted(was)), max_size=3)):
        del was[key]
    damaged = World()
    damaged.objects, damaged.now = was, world.now + late
    if data.draw(st.booleans()):
        damaged.gone = was.pop(("Changefeed", NAME), None)
    observed = damaged.observe()
    decision = decide(observed, damaged.settings)
    assert isinstance(decision, Decision)
    assert decision.requeue_after is None or decision.requeue_after > 0
    assert decide(observed, damaged.settings) == decision
    json.dumps([getattr(action, "manifest", {}) for action in decision.actions])


@given(spec=JSON, status=JSON)
@settings(max_examples=40, deadline=None)
def test_any_spec_and_any_status_get_an_answer(spec: Any, status: Any) -> None:
    world = World()
    world.create()
    world.changefeed["spec"], world.changefeed["status"] = spec, status
    decision = decide(world.observe(), world.settings)
    assert decision.actions, "a changefeed that was never looked at gets a status at least"


Scenario = Callable[[World], None]


def _creates(world: World) -> None:
    world.create()
    world.settle()


def _pauses_and_goes_on(world: World) -> None:
    _creates(world)
    world.edit("paused", True)
    world.settle()
    world.edit("paused", False)
    world.settle()


def _edits(world: World) -> None:
    _creates(world)
    world.edit("sink.storage.fileSize", "32Mi")
    world.settle()


def _crashes(world: World) -> None:
    _creates(world)
    world.exit_driver(1)
    world.settle()


def _stalls(world: World) -> None:
    _creates(world)
    world.exit_driver(1, "NeedsHuman")
    world.settle()


def _finishes(world: World) -> None:
    _creates(world)
    world.exit_driver(0, "Finished")
    world.settle()


def _loses_its_application(world: World) -> None:
    _creates(world)
    assert world.application is not None
    world._remove(world.application)
    world.settle()


def _goes_wrong_and_is_mended(world: World) -> None:
    _creates(world)
    world.edit("timeZone", "no time zone")
    world.settle()
    world.edit("timeZone", "Asia/Tokyo")
    world.settle()


def _is_deleted(world: World) -> None:
    _creates(world)
    world.delete()
    world.settle()


SCENARIOS = [
    _creates,
    _pauses_and_goes_on,
    _edits,
    _crashes,
    _stalls,
    _finishes,
    _loses_its_application,
    _goes_wrong_and_is_mended,
    _is_deleted,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__.strip("_"))
def test_killed_before_any_action_it_comes_to_the_same_end(scenario: Scenario) -> None:
    clean = World()
    scenario(clean)
    end = list(clean.shape())
    assert clean.acts > 5
    for moment in range(clean.acts):
        world = World()
        world.dies_at, world.passes = moment, 1 + moment % 2
        scenario(world)
        assert world.dies_at == -1, "it was killed"
        assert list(world.shape()) == end, f"killed after {moment} actions"
        assert world.most_attempts_alive == 1
        assert world.broken == []
        assert world.one_pass().actions == ()


def test_an_hour_in_a_steady_state_takes_no_write() -> None:
    world = _running()
    writes = world.writes
    for _ in range(60):
        world.now += 60
        world.report()
        assert world.one_pass().actions == ()
    assert world.writes == writes


STEPS = st.sampled_from(
    [
        "pass",
        "die",
        "play",
        "pause",
        "resume",
        "tune",
        "live",
        "break",
        "mend",
        "nonce",
        "crash",
        "drain",
        "lose",
        "kill",
        "wait",
    ]
)


@given(steps=st.lists(STEPS, max_size=40), data=st.data())
@settings(max_examples=40, deadline=None)
def test_whatever_happens_one_attempt_lives_and_it_runs_in_the_end(steps: list[str], data: st.DataObject) -> None:
    world = copy.deepcopy(MOMENTS[data.draw(st.sampled_from(["running", "pausing"]))])
    attempt, made = 0, {}
    for step in steps:
        _do(world, step, data)
        world.note_attempts()
        now = world.status.get("attempt", 0)
        assert now >= attempt, "attempts rise"
        attempt = now
        if world.application is not None:
            uid, spec = world.application["metadata"]["uid"], world.application["spec"]
            assert made.setdefault(uid, spec) == spec, "an application is never edited"
    assert world.most_attempts_alive <= 1
    world.edit("timeZone", None)
    world.edit("paused", False)
    world.edit("restartNonce", 77)
    world.settle(200)
    assert world.condition("Ready")["status"] == "True", world.status["message"]
    assert world.most_attempts_alive == 1
    assert world.broken == []
    assert world.one_pass().actions == ()


def _do(world: World, step: str, data: st.DataObject) -> None:
    alive = world.driver is not None and world.driver["status"]["phase"] == "Running"
    edits: dict[str, tuple[str, Any]] = {
        "pause": ("paused", True),
        "resume": ("paused", False),
        "tune": ("timeZone", "CET"),
        "live": ("drainTimeout", "5s"),
        "break": ("timeZone", "no time zone"),
        "mend": ("timeZone", None),
    }
    if step == "pass":
        world.one_pass()
    elif step == "die":
        world.one_pass(data.draw(st.integers(0, 8)))
    elif step == "play":
        world.play()
    elif step in edits:
        world.edit(*edits[step])
    elif step == "nonce":
        world.edit("restartNonce", data.draw(st.integers(0, 3)))
    elif step in ("crash", "drain") and alive:
        code, said = data.draw(st.sampled_from([(1, ""), (1, "NeedsHuman"), (2, ""), (69, ""), (75, ""), (137, "")]))
        world.exit_driver(*((0, "Drained") if step == "drain" else (code, said)))
    elif step == "lose" and world.application is not None:
        world._remove(world.application)
    elif step == "kill" and world.driver is not None:
        world._remove(world.driver)
    elif step == "reconcile":
        world.reconcile()
    elif step == "wait":
        world.now += data.draw(st.sampled_from([1.0, 60.0, 700.0, 5000.0]))
