"""What the driver last said of itself is nobody's word any more once it is gone."""

from __future__ import annotations

from operator_world import World

_DRIVERS = ("SinkAvailable", "UpstreamAvailable", "WithinLag")


def _answers(world: World) -> set[tuple[str, str]]:
    return {(world.condition(kind)["status"], world.condition(kind)["reason"]) for kind in _DRIVERS}


def test_conditions_of_a_driver_that_is_gone_become_unknown_until_the_next_one_reports() -> None:
    world = World()
    world.create()
    world.settle()
    assert _answers(world) == {("True", "Fine")}

    world.edit("paused", True)
    world.settle()
    assert _answers(world) == {("Unknown", "NoDriver")}
    assert world.condition("WithinLag")["observedGeneration"] == 2

    world.edit("paused", False)
    world.reconcile()
    world.now += 10
    world.submit()
    world.run()
    world.reconcile()
    assert _answers(world) == {("Unknown", "NoDriver")}, "the next one has not reported yet"
    world.report()
    world.reconcile()
    assert _answers(world) == {("True", "Fine")}
