"""kstatus conditions, the budget of restarts, what is remembered in status, and that the docs tell all of it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from changefeed.spec.events_reference import events_reference
from changefeed.spec.reasons import HeldReason, Reason
from changefeed_operator.actions import EmitEvent
from changefeed_operator.decision.attempt.ledger import AttemptLedger, AttemptOutcome, Phase
from changefeed_operator.decision.attempt.restart import FAILURES, is_exhausted, wait_s
from changefeed_operator.decision.conditions import CLEAR_TEXT, Situation, conditions, events, warnings
from changefeed_operator.decision.decide import OWN_FIELDS
from operator_world import World

HELD = (HeldReason.HELD, "It is held.")
NOW = 1_800_000_000.0


def _kstatus(situation: Situation) -> str:
    """As kubernetes-sigs/cli-utils reads it (https://github.com/kubernetes-sigs/cli-utils, pkg/kstatus)."""
    answers = {each["type"]: each["status"] for each in conditions(situation, HELD, "", {}, 3, NOW)}
    if answers["Reconciling"] == "True":
        return "InProgress"
    if answers["Stalled"] == "True":
        return "Failed"
    return "Current" if answers["Ready"] == "True" else "InProgress"


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason.shown])
def test_what_kstatus_reads_and_the_state_agree(reason: Reason) -> None:
    situation = Situation(reason, "So it is.")
    read = _kstatus(situation)
    allowed = {
        "Pending": {"InProgress"},
        "Normal": {"Current"},
        "Warning": {"InProgress", "Current"},
        "Failed": {"Failed"},
        "Stopped": {"Current"},
        "Finished": {"Current"},
    }
    assert read in allowed[situation.state]


def test_a_transition_time_moves_with_the_answer_only() -> None:
    before = {"conditions": conditions(Situation(Reason.RUNNING, "a"), HELD, "", {}, 1, NOW)}
    later = conditions(Situation(Reason.CATCHING_UP, "b"), HELD, "", before, 1, NOW + 60)
    assert {each["lastTransitionTime"] for each in later} == {"2027-01-15T08:00:00Z"}
    ended = {each["type"]: each for each in conditions(Situation(Reason.BACK_OFF, "c"), HELD, "", before, 1, NOW + 60)}
    assert ended["Ready"]["lastTransitionTime"] == "2027-01-15T08:01:00Z"
    assert ended["Stalled"]["lastTransitionTime"] == "2027-01-15T08:00:00Z"


def test_what_stopped_a_driver_is_the_reason() -> None:
    ready = conditions(Situation(Reason.STALLED, "x", "SinkOwned"), HELD, "", {}, 1, NOW)[0]
    assert ready["reason"] == "SinkOwned"
    assert conditions(Situation(Reason.STALLED, "x", "no class at all"), HELD, "", {}, 1, NOW)[0]["reason"] == "Stalled"


def test_an_event_is_sent_once_for_a_change() -> None:
    situation = Situation(Reason.SINK_UNAVAILABLE, "The sink is away.")
    (event,) = events(situation, {})
    assert (event.type, event.reason) == ("Warning", Reason.SINK_UNAVAILABLE)
    assert events(situation, {"conditions": conditions(situation, HELD, "", {}, 1, NOW)}) == []


def test_lag_that_comes_and_goes_sends_no_events() -> None:
    before = {"conditions": conditions(Situation(Reason.RUNNING, "a"), HELD, "", {}, 1, NOW)}
    assert events(Situation(Reason.CATCHING_UP, "b"), before) == []


@pytest.mark.parametrize("failure", FAILURES)
def test_waits_rise_to_their_bound_and_are_the_same_for_the_same_failure(failure: Reason) -> None:
    policy = failure.policy
    assert policy is not None
    waits = [wait_s(failure, count, "uid-1") for count in range(1, 40)]
    assert waits == [wait_s(failure, count, "uid-1") for count in range(1, 40)]
    assert 0.8 * policy.first_s <= waits[0] <= 1.2 * policy.first_s
    assert 0.8 * policy.most_s <= waits[-1] <= 1.2 * policy.most_s
    assert len({wait_s(failure, 1, f"uid-{number}") for number in range(20)}) == 20, "not all at the same moment"


def test_what_heals_by_itself_has_no_budget() -> None:
    """What comes from outside heals outside. A person alone raises a limit that stands in the spec."""
    forever = {failure for failure in FAILURES if not is_exhausted(failure, 10**6)}
    assert forever == set(FAILURES) - {Reason.OOM}
    assert all(failure.policy and failure.policy.most_s <= 600 for failure in FAILURES)


def test_a_budget_ends_in_a_person() -> None:
    ledger = AttemptLedger(attempt=1)
    policy = Reason.OOM.policy
    assert policy is not None
    budget = policy.budget
    assert budget is not None
    for count in range(budget):
        ledger = ledger.failed_with(Reason.OOM, "OutOfMemory", "It broke.", NOW, "uid-1")
        assert ledger.outcome is AttemptOutcome.FAILED
        assert ledger.retry_at > NOW
        assert ledger.failed == count + 1
    ledger = ledger.failed_with(Reason.OOM, "OutOfMemory", "It broke.", NOW, "uid-1")
    assert ledger.outcome is AttemptOutcome.STALLED
    assert ledger.last_error is not None
    assert ledger.last_error.next_retry is None


@pytest.mark.parametrize(
    "ledger",
    [
        AttemptLedger(),
        AttemptLedger().claimed("h", "s3://state"),
        AttemptLedger().claimed("h", "s3://state").created(),
        AttemptLedger(3, Phase.CREATED).failed_with(Reason.OOM, "OutOfMemory", "m", NOW, "u"),
        AttemptLedger(3, Phase.CREATED).stalled("NeedsHuman", "m", NOW),
        AttemptLedger(3, Phase.CREATED, failures={Reason.CRASH: 2}).stopped(),
        AttemptLedger(3, Phase.CREATED).finished(),
    ],
)
def test_what_is_remembered_is_read_back(ledger: AttemptLedger) -> None:
    fields = ledger.fields()
    assert AttemptLedger.read(fields) == ledger
    assert set(fields) <= set(OWN_FIELDS)


def test_a_switch_of_the_buffer_is_an_event_and_its_start_is_none() -> None:
    world = World()
    world.create()
    world.settle()
    told = []
    for mode in ("Buffer", "Buffer", "Archive", "Buffer"):
        before = len(world.events)
        world.status["eventStoreMode"] = mode
        world.reconcile()
        told.append([event.reason for event in world.events[before:]])
    assert told == [[], [], [Reason.BUFFER_OVERFLOWED], [Reason.BUFFER_IN_USE]]


def _told(heading: str) -> set[str]:
    """The names in the first column of the table below a heading of the reference."""
    section: Any = re.search(rf"^## {heading}$(.*?)(?=^## |\Z)", events_reference(), re.M | re.S)
    return set(re.findall(r"^\| `(\w+)` \|", section[1], re.M))


def test_every_word_has_a_place_and_the_reference_tells_it_there() -> None:
    assert _told("Events") == {reason for reason in Reason if reason.sent}
    assert _told("Reasons of Ready, Reconciling and Stalled") == {reason for reason in Reason if reason.shown}
    assert _told("Failures and their budgets") == set(FAILURES)
    assert _told("Reasons of HistoryHeld") == set(HeldReason)
    assert all(reason.shown or reason.sent or reason.policy for reason in Reason)
    assert [event.type for event in (EmitEvent(Reason.PAUSED, ""), EmitEvent(Reason.STALLED, ""))] == [
        "Normal",
        "Warning",
    ]


def test_credentials_in_clear_text_are_told_once_and_as_long_as_they_are() -> None:
    situation = Situation(Reason.RUNNING, "a")
    (event,) = warnings("Set tls.", {})
    assert (event.type, event.reason) == ("Warning", Reason.CREDENTIALS_IN_CLEAR_TEXT)
    before = {"conditions": conditions(situation, HELD, "Set tls.", {}, 1, NOW)}
    assert before["conditions"][-1]["type"] == CLEAR_TEXT
    assert warnings("Set tls.", before) == []
    assert warnings("Set another tls.", before) != []
    assert CLEAR_TEXT not in {each["type"] for each in conditions(situation, HELD, "", before, 2, NOW)}
