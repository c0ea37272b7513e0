"""What an upstream keeps for a changefeed is told as its driver or a Job has seen it last."""

from __future__ import annotations

from changefeed_operator import api
from changefeed_operator.decision.conditions import condition
from operator_world import TTL, World

WARNING = "Slot s keeps more than half."
KEPT = {"keptBytes": 6, "mostBytes": 10, "walStatus": "extended", "goneAt": "", "warning": WARNING}
HOLD_JOB = "changefeed-orders-hold"


def _told(world: World) -> tuple[str, str]:
    found = condition(world.status, "HistoryHeld")
    return found["reason"], found["message"]


def _running() -> World:
    world = World()
    world.create()
    world.settle()
    return world


def test_what_the_driver_sees_running_out_is_told_while_it_is_so() -> None:
    world = _running()
    world.report()
    world.status["hold"] |= KEPT
    world.reconcile()
    assert _told(world) == ("RunningOut", WARNING)
    world.status["hold"] |= {"warning": "", "keptBytes": 1}
    world.reconcile()
    assert _told(world)[0] == "Held"
    assert world.status["hold"].items() >= {"warning": "", "keptBytes": 1}.items()


def test_while_it_is_paused_jobs_say_what_is_kept_and_that_it_is_gone() -> None:
    world = _running()
    world.report()
    world.edit("paused", True)
    world.settle()
    world.now += 0.7 * TTL
    world.reconcile()
    said = {name: str(value) for name, value in KEPT.items()}
    world.run_job(HOLD_JOB, **{"class": "Held", "ts": "7", "until": api.time_text(world.now + TTL)}, **said)
    world.reconcile()
    assert _told(world) == ("RunningOut", WARNING)
    assert world.status["hold"].items() >= KEPT.items()
    world.expire_jobs()
    world.now += 0.7 * TTL
    world.reconcile()
    assert _told(world) == ("RunningOut", WARNING), "a Job that is no more has said so"
    gone = "Slot s has lost its history: its WAL is removed."
    world.run_job(HOLD_JOB, 1, **{"class": "SnapshotLostByGC", "message": gone})
    world.reconcile()
    assert _told(world) == ("SnapshotLostByGC", gone)


def test_a_slot_that_nobody_has_looked_at_has_not_expired() -> None:
    """Unhappy path: a slot goes on, but the server may have let go of its history."""
    world = _running()
    world.report()
    world.status["hold"] |= KEPT | {"warning": ""}
    world.edit("paused", True)
    world.settle()
    world.now += 1.1 * TTL
    world.reconcile()
    reason, message = _told(world)
    assert reason == "Lapsed"
    assert message.startswith("Nobody has looked since")
    assert "garbage" not in message


def test_that_it_is_gone_is_told_when_the_first_pod_of_a_job_has_seen_it() -> None:
    world = _running()
    world.report()
    world.edit("paused", True)
    world.settle()
    world.now += 0.7 * TTL
    world.reconcile()
    gone = "Slot s has lost its history: its WAL is removed."
    world.run_job(HOLD_JOB, 1, **{"class": "SnapshotLostByGC", "message": gone})
    world.job(HOLD_JOB)["status"] = {"active": 1}  # it tries again
    world.reconcile()
    assert _told(world) == ("SnapshotLostByGC", gone)
    lost = [event.message for event in world.events if event.reason == "HoldLost"]
    world.now += 20
    world.run_job(HOLD_JOB, 1, **{"class": "SnapshotLostByGC", "message": gone})
    world.reconcile()
    assert [event.message for event in world.events if event.reason == "HoldLost"] == lost == [gone]
