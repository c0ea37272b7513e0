"""What a driver pod reveals: how it ended, why it does not start, since when it is running. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from changefeed.errors import stopping
from changefeed.spec.reasons import Reason

from changefeed_operator import api
from changefeed_operator.api import Json
from changefeed_operator.decision.attempt.ledger import AttemptOutcome
from changefeed_operator.decision.attempt.restart import FAST_S
from changefeed_operator.decision.evidence.pods import failed_probe, not_pulled, unmounted
from changefeed_operator.decision.evidence.spark_words import AGAINST_REFUSAL, refusal_in

#: Error classes for which a retry would end the same way; `InvalidResource` is an `InvalidSpec`.
_FOR_A_PERSON = frozenset({*stopping(), "InvalidResource"})
#: Credentials or certificates that must be fixed outside the resource: a retry succeeds after that.
_REFUSED = "Refused"
_BAD_INPUT, _UNAVAILABLE, _FENCED = 2, 69, 75
_IMAGE_REASONS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_CONFIG_REASONS = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_COUNT = re.compile("[0-9]{1,15}")
_EXIT_IN_TEXT = re.compile(r"ExitCode: (\d+)(?:, Reason: (\w+))?")


@dataclass(frozen=True)
class End:
    """How an attempt ended on its own. `failure`: for `FAILED`; `cause`: CamelCase; `message`: with the next step.

    `newest_attempt`: the one in the log, if this one was fenced for being older.
    """

    outcome: AttemptOutcome
    cause: str = ""
    message: str = ""
    failure: Reason = Reason.CRASH
    newest_attempt: int = 0


@dataclass(frozen=True)
class PodTrouble:
    """Why a pod does not start."""

    failure: Reason
    message: str


def is_over(pod: Json) -> bool:
    """Tell whether nothing in the pod is running any more."""
    return api.text_at(pod, "status", "phase") in ("Succeeded", "Failed") or bool(_terminated(pod))


def started_at(pod: Json) -> float | None:
    """Since when the driver's container has been running; None if it isn't."""
    running = _state(pod, api.DRIVER_CONTAINER).get("running")
    if running is None:
        return None
    return api.time_at(running, "startedAt") or api.time_at(pod, "metadata", "creationTimestamp") or 0.0


def end_of(pod: Json, events: Sequence[Json] = (), log: str = "") -> End:
    """Say how the driver in a pod that is over ended. `events`: about the pod; `log`: the end of the driver's."""
    terminated = _terminated(pod)
    if not terminated:
        why = api.text_at(pod, "status", "reason") or disruption_of(pod) or "no reason given"
        return lost(f"The driver's pod failed: {why}. {api.text_at(pod, 'status', 'message')}".strip())
    started, finished = api.time_at(terminated, "startedAt"), api.time_at(terminated, "finishedAt")
    is_fast = started is not None and finished is not None and finished - started < FAST_S
    said = _said(api.text_at(terminated, "message"))
    is_killed = not said and api.text_at(terminated, "reason") != "OOMKilled"
    if is_killed and (probe := failed_probe(pod, events)):
        text = (
            f"The driver hung and the kubelet killed it: {probe}. Check its log for what it did last: changefeed logs."
        )
        return End(AttemptOutcome.FAILED, "Hung", text, Reason.HUNG)
    end = _classified(api.whole_at(terminated, "exitCode"), api.text_at(terminated, "reason"), said, is_fast)
    if not said and end.failure in (Reason.CRASH, Reason.FAST_FAIL) and (refusal := refusal_in(log)):
        text = f"The driver exited; the last rejection it got from the API server: {refusal}. {AGAINST_REFUSAL}"
        return replace(end, cause="Refused", message=text)
    return end


def disruption_of(pod: Json) -> str:
    """Why Kubernetes is removing the pod, as from a lost or drained node; empty if it isn't Kubernetes that does."""
    for each in api.list_at(pod, "status", "conditions"):
        if api.text_at(each, "type") == "DisruptionTarget" and api.text_at(each, "status") == "True":
            return api.text_at(each, "message").removesuffix(".")
    return ""


def end_in_text(text: str) -> End | None:
    """Return what the Spark operator reports about a driver whose pod is gone; None if it gives no exit code."""
    match = _EXIT_IN_TEXT.search(text)
    return _classified(int(match[1][:3]), match[2] or "", {}, False) if match else None


def _classified(code: int, reason: str, said: Mapping[str, str], is_fast: bool) -> End:
    cause = said.get("class", "")
    message = f"{said.get('message', '')} {said.get('next', '')}".strip()
    if reason == "OOMKilled":
        text = "The driver was OOM-killed. Raise spec.spark.driver.memory."
        return End(AttemptOutcome.FAILED, "OutOfMemory", text, Reason.OOM)
    if code == 0:
        if cause == "Finished":
            return End(AttemptOutcome.FINISHED, cause, message)
        return lost("Someone other than the operator stopped the driver, and it drained.")
    if code == _BAD_INPUT or (code == 1 and cause in _FOR_A_PERSON):
        return End(
            AttemptOutcome.STALLED, cause or "InvalidSpec", message or f"The driver rejected its input (exit {code})."
        )
    if code == _UNAVAILABLE or cause == _REFUSED:
        text = message or "The upstream or the sink did not respond in time. Check both."
        return End(AttemptOutcome.FAILED, cause or "Unavailable", text, Reason.UNAVAILABLE)
    if code == _FENCED:
        text = message or "Another driver has taken over the changefeed. Look for a second operator or a local run."
        newest = said.get("newestAttempt", "")
        known = int(newest) if _COUNT.fullmatch(newest) else 0
        return End(AttemptOutcome.FAILED, cause or "Fenced", text, Reason.FENCED, known)
    if not cause and code == 143:
        return lost("The driver was terminated (exit 143) before it drained.")
    failure = Reason.FAST_FAIL if is_fast else Reason.CRASH
    text = message or f"The driver exited with code {code}. Check its log: changefeed logs."
    return End(AttemptOutcome.FAILED, cause or str(failure), text, failure)


def lost(message: str) -> End:
    """The attempt went because somebody or something took it away."""
    return End(AttemptOutcome.FAILED, "Lost", message, Reason.LOST)


def _said(text: str) -> dict[str, str]:
    """The driver's termination message; empty if there is none."""
    try:
        words = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return {name: said for name in ("class", "message", "next", "newestAttempt") if (said := api.text_at(words, name))}


def is_unreachable(pod: Json) -> bool:
    """The pod is being deleted and its node does not respond: the kubelet last reported its container ready, yet it is
    not Ready. Only the node lifecycle controller leaves a pod like that.
    """
    ready = (each for each in api.list_at(pod, "status", "conditions") if api.text_at(each, "type") == "Ready")
    was_ready = any(api.mapping_at(each, "state", "running") and each.get("ready") is True for each in _containers(pod))
    return api.is_deleting(pod) and was_ready and any(api.text_at(each, "status") != "True" for each in ready)


def trouble_of(pod: Json, container: str = api.DRIVER_CONTAINER, events: Sequence[Json] = ()) -> PodTrouble | None:
    """Say why a pending pod doesn't start, if its status or the kubelet says so. `events`: about the pod."""
    waiting = api.mapping_at(_state(pod, container), "waiting")
    reason, said = api.text_at(waiting, "reason"), api.text_at(waiting, "message")
    role = api.label_of(pod, api.ROLE_LABEL) or api.label_of(pod, api.JOB_LABEL) or "driver"
    if reason in _IMAGE_REASONS:
        image = api.text_at(
            _named(api.list_at(pod, "spec", "containers"), container), "image"
        )  # the kubelet's message in the status comes and goes
        why = not_pulled(pod, events)
        pulled = f"can't be pulled: {why}" if why else "can't be pulled"
        return PodTrouble(
            Reason.IMAGE_PULL,
            f"The {role} image {image} {pulled}. Fix spec.spark.image, or the access to its registry; the pull is "
            "retried.",
        )
    if reason in _CONFIG_REASONS:
        return PodTrouble(
            Reason.DRIVER_START,
            f"The {role} container can't be created ({reason}): {said} Check the Secrets that the spec names.",
        )
    for each in api.list_at(pod, "status", "conditions"):
        if api.text_at(each, "type") == "PodScheduled" and api.text_at(each, "reason") == "Unschedulable":
            return PodTrouble(
                Reason.UNSCHEDULABLE,
                f"The {role} pod can't be scheduled: {api.text_at(each, 'message')} "
                "Free up capacity, or request less in spec.spark.",
            )
    if why := unmounted(pod, events):
        text = f"The {role} pod does not start: {why}. Create what is missing; the pod then starts on its own."
        return PodTrouble(Reason.DRIVER_START, text)
    return None


def _named(containers: Sequence[Any], name: str) -> Json:
    return next((each for each in containers if isinstance(each, Mapping) and api.text_at(each, "name") == name), {})


def _state(pod: Json, container: str) -> Json:
    """A container's state as the kubelet reports it: `running`, `waiting` or `terminated`."""
    return api.mapping_at(_named(_containers(pod), container), "state")


def _containers(pod: Json) -> Sequence[Any]:
    return api.list_at(pod, "status", "containerStatuses")


def _terminated(pod: Json) -> Json:
    return api.mapping_at(_state(pod, api.DRIVER_CONTAINER), "terminated")
