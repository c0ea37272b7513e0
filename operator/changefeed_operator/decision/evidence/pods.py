"""What a pass needs to know beyond the children while something is wrong, and what that means. Pure.

The kubelet's events have what a pod's status leaves out: which Secret a volume lacks, why an image can't be pulled, or
that a probe failed. Rejections of Spark's executor pods appear only in the driver's log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from changefeed_operator import api
from changefeed_operator.api import Json
from changefeed_operator.observe import Observed

#: Seconds after a pod's creation during which volume errors are ignored: Spark creates the driver's ConfigMaps after
#: its pod.
SETTLED_S = 10.0
#: Seconds after the start of the driver within which Spark creates its executors.
EXECUTORS_S = 45.0
#: Seconds without all executors after which pods are no longer protected from eviction.
SHORT_S = 60.0
#: Seconds between checks of the kubelet's events and Spark's log for pods that don't start; neither is watched.
LOOK_S = 20.0
#: Seconds for which an OOM-killed executor is reported.
TOLD_S = 300.0

_NOT_MOUNTED = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox")
#: The kubelet repeats itself every two minutes at the latest.
_REPEATED_S = 150.0
_KILLED = (137, 143)
#: Seconds that a kill may take beyond the grace period.
_KILL_S = 15.0
_LONGEST = 400


def pods_in_question(observed: Observed) -> tuple[Json, ...]:
    """The pods whose events a pass needs: the driver's, one executor's and one Job's."""
    driver = observed.driver
    found = [driver] if driver is not None and (_is_pending(driver) or _was_killed(observed, driver)) else []
    executors = [pod for pod in observed.executors if _is_pending(pod)]
    return (*found, *executors[:1], *pending_jobs(observed)[:1])


def pending_jobs(observed: Observed) -> list[Json]:
    """Pods of hold and close Jobs that have not started."""
    return [
        each
        for each in observed.children
        if api.kind_of(each) == api.POD.kind and api.label_of(each, api.JOB_LABEL) and _is_pending(each)
    ]


def is_log_wanted(observed: Observed) -> bool:
    """Tell whether to read the log: an attempt has just ended, or executors are missing."""
    driver = observed.driver
    if driver is None:
        return False
    if ended(driver):
        return _is_under_way(observed)
    return lacks_executors(observed, driver, EXECUTORS_S)


def lacks_executors(observed: Observed, driver: Json, seconds: float) -> bool:
    """Tell whether executors are missing although the driver has been running for `seconds`."""
    started = api.time_at(_state(driver, "running"), "startedAt")
    wanted = api.whole_at(observed.application, "spec", "executor", "instances")
    alive = [pod for pod in observed.executors if not ended(pod) and not api.is_deleting(pod)]
    return started is not None and observed.now >= started + seconds and len(alive) < wanted


def is_short(observed: Observed) -> bool:
    """Tell whether the driver has been without some of its executors for a minute."""
    if observed.driver is None or api.is_deleting(observed.driver):
        return False
    waits = [pod for pod in observed.executors if _is_pending(pod) and _age(observed, pod) >= SHORT_S]
    return bool(waits) or lacks_executors(observed, observed.driver, SHORT_S)


def ended(pod: Json) -> Json:
    """Say how a container of the pod terminated; empty while they run."""
    return _state(pod, "terminated")


def out_of_memory(observed: Observed, attempt: str) -> Json | None:
    """An executor of the attempt that was OOM-killed recently."""
    for pod in observed.executor_ends:
        end = ended(pod)
        is_new = observed.now < (api.time_at(end, "finishedAt") or 0.0) + TOLD_S
        is_of_attempt = api.label_of(pod, api.ATTEMPT_LABEL) == attempt
        if api.text_at(end, "reason") == "OOMKilled" and is_of_attempt and is_new:
            return pod
    return None


def unmounted(pod: Json, events: Sequence[Json]) -> str:
    """Return what the kubelet says about the volumes or the network that a pod waits for; "" if nothing."""
    since = (api.time_at(pod, "metadata", "creationTimestamp") or 0.0) + SETTLED_S
    found = [each for each in _of(pod, events) if api.text_at(each, "reason") in _NOT_MOUNTED and _last(each) >= since]
    newest = max(map(_last, found), default=0.0)
    said = {api.text_at(each, "message") for each in found if _last(each) > newest - _REPEATED_S}
    return _joined(sorted(said)[:2])


def not_pulled(pod: Json, events: Sequence[Json]) -> str:
    """Say why an image can't be pulled, in the kubelet's words."""
    found = [
        each
        for each in _of(pod, events)
        if api.text_at(each, "reason") == "Failed" and api.text_at(each, "message").startswith("Failed to pull image")
    ]
    return _joined([api.text_at(max(found, key=_last), "message")]) if found else ""


def failed_probe(pod: Json, events: Sequence[Json]) -> str:
    """The answer to the failed probe for which the kubelet killed the pod; "" if it was not a probe.

    The kubelet's event for the kill does not say why. A hung driver gets its whole grace period.
    """
    grace = api.whole_at(pod, "spec", "terminationGracePeriodSeconds")
    since = (api.time_at(ended(pod), "finishedAt") or 0.0) - grace - _KILL_S
    said = [each for each in _of(pod, events) if api.text_at(each, "reason") == "Unhealthy" and _last(each) >= since]
    return _joined([api.text_at(max(said, key=_last), "message")]) if said else ""


def _of(pod: Json, events: Sequence[Json]) -> Iterable[Json]:
    uid = api.uid_of(pod)
    return (each for each in events if api.text_at(each, "involvedObject", "uid") == uid)


def _last(event: Json) -> float:
    times = (api.time_at(event, *path) for path in (("lastTimestamp",), ("series", "lastObservedTime"), ("eventTime",)))
    return max((time for time in times if time is not None), default=0.0)


def _joined(said: Iterable[str]) -> str:
    """Without a full stop."""
    return "; ".join(" ".join(each.split()).rstrip(". ") for each in said)[:_LONGEST]


def _is_pending(pod: Json) -> bool:
    return api.text_at(pod, "status", "phase") == "Pending" and not api.is_deleting(pod)


def _age(observed: Observed, pod: Json) -> float:
    return observed.now - (api.time_at(pod, "metadata", "creationTimestamp") or observed.now)


def _was_killed(observed: Observed, driver: Json) -> bool:
    return api.whole_at(ended(driver), "exitCode") in _KILLED and _is_under_way(observed)


def _is_under_way(observed: Observed) -> bool:
    return api.text_at(observed.changefeed, "status", "attemptPhase") != "Ended"


def _state(pod: Json, word: str) -> Json:
    for container in api.list_at(pod, "status", "containerStatuses"):
        if state := api.mapping_at(container, "state", word):
            return state
    return {}
