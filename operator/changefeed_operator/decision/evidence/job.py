"""The outcome of one of our Jobs: done, why it failed, or why its pod does not start. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from changefeed_operator import api
from changefeed_operator.api import Json
from changefeed_operator.decision.attempt.ledger import AttemptError
from changefeed_operator.decision.evidence.driver_pod import trouble_of
from changefeed_operator.manifests.jobs import DEADLINE_S, Verb
from changefeed_operator.observe import Observed


def jobs(observed: Observed, verb: Verb) -> list[Json]:
    """The existing ones, oldest first."""
    found = [each for each in observed.children if api.kind_of(each) == api.JOB.kind and _is(each, verb)]
    return sorted(found, key=_created)


def is_done(job: Json) -> bool:
    return _ended(job, "Complete") is not None


def has_failed(job: Json) -> bool:
    return _ended(job, "Failed") is not None


def has_met(observed: Observed, job: Json, cause: str) -> bool:
    """Whether a pod of a Job has ended with that class, and none has done the Job since."""
    return not is_done(job) and any(last_words(pod).get("class") == cause for pod in _pods(observed, job))


def is_under_way(job: Json) -> bool:
    return not (is_done(job) or has_failed(job) or api.is_deleting(job))


def failure(observed: Observed, job: Json, known: AttemptError | None = None) -> AttemptError:
    """Say why a Job failed. `known`: the last known error; what kept a pod from starting is lost with the pod."""
    condition = _ended(job, "Failed") or {}
    time = api.time_at(condition, "lastTransitionTime") or _created(job)
    said = [words for pod in _pods(observed, job) if (words := last_words(pod)).get("class")]
    if said:
        words = said[-1]
        return AttemptError(
            words["class"][:128], f"{words.get('message', '')} {words.get('next', '')}".strip()[:1000], time
        )
    if known is not None and known.time >= _created(job):
        return AttemptError(known.cause, known.message, time)
    if api.text_at(condition, "reason") == "DeadlineExceeded":
        text = (
            f"The Job did not finish within {DEADLINE_S // 60} minutes. Check the events of its pods and their nodes."
        )
        return AttemptError("DeadlineExceeded", text, time)
    text = api.text_at(condition, "message") or "No reason given."
    return AttemptError(api.text_at(condition, "reason") or "JobFailed", f"{text} Check the logs of its pods.", time)


def trouble(observed: Observed, verb: Verb) -> AttemptError | None:
    """Say why the newest pod of these Jobs does not start, if known."""
    found = [each for each in observed.children if api.kind_of(each) == api.POD.kind and _is(each, verb)]
    for pod in sorted(found, key=_created, reverse=True):
        why = trouble_of(pod, verb, observed.pod_events) if api.text_at(pod, "status", "phase") == "Pending" else None
        return AttemptError(str(why.failure), why.message, _created(pod)) if why else None
    return None


def results(observed: Observed, verb: Verb) -> Iterator[Mapping[str, str]]:
    """The termination messages of the pods of these Jobs that succeeded."""
    for pod in observed.children:
        if api.kind_of(pod) == api.POD.kind and _is(pod, verb) and api.text_at(pod, "status", "phase") == "Succeeded":
            yield last_words(pod)


def last_words(pod: Json) -> dict[str, str]:
    """The container's termination message; empty if there is none."""
    statuses = api.list_at(pod, "status", "containerStatuses")
    text = next((said for each in statuses if (said := api.text_at(each, "state", "terminated", "message"))), "")
    try:
        words: Any = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(words, Mapping):
        return {}
    return {str(name): value for name, value in words.items() if isinstance(value, str)}


def _pods(observed: Observed, job: Json) -> list[Json]:
    uid = api.uid_of(job)
    found = [each for each in observed.children if api.kind_of(each) == api.POD.kind and uid in api.owner_uids(each)]
    return sorted(found, key=_created)


def _is(found: Json, verb: Verb) -> bool:
    return api.label_of(found, api.JOB_LABEL) == verb


def _ended(job: Json, how: str) -> Json | None:
    for each in api.list_at(job, "status", "conditions"):
        if api.text_at(each, "type") == how and api.text_at(each, "status") == "True":
            return each if isinstance(each, Mapping) else None
    return None


def _created(found: Json) -> float:
    return api.time_at(found, "metadata", "creationTimestamp") or 0.0
