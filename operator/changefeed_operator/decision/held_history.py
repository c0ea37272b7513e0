"""Whether the upstream's history is held for a changefeed, and when a Job must hold it (rule 14). Pure.

The driver reports how long its hold lasts; hold Jobs do so in their termination message. `status.hold` keeps the later
of the two. The condition's message names the expiry only while Jobs renew the hold: a driver renews it every minute,
and every change is a write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from changefeed.spec.field.quantity import parse_duration
from changefeed.spec.reasons import HeldReason, Reason

from changefeed_operator import api
from changefeed_operator.actions import Create, EmitEvent
from changefeed_operator.api import Json
from changefeed_operator.decision.attempt.ledger import (
    AttemptError,
    AttemptLedger,
    AttemptOutcome,
    error_fields,
    read_error,
)
from changefeed_operator.decision.conditions import condition
from changefeed_operator.decision.evidence import job
from changefeed_operator.decision.evidence.pods import LOOK_S, pending_jobs
from changefeed_operator.decision.progress import is_heard
from changefeed_operator.manifests.jobs import hold_job
from changefeed_operator.observe import Observed
from changefeed_operator.settings import Settings
from changefeed_operator.target import Target, Wanted

CONDITION = "HistoryHeld"
_KEPT_BYTES = ("keptBytes", "mostBytes")
#: Of status.hold, where the upstream says how much it keeps.
_KEPT = (*_KEPT_BYTES, "walStatus", "goneAt", "warning")


@dataclass(frozen=True)
class HeldHistoryDecision:
    """`fields`: of status; `answer`: reason and message of the condition; `by_jobs`: a CronJob renews it."""

    fields: dict[str, Any]
    answer: tuple[HeldReason, str]
    by_jobs: bool = False
    create: tuple[Create, ...] = ()
    events: tuple[EmitEvent, ...] = ()
    look_again_at: float | None = None


@dataclass(frozen=True)
class _KnownHold:
    """`ts` is held until `until`, Unix seconds; None: not known yet."""

    ts: str = ""
    until: float | None = None
    error: AttemptError | None = None
    kept: Mapping[str, Any] = field(default_factory=dict)  # _KEPT's fields of status


def held_history(observed: Observed, settings: Settings, want: Wanted, ledger: AttemptLedger) -> HeldHistoryDecision:
    """Return what to report and do about the hold on the upstream's history."""
    status = api.mapping_at(observed.changefeed, "status")
    before = _read(api.mapping_at(status, "hold"))
    ttl, now = _ttl(observed, want), observed.now
    hold = _newest(observed, before, ttl)
    if ledger.outcome is AttemptOutcome.FINISHED or not _has_history(want, ledger):
        return HeldHistoryDecision(_fields(hold), _not_needed(ledger))
    by_jobs = want.target is not None and _must_be_renewed(hold, want, ttl, ledger, now)
    create = _at_once(observed, settings, want.target, ttl, hold) if by_jobs and want.target else ()
    answer = _answer(hold, by_jobs, now)
    return HeldHistoryDecision(
        fields=_fields(hold),
        answer=answer,
        by_jobs=by_jobs,
        create=create,
        events=_events(observed, hold, before, answer, status),
        look_again_at=now + LOOK_S if pending_jobs(observed) else _next(hold, ttl, now),
    )


def _ttl(observed: Observed, want: Wanted) -> float:
    """Say how long a renewal lasts; a driver that hasn't applied a longer TTL yet must not be taken for late."""
    wanted = want.target.resource.spec.upstream.safepoint_ttl if want.target else 0.0
    applied = api.text_at(observed.changefeed, "status", "appliedSettings", "upstream.safepointTtl")
    if not applied or not is_heard(observed):
        return wanted
    try:
        return min(wanted, parse_duration(applied))
    except ValueError:
        return wanted


def _has_history(want: Wanted, ledger: AttemptLedger) -> bool:
    """Tell whether there is a ts that the changefeed must be able to resume from."""
    return ledger.attempt > 0 or _start_ts(want.target) is not None


def _start_ts(target: Target | None) -> int | None:
    return target.resource.spec.start_ts if target else None


def _must_be_renewed(hold: _KnownHold, want: Wanted, ttl: float, ledger: AttemptLedger, now: float) -> bool:
    """Nothing will run for a while, or nothing has started yet, or the last renewal is a third of the TTL ago."""
    if want.paused or ledger.outcome is AttemptOutcome.STALLED or ledger.is_crash_looping:
        return True
    if hold.until is None:
        return _start_ts(want.target) is not None
    return hold.until - now < ttl * 2 / 3


def _at_once(
    observed: Observed, settings: Settings, target: Target, ttl: float, hold: _KnownHold
) -> tuple[Create, ...]:
    """A Job now: the CronJob's next one may be half an hour away, and TiDB's GC keeps only ten minutes."""
    if hold.until is None and _start_ts(target) is None:
        return ()
    is_urgent = hold.until is None or hold.until - observed.now < ttl / 3
    name = api.hold_cron_job_name(observed.name)
    known = job.jobs(observed, "hold")
    if not is_urgent or observed.child(api.JOB, name) or any(job.is_under_way(each) for each in known):
        return ()
    return (Create(hold_job(target, settings, observed.changefeed or {})),)


def _next(hold: _KnownHold, ttl: float, now: float) -> float | None:
    """Say when the passage of time alone changes something."""
    if hold.until is None:
        return None
    times = (hold.until - ttl * 2 / 3, hold.until - ttl / 3, hold.until)
    return min((time for time in times if time > now), default=None)


def _newest(observed: Observed, before: _KnownHold, ttl: float) -> _KnownHold:
    ts, until, kept = before.ts, before.until, before.kept
    for words in job.results(observed, "hold"):
        said = api.parse_time(words.get("until", ""))
        if said is not None and words.get("ts", "").isdecimal() and said > (until or 0.0):
            ts, until, kept = words["ts"], said, _kept(words)
    # What is lost no other pod of the Job can get back, which may take minutes to say the same.
    failed = [
        each
        for each in job.jobs(observed, "hold")
        if job.has_failed(each) or job.has_met(observed, each, HeldReason.LOST)
    ]
    found = [before.error, job.trouble(observed, "hold")]
    found += [job.failure(observed, each, before.error) for each in failed]
    error = max((each for each in found if each is not None), key=lambda each: each.time, default=None)
    if error is not None and until is not None and until - ttl >= error.time:
        error = None  # it has been renewed since
    return _KnownHold(ts, until, error, kept)


def _not_needed(ledger: AttemptLedger) -> tuple[HeldReason, str]:
    if ledger.outcome is AttemptOutcome.FINISHED:
        return HeldReason.FINISHED, "No hold is needed any more: everything up to spec.targetTs is in the sink."
    return HeldReason.NOTHING_TO_HOLD, "Not started, and no startTs: the changefeed will start from the current ts."


def _answer(hold: _KnownHold, by_jobs: bool, now: float) -> tuple[HeldReason, str]:
    error = hold.error
    why = f" {error.message}" if error else ""
    if error is not None and error.cause == HeldReason.LOST:
        return HeldReason.LOST, error.message
    if hold.until is None:
        if error is not None:
            return HeldReason.NOT_HELD, f"The upstream may let go of history that is still needed.{why}"
        return HeldReason.NOT_HELD_YET, "It is not known yet whether the upstream's history is held."
    until = api.time_text(hold.until)
    if now >= hold.until:
        text = f"The hold expired at {until}: the upstream may have garbage-collected history after {hold.ts}.{why}"
        if hold.kept:  # by a slot, which does not expire
            text = f"Nobody has looked since long before {until} whether the slot has history after {hold.ts}.{why}"
        return HeldReason.LAPSED, text
    if error is not None:
        return (
            HeldReason.NOT_RENEWED,
            f"History after {hold.ts} is held until {until}, but the last renewal failed.{why}",
        )
    if warning := hold.kept.get("warning"):
        return HeldReason.RUNNING_OUT, str(warning)
    if by_jobs:
        return HeldReason.HELD, f"History after {hold.ts} is held until {until}; a Job renews the hold."
    return HeldReason.HELD, "The driver renews the hold every minute; status.hold has its expiry."


def _events(
    observed: Observed, hold: _KnownHold, before: _KnownHold, answer: tuple[HeldReason, str], status: Json
) -> tuple[EmitEvent, ...]:
    told: list[EmitEvent] = []
    if hold.error is not None and _is_new(hold.error, before.error, observed):
        text = f"The hold on the upstream's history could not be renewed: {hold.error.message}"
        told.append(EmitEvent(Reason.HOLD_FAILED, text))
    reason, message = answer
    if reason in (HeldReason.LAPSED, HeldReason.LOST) and reason != api.text_at(condition(status, CONDITION), "reason"):
        told.append(EmitEvent(Reason.HOLD_LOST, message))
    return tuple(told)


def _is_new(error: AttemptError, before: AttemptError | None, observed: Observed) -> bool:
    """Every failed Job is reported; for a pending one only a new cause, as the scheduler's message keeps changing."""
    if any(job.has_failed(each) for each in job.jobs(observed, "hold")):
        return error != before
    return before is None or error.cause != before.cause


def _read(raw: Json) -> _KnownHold:
    kept = {name: raw[name] for name in _KEPT if name in raw}
    error = read_error(api.mapping_at(raw, "lastError"))
    return _KnownHold(api.text_at(raw, "ts"), api.time_at(raw, "until"), error, kept)


def _kept(words: Mapping[str, str]) -> dict[str, Any]:
    """What a Job has said is kept, as fields of status."""
    numbers = {name: int(words[name]) for name in _KEPT_BYTES if words.get(name, "").isdecimal()}
    return numbers | {name: words[name] for name in _KEPT if name not in _KEPT_BYTES and name in words}


def _fields(hold: _KnownHold) -> dict[str, Any]:
    """As `status.hold`; repeats what a driver reported, since only the field's owner may remove it."""
    fields: dict[str, Any] = dict(hold.kept)
    if hold.ts:
        fields["ts"] = hold.ts
    if hold.until is not None:
        fields["until"] = api.time_text(hold.until)
    if hold.error is not None:
        fields["lastError"] = error_fields(hold.error)
    return {"hold": fields} if fields else {}
