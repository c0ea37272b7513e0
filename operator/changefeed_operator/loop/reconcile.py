"""One pass over one changefeed: observe everything, decide, act in order.

Watch caches may be stale, and differently so for each kind of object. So the only thing a pass may conclude from them
is that there is nothing to do. Otherwise everything is read from the API server, a dozen small reads, plus events and a
log where something is wrong, and decided again: no action is based on anything but such a read. Concurrent changes
after that are caught by the writes themselves: uid, resourceVersion, create-if-absent.

Any failure ends the pass, is logged with the changefeed's key, counted and retried; no exception reaches the queue.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, assert_never

import structlog
from changefeed.errors import ChangefeedError, Conflict, NeedsHuman, Transient
from changefeed.kube.client import Kube, Manifest, refusal_in
from changefeed.kube.kind import EVENT, NAMESPACE
from changefeed.spec.reasons import Reason

from changefeed_operator import api
from changefeed_operator.actions import (
    Action,
    Apply,
    Create,
    Decision,
    DeleteObject,
    EmitEvent,
    KeepLog,
    PatchStatus,
    SetFinalizer,
)
from changefeed_operator.decision.decide import own_status
from changefeed_operator.decision.evidence.pods import is_log_wanted, pods_in_question
from changefeed_operator.loop.queue import Gone, Key, Outcome, Requeue, Retry
from changefeed_operator.loop.seen import SeenObjects
from changefeed_operator.metrics import Metrics
from changefeed_operator.observe import Observed
from changefeed_operator.settings import Settings

#: Seconds after which a pass times out and is retried.
PASS_TIMEOUT = 90.0

#: Seconds after which a pass that did something is followed by another, until one finds nothing to do.
CONFIRM = 1.0

#: How many driver reports may intervene between the read and the status write of a pass.
REPORTS_BETWEEN = 5

#: Lines read from the end of a driver's log when something is wrong.
LOG_LINES = 1000

_LONGEST_MESSAGE = 1024  # of an event, as the API server allows

#: How many events are remembered, to increment the count of one that recurs.
EVENTS_KEPT = 4096

log = structlog.get_logger(__name__)

Decide = Callable[[Observed, Settings], Decision]


class Reconciler:
    """Reconciles changefeeds that match `selector` ("" for all). `seen`: the watch caches."""

    def __init__(
        self, kube: Kube, seen: SeenObjects, settings: Settings, metrics: Metrics, decide: Decide, selector: str = ""
    ) -> None:
        self._kube = kube
        self._seen = seen
        self._settings = settings
        self._kinds = settings.kinds
        self._metrics = metrics
        self._decide = decide
        self._selector = selector
        self._refused: dict[Key, str] = {}  # what the API server rejected in the last pass
        self._events: OrderedDict[str, tuple[int, str]] = OrderedDict()  # name -> how often, first time

    async def work(self, key: Key) -> Outcome:
        """One pass; never raises, except for cancellation."""
        with structlog.contextvars.bound_contextvars(changefeed="/".join(key)), self._metrics.reconcile_seconds.time():
            try:
                async with asyncio.timeout(PASS_TIMEOUT):
                    outcome = await self._pass(key)
            except Conflict as e:
                log.info("write conflict", error=str(e))
                outcome = self._failed(e)
            except Transient as e:
                log.warning("pass failed, will be retried", error=str(e))
                outcome = self._failed(e, e.retry_after)
            except (ChangefeedError, TimeoutError) as e:
                log.error("pass failed", error=str(e) or f"took more than {PASS_TIMEOUT:.0f} s", type=type(e).__name__)
                outcome = self._failed(e)
            except Exception as e:
                log.exception("unexpected error", type=type(e).__name__)
                self._metrics.unexpected.labels(type(e).__name__).inc()
                outcome = self._failed(e)
        self._metrics.reconciles.labels({Requeue: "done", Retry: "failed", Gone: "gone"}[type(outcome)]).inc()
        return outcome

    async def _pass(self, key: Key) -> Outcome:
        known = self._known(key)
        if known is not None and not (decision := self._decide(known, self._settings)).actions:
            self._seen.keep_told(key, known.changefeed or {})
            return Requeue(decision.requeue_after)
        observed = await self.observe(key)
        if observed is None:
            self._forget(key)
            return Gone()
        decision = self._decide(observed, self._settings)
        await self._act(observed, decision.actions)
        if observed.changefeed is None:
            self._forget(key)
            if decision == Decision() and not observed.children:
                return Gone()
        if decision.actions:
            return Requeue(min(CONFIRM, decision.requeue_after or CONFIRM))
        return Requeue(decision.requeue_after)

    def _forget(self, key: Key) -> None:
        self._seen.forget(key)
        self._refused.pop(key, None)

    def _known(self, key: Key) -> Observed | None:
        """The state from the watch caches; None if a pass needs more than that."""
        namespace, name = key
        changefeed = self._seen.changefeed(key)
        if changefeed is None or api.is_deleting(changefeed) or key in self._refused:
            return None
        known = Observed(
            namespace=namespace,
            name=name,
            now=time.time(),
            changefeed=changefeed,
            children=self._seen.children(key),
            executor_ends=self._seen.executor_ends(key),
            mode_before=self._seen.mode(key),
            unmatched_before=self._seen.unmatched(key),
        )
        return None if pods_in_question(known) or is_log_wanted(known) else known

    async def say(self, changefeed: Manifest, actions: Iterable[Action]) -> None:
        """Take actions that follow from the Changefeed alone. Raises whatever a write raises."""
        metadata = changefeed["metadata"]
        await self._act(Observed(metadata["namespace"], metadata["name"], time.time(), changefeed), actions)

    async def observe(self, key: Key) -> Observed | None:
        """The input of `decide`; None for a changefeed that is not ours. Raises whatever a read raises."""
        namespace, name = key
        changefeed = await self._kube.get(api.CHANGEFEED, namespace, name)
        if changefeed is not None and not await self._is_ours(changefeed):
            return None
        labels = f"{api.NAME_LABEL}={name}"
        lists = await asyncio.gather(*(self._kube.list(kind, namespace, labels) for kind in self._settings.child_kinds))
        ending = changefeed is None or api.is_deleting(changefeed)
        observed = Observed(
            namespace=namespace,
            name=name,
            now=time.time(),
            changefeed=changefeed,
            children=tuple(child for found in lists for child in found),
            namespace_terminating=ending and await self._is_terminating(namespace),
            executor_ends=self._seen.executor_ends(key),
            refused=self._refused.get(key, ""),
            mode_before=self._seen.mode(key),
            unmatched_before=self._seen.unmatched(key),
        )
        self._seen.keep_told(key, changefeed or {})
        return observed if ending else await self._explained(observed)

    async def _explained(self, observed: Observed) -> Observed:
        """Adds the evidence for a problem, if there is one; reads that are forbidden are skipped."""
        pods = pods_in_question(observed)
        events = await asyncio.gather(*(self._events_of(pod) for pod in pods))
        log_of_driver = ""
        if is_log_wanted(observed) and observed.driver is not None:
            pod = api.name_of(observed.driver)
            log_of_driver = await self._kube.log(observed.namespace, pod, api.DRIVER_CONTAINER, LOG_LINES)
        return replace(observed, pod_events=tuple(each for found in events for each in found), driver_log=log_of_driver)

    async def _events_of(self, pod: api.Json) -> list[Manifest]:
        about = f"involvedObject.uid={api.uid_of(pod)}"
        try:
            return await self._kube.list(EVENT, api.text_at(pod, "metadata", "namespace"), fields=about)
        except NeedsHuman as e:
            log.warning("events not read", error=str(e))
            return []

    async def _is_ours(self, changefeed: Manifest) -> bool:
        """The API server evaluates the selector."""
        if not self._selector:
            return True
        metadata = changefeed["metadata"]
        by_name = f"metadata.name={metadata['name']}"
        return bool(await self._kube.list(api.CHANGEFEED, metadata["namespace"], self._selector, by_name))

    async def _is_terminating(self, namespace: str) -> bool:
        found = await self._kube.get(NAMESPACE, "", namespace)
        return found is None or api.text_at(found, "status", "phase") == "Terminating"

    async def _act(self, observed: Observed, actions: Iterable[Action]) -> None:
        """In order; the first failure ends the pass, and a rejection by the API server is reported in the status."""
        key = observed.namespace, observed.name
        for action in actions:
            try:
                await self._do(observed, action)
            except ChangefeedError as e:
                if refusal := refusal_in(e):
                    await self._tell_refusal(key, action, f"{refusal}. {e.next_step}")
                raise
        self._refused.pop(key, None)

    async def _tell_refusal(self, key: Key, action: Action, why: str) -> None:
        """In the status and in an event; only in the event if it is the status that is rejected."""
        self._refused[key] = f"The API server rejects {_named(action)}: {why}"
        try:
            observed = await self.observe(key)
            if observed is None or observed.changefeed is None:
                return
            if isinstance(action, PatchStatus):
                await self._tell(observed, EmitEvent(Reason.REFUSED, self._refused[key]))
                return
            for each in self._decide(observed, self._settings).actions:
                if isinstance(each, PatchStatus | EmitEvent):
                    await self._do(observed, each)
        except ChangefeedError as e:
            log.warning("rejection not reported", error=str(e))

    async def _do(self, observed: Observed, action: Action) -> None:
        match action:
            case Apply(manifest):
                await self._kube.apply(self._kinds[manifest["kind"]], manifest)
                log.info("applied", kind=manifest["kind"], name=manifest["metadata"]["name"])
            case Create(manifest):
                await self._kube.create(self._kinds[manifest["kind"]], manifest)
                log.info("created", kind=manifest["kind"], name=manifest["metadata"]["name"])
            case DeleteObject(kind, name, uid, grace_s):
                await self._kube.delete(self._kinds[kind], observed.namespace, name, uid, grace_s)
                log.info("deleted", kind=kind, name=name, uid=uid)
            case PatchStatus():
                await self._patch_status(observed, action)
                log.info("status", state=action.status.get("state"), message=action.status.get("message"))
            case KeepLog(manifest):
                await self._keep_log(manifest)
            case SetFinalizer(finalizers, version):
                # No apply: after a restore from a backup nobody owns the field, and it could not be removed.
                patch = {"metadata": {"resourceVersion": version, "finalizers": list(finalizers)}}
                await self._kube.merge(api.CHANGEFEED, observed.namespace, observed.name, patch)
                log.info("finalizers", finalizers=finalizers)
            case EmitEvent():
                await self._tell(observed, action)
            case _:
                assert_never(action)

    async def _keep_log(self, manifest: Mapping[str, Any]) -> None:
        try:
            await self._kube.apply(api.CONFIG_MAP, manifest)
        except ChangefeedError as e:
            log.warning("driver log not saved", error=str(e))

    async def _patch_status(self, observed: Observed, action: PatchStatus) -> None:
        """Retries if only a driver's report intervened: it changes the resourceVersion, but nothing that decisions use.

        Otherwise writes would fail forever wherever passes are slower than reports.
        """
        for _ in range(REPORTS_BETWEEN):
            try:
                await self._kube.apply(api.CHANGEFEED, _status_manifest(observed, action), "status")
                return
            except Conflict:
                found = await self._kube.get(api.CHANGEFEED, observed.namespace, observed.name)
                if _basis(found) != _basis(observed.changefeed):
                    raise
                action = replace(action, resource_version=api.text_at(found, "metadata", "resourceVersion"))
        await self._kube.apply(api.CHANGEFEED, _status_manifest(observed, action), "status")

    async def _tell(self, observed: Observed, event: EmitEvent) -> None:
        """Post an event, or increment the count of the same one. A failure does not end the pass."""
        log.info("event", reason=event.reason, message=event.message)
        self._metrics.events.labels(event.reason).inc()
        about = observed.changefeed
        if about is None:
            return
        now = api.time_text(observed.now)
        name = f"{observed.name}.{api.digest([api.uid_of(about), event.type, event.reason, event.message])}"
        count, first = self._events.get(name, (0, now))
        try:
            await self._kube.apply(EVENT, _event_manifest(about, event, name, count + 1, first, now))
        except ChangefeedError as e:
            log.warning("event not posted", error=str(e))
            return
        self._events[name] = (count + 1, first)
        while len(self._events) > EVENTS_KEPT:
            self._events.popitem(last=False)

    def _failed(self, error: Exception, retry_after: float = 0.0) -> Retry:
        self._metrics.retries.labels(type(error).__name__).inc()
        return Retry(retry_after)


def _named(action: Action) -> str:
    match action:
        case Apply(manifest) | Create(manifest) | KeepLog(manifest):
            return f"{manifest['kind']} {manifest['metadata']['name']}"
        case DeleteObject(kind, name, _, _):
            return f"the deletion of {kind} {name}"
        case _:
            return "the status"


def _basis(changefeed: api.Json | None) -> object:
    """Return what decisions use of a Changefeed: everything except the driver's reports."""
    metadata = api.mapping_at(changefeed, "metadata")
    marks = [metadata.get(name) for name in ("uid", "generation", "deletionTimestamp")]
    return [*marks, own_status(api.mapping_at(changefeed, "status"))]


def _status_manifest(observed: Observed, action: PatchStatus) -> Manifest:
    metadata = {"namespace": observed.namespace, "name": observed.name, "uid": api.uid_of(observed.changefeed or {})}
    metadata["resourceVersion"] = action.resource_version
    kind = api.CHANGEFEED
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "status": action.status}


def _event_manifest(about: api.Json, event: EmitEvent, name: str, count: int, first: str, now: str) -> Manifest:
    namespace = api.text_at(about, "metadata", "namespace")
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {"namespace": namespace, "name": name},
        "involvedObject": {
            "apiVersion": api.CHANGEFEED.api_version,
            "kind": api.CHANGEFEED.kind,
            "namespace": namespace,
            "name": api.name_of(about),
            "uid": api.uid_of(about),
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:_LONGEST_MESSAGE],
        "count": count,
        "firstTimestamp": first,
        "lastTimestamp": now,
        "source": {"component": api.OPERATOR},
    }
