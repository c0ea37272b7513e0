"""A small cluster in memory: an API server, garbage collection, the Spark operator, kubelets and a driver.

`World.reconcile` is what the operator's runtime does: observe, decide, act. Everything else happens when it is asked
for (`submit`, `run`, `exit_driver`, ...), or step by step in `play`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from changefeed.spec.field.quantity import parse_duration
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
from changefeed_operator.decision.conditions import OWN_CONDITIONS
from changefeed_operator.decision.decide import OWN_FIELDS, decide
from changefeed_operator.loop.seen import SeenObjects
from changefeed_operator.observe import Observed
from changefeed_operator.settings import Settings
from spark_applications import AskedPod, asked, told, word

START = 1_800_000_000.0
NAME, NAMESPACE = "orders", "shop"
SPEC: dict[str, Any] = {
    "upstream": {"pdAddresses": ["http://pd:2379"]},
    "state": {"uri": "s3://cdc-state"},
    "sink": {"storage": {"uri": "s3://lake/orders", "protocol": "csv"}},
}
TTL = 86_400
SETTINGS = Settings(image="changefeed-spark:1")

Manifest = dict[str, Any]


class Refused(Exception):
    """The API server says no: the pass ends."""


class World:
    """`objects`: by kind and name, of one namespace. `writes`: how many changes the operator made.

    `dies_at`: after so many actions of its own the operator is killed once, and started again. `broken`: what it did
    that it must not.
    """

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.settings = settings
        self.now = START
        self.objects: dict[tuple[str, str], Manifest] = {}
        self.namespace_terminating = False
        self.events: list[EmitEvent] = []
        self.writes = 0
        self.acts = 0
        self.dies_at = -1
        self.passes = 1  # of the operator, for each step of the others
        self.most_attempts_alive = 0
        self.broken: list[str] = []
        self.pod_events: list[Manifest] = []
        self.driver_log = ""
        self.executor_ends: list[Manifest] = []
        self.seen = SeenObjects()
        self.refused = ""
        self._numbers = 0

    # The people

    def create(self, **changes: Any) -> None:
        spec = {**copy.deepcopy(SPEC), **changes}
        self._put({"apiVersion": api.API_VERSION, "kind": "Changefeed", "metadata": {"name": NAME}, "spec": spec})
        self.changefeed["metadata"]["generation"] = 1
        self.changefeed["status"] = {"observedGeneration": -1}

    def edit(self, path: str, value: Any) -> None:
        """`path`: below spec, with dots; None takes the field away."""
        *above, last = path.split(".")
        section = self.changefeed["spec"]
        for name in above:
            section = section.setdefault(name, {})
        if value is None:
            section.pop(last, None)
        else:
            section[last] = value
        self.changefeed["metadata"]["generation"] += 1
        self._bump(self.changefeed)

    def annotate(self, key: str, value: str | None) -> None:
        annotations = self.changefeed["metadata"].setdefault("annotations", {})
        if value is None:
            annotations.pop(key, None)
        else:
            annotations[key] = value
        self._bump(self.changefeed)

    def delete(self) -> None:
        if self.changefeed["metadata"].get("finalizers"):
            self.changefeed["metadata"]["deletionTimestamp"] = api.time_text(self.now)
            self._bump(self.changefeed)
            return
        del self.objects["Changefeed", NAME]
        self._collect()

    @property
    def changefeed(self) -> Manifest:
        return self.objects["Changefeed", NAME]

    @property
    def status(self) -> Manifest:
        status: Manifest = self.changefeed["status"]
        return status

    @property
    def application(self) -> Manifest | None:
        return self.objects.get(("SparkApplication", api.child_name(NAME)))

    @property
    def driver(self) -> Manifest | None:
        return self.objects.get(("Pod", api.driver_pod_name(NAME)))

    @property
    def executors(self) -> list[Manifest]:
        return [pod for pod in self.pods() if pod["metadata"]["labels"].get(api.ROLE_LABEL) == "executor"]

    def pods(self) -> list[Manifest]:
        return [found for (kind, _), found in self.objects.items() if kind == "Pod"]

    def condition(self, kind: str) -> Mapping[str, Any]:
        found: Mapping[str, Any]
        for found in self.status.get("conditions", []):
            if found["type"] == kind:
                return found
        return {}

    # The operator's runtime

    def observe(self) -> Observed:
        before, unmatched = self.seen.mode((NAMESPACE, NAME)), self.seen.unmatched((NAMESPACE, NAME))
        self.seen.keep_told((NAMESPACE, NAME), self.objects.get(("Changefeed", NAME), {}))
        return Observed(
            NAMESPACE,
            NAME,
            self.now,
            copy.deepcopy(self.objects.get(("Changefeed", NAME))),
            tuple(copy.deepcopy(found) for (kind, _), found in self.objects.items() if kind != "Changefeed"),
            namespace_terminating=self.namespace_terminating,
            pod_events=tuple(self.pod_events),
            driver_log=self.driver_log,
            executor_ends=tuple(self.executor_ends),
            refused=self.refused,
            mode_before=before,
            unmatched_before=unmatched,
        )

    def one_pass(self, actions: int | None = None) -> Decision:
        """Observe, decide, do; `actions`: the operator dies after so many of them."""
        decision = decide(self.observe(), self.settings)
        for action in decision.actions[:actions]:
            if self.acts == self.dies_at:
                self.dies_at = -1
                return decision
            try:
                self.act(action)
            except Refused:
                return decision
            self.acts += 1
        return decision

    def reconcile(self, passes: int = 20) -> list[Action]:
        """Passes until one changes nothing: what they did."""
        done: list[Action] = []
        for _ in range(passes):
            writes = self.writes
            decision = self.one_pass()
            done += decision.actions
            if self.writes == writes:
                return done
        raise AssertionError(f"still acting after {passes} passes: {decision.actions}")

    def act(self, action: Action) -> None:
        if ("Changefeed", NAME) in self.objects:
            self.broken += _broken(action, self)
        match action:
            case Apply(manifest):
                self._apply(manifest)
            case Create(manifest):
                if (manifest["kind"], manifest["metadata"]["name"]) in self.objects:
                    raise Refused("AlreadyExists")
                self.writes += 1
                self._put(manifest)
            case DeleteObject(kind, name, uid, grace_s):
                found = self.objects.get((kind, name))
                if found is not None and found["metadata"]["uid"] != uid:
                    raise Refused("Conflict")
                if found is not None and self._remove(found, grace_s):
                    self.writes += 1
            case PatchStatus(status, version):
                self._patch_status(status, version)
            case SetFinalizer(finalizers, version):
                self._set_finalizers(finalizers, version)
            case KeepLog():
                pass
            case EmitEvent():
                self.events.append(action)

    # The API server

    def _put(self, manifest: Mapping[str, Any]) -> Manifest:
        self._numbers += 1
        made = copy.deepcopy(dict(manifest))
        made["metadata"] |= {
            "namespace": NAMESPACE,
            "uid": f"uid-{self._numbers}",
            "creationTimestamp": api.time_text(self.now),
        }
        self._bump(made)
        self.objects[made["kind"], made["metadata"]["name"]] = made
        return made

    def _bump(self, found: Manifest) -> None:
        self._numbers += 1
        found["metadata"]["resourceVersion"] = str(self._numbers)

    def _apply(self, manifest: Mapping[str, Any]) -> None:
        found = self.objects.get((manifest["kind"], manifest["metadata"]["name"]))
        written = [{"manager": api.FIELD_MANAGER, "operation": "Apply", "time": api.time_text(self.now)}]
        if found is None:
            self.writes += 1
            self._put(manifest)["metadata"]["managedFields"] = written
            return
        if found.get("immutable") and found["data"] != manifest["data"]:
            raise Refused("Invalid: field is immutable")
        mine = {**manifest, "metadata": {**found["metadata"], **manifest["metadata"]}}
        if {**found, **mine} != found:
            self.writes += 1
            found.update(copy.deepcopy(mine))
            found["metadata"]["managedFields"] = written
            self._bump(found)

    def _patch_status(self, status: Mapping[str, Any], version: str) -> None:
        found = self.objects.get(("Changefeed", NAME))
        if found is None or (version and found["metadata"]["resourceVersion"] != version):
            raise Refused("Conflict")
        applied = {*OWN_CONDITIONS, *(each["type"] for each in status["conditions"])}
        others = [each for each in found["status"].get("conditions", []) if each["type"] not in applied]
        kept = {name: value for name, value in found["status"].items() if name not in OWN_FIELDS}
        after = {**kept, **copy.deepcopy(dict(status)), "conditions": [*status["conditions"], *others]}
        if after != found["status"]:
            self.writes += 1
            found["status"] = after
            self._bump(found)

    def _set_finalizers(self, finalizers: tuple[str, ...], version: str) -> None:
        found = self.objects.get(("Changefeed", NAME))
        if found is None or found["metadata"]["resourceVersion"] != version:
            raise Refused("Conflict")
        self.writes += 1
        found["metadata"]["finalizers"] = list(finalizers)
        self._bump(found)
        if not finalizers and "deletionTimestamp" in found["metadata"]:
            del self.objects["Changefeed", NAME]
            self._collect()

    def _remove(self, found: Manifest, grace_s: int | None = None) -> bool:
        """Delete: a pod that runs gets its grace. Returns whether that changed anything."""
        metadata = found["metadata"]
        if found["kind"] == "Pod" and found["status"]["phase"] in ("Pending", "Running"):
            grace = found["spec"].get("terminationGracePeriodSeconds", 30) if grace_s is None else grace_s
            if grace and found["status"]["phase"] == "Running":
                late = api.time_text(self.now + grace)
                if metadata.get("deletionTimestamp", "9") <= late:
                    return False
                metadata["deletionTimestamp"] = late
                metadata["deletionGracePeriodSeconds"] = grace
                self._bump(found)
                return True
        self.objects.pop((found["kind"], metadata["name"]), None)
        self._collect()
        return True

    def _collect(self) -> None:
        """Garbage collection: what has owners, none of which exists."""
        alive = {found["metadata"]["uid"] for found in self.objects.values()}
        for found in list(self.objects.values()):
            owners = {owner["uid"] for owner in found["metadata"].get("ownerReferences", ())}
            if owners and not owners & alive and (found["kind"], found["metadata"]["name"]) in self.objects:
                self._remove(found)

    # The Spark operator, the kubelets, the driver

    def kubelet_says(self, pod: str, reason: str, message: str) -> None:
        """An event about the pod, of this very moment."""
        about = {"uid": self.objects["Pod", pod]["metadata"]["uid"]}
        times = {"lastTimestamp": api.time_text(self.now)}
        self.pod_events.append({"involvedObject": about, "reason": reason, "message": message, **times})

    def end_executor(self, name: str, code: int, reason: str) -> None:
        """Its container ends, and Spark deletes it before a pass can see it."""
        pod = self.objects.pop(("Pod", name))
        end = {"exitCode": code, "reason": reason, "finishedAt": api.time_text(self.now)}
        pod["status"] = {
            "phase": "Failed",
            "containerStatuses": [{"name": api.EXECUTOR_CONTAINER, "state": {"terminated": end}}],
        }
        self.executor_ends.append(pod)

    def app_state(self, state: str, message: str = "") -> None:
        assert self.application is not None
        last = self.driver["status"] if self.driver else None
        self.application["status"] = told(self.application, state, message, last)

    def submit(self) -> None:
        """The Spark operator takes the application up and makes a driver pod."""
        found = self.application
        assert found is not None
        self.app_state(word(found, "submitted"))
        self._pod(api.driver_pod_name(NAME), "driver", asked(found).driver, api.DRIVER_CONTAINER, found)

    def _pod(self, name: str, role: str, wanted: AskedPod, container: str, owner: Manifest) -> Manifest:
        uid, kind = owner["metadata"]["uid"], owner["kind"]
        metadata = {
            "name": name,
            "labels": {**wanted.labels, api.ROLE_LABEL: role},
            "ownerReferences": [{"uid": uid, "kind": kind, "name": owner["metadata"]["name"]}],
        }
        template = copy.deepcopy(wanted.template["spec"])
        template["containers"][0]["image"] = "changefeed-spark:1"
        status = {"phase": "Pending", "containerStatuses": [{"name": container, "state": {"waiting": {}}}]}
        return self._put({"kind": "Pod", "metadata": metadata, "spec": template, "status": status})

    def run(self) -> None:
        """The driver's container starts and makes its executors."""
        driver, found = self.driver, self.application
        assert driver is not None
        driver["status"] = _running(api.DRIVER_CONTAINER, self.now)
        if found is not None:
            self.app_state(word(found, "running"))
            wanted = asked(found)
            for number in range(wanted.executors):
                name = f"{wanted.executor_prefix}-exec-{number + 1}"
                pod = self._pod(name, "executor", wanted.executor, api.EXECUTOR_CONTAINER, driver)
                pod["status"] = _running(api.EXECUTOR_CONTAINER, self.now)

    def stray(self, role: str, attempt: str) -> None:
        """A pod of another attempt turns up."""
        found = self.application
        assert found is not None
        name = api.driver_pod_name(NAME) if role == "driver" else f"{api.child_name(NAME)}-{attempt}-exec-1"
        wanted = asked(found).driver if role == "driver" else asked(found).executor
        other = replace(wanted, labels={**wanted.labels, api.ATTEMPT_LABEL: attempt})
        self._pod(name, role, other, f"spark-kubernetes-{role}", found)["status"]["phase"] = "Running"

    def report(self, *conditions: tuple[str, str, str, str]) -> None:
        """The driver applies its part of the status: (type, status, reason, message)."""
        said = dict.fromkeys(("SinkAvailable", "UpstreamAvailable", "WithinLag"), ("True", "Fine", ""))
        said |= {kind: (status, reason, message) for kind, status, reason, message in conditions}
        mine = [{"type": kind, "status": s, "reason": r, "message": m} for kind, (s, r, m) in said.items()]
        own = [each for each in self.status.get("conditions", []) if each["type"] in OWN_CONDITIONS]
        self.status["conditions"] = [*own, *mine]
        self.status["appliedSettings"] = applied = dict(self.status.get("liveSettings", {}))
        ttl = parse_duration(applied["upstream.safepointTtl"]) if applied else TTL
        self.status["hold"] = {"ts": "7", "until": api.time_text(self.now + ttl)}
        entry = {"manager": api.DRIVER_FIELD_MANAGER, "time": api.time_text(self.now)}
        self.changefeed["metadata"]["managedFields"] = [entry]
        self._bump(self.changefeed)

    def exit_driver(
        self, code: int, said: str = "", reason: str = "Error", after: float = 300.0, newest: str = ""
    ) -> None:
        """The driver's container ends, having run for `after` seconds. `newest`: the attempt in the log."""
        driver = self.driver
        assert driver is not None
        last = {"class": said, "message": f"{said} it is.", "next": "Do this."}
        words = json.dumps(last | ({"newestAttempt": newest} if newest else {})) if said else ""
        terminated = {
            "exitCode": code,
            "reason": reason,
            "message": words,
            "startedAt": api.time_text(self.now - after),
            "finishedAt": api.time_text(self.now),
        }
        state = {"name": api.DRIVER_CONTAINER, "state": {"terminated": terminated}}
        driver["status"] = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [state]}
        self._bump(driver)
        if self.application is not None:
            text = f"driver container failed with ExitCode: {code}, Reason: {reason}"
            self.app_state(word(self.application, "failed" if code else "completed"), text if code else "")

    def job(self, name: str) -> Manifest:
        return self.objects["Job", name]

    def run_job(self, name: str, code: int = 0, **said: str) -> None:
        """Its pod runs and ends, with these last words."""
        found = self.job(name)
        template = found["spec"]["template"]
        owner = {"uid": found["metadata"]["uid"], "kind": "Job", "name": name}
        metadata = {
            "name": f"{name}-{code}",
            "labels": template["metadata"]["labels"],
            "ownerReferences": [owner],
        }
        ended = {"exitCode": code, "message": json.dumps(said), "finishedAt": api.time_text(self.now)}
        container = {"name": template["spec"]["containers"][0]["name"], "state": {"terminated": ended}}
        pod = {"kind": "Pod", "metadata": metadata, "spec": copy.deepcopy(template["spec"])}
        status = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [container]}
        self._put({**pod, "status": status})
        self.end_job(name, "Failed" if code else "Complete")

    def end_job(self, name: str, how: str, reason: str = "BackoffLimitExceeded") -> None:
        """The Job controller says that it is over; pods of one whose deadline has passed are gone."""
        found, time = self.job(name), api.time_text(self.now)
        why = {"reason": reason, "message": "Job has reached the specified backoff limit"} if how == "Failed" else {}
        found["status"] = {"conditions": [{"type": how, "status": "True", "lastTransitionTime": time, **why}]}
        self._bump(found)
        if reason == "DeadlineExceeded":
            for pod in [pod for pod in self.pods() if pod["metadata"]["ownerReferences"][0]["name"] == name]:
                del self.objects["Pod", pod["metadata"]["name"]]

    def pend_job(self, name: str, message: str) -> None:
        """Its pod finds no node."""
        template = self.job(name)["spec"]["template"]
        owner = {"uid": self.job(name)["metadata"]["uid"], "kind": "Job", "name": name}
        metadata = {"name": f"{name}-p", "labels": template["metadata"]["labels"], "ownerReferences": [owner]}
        why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        pod = {"kind": "Pod", "metadata": metadata, "spec": copy.deepcopy(template["spec"])}
        self._put({**pod, "status": {"phase": "Pending", "conditions": [why]}})

    def expire_jobs(self) -> None:
        """The TTL controller takes Jobs away that are over, and their pods go with them."""
        for name in [name for kind, name in self.objects if kind == "Job"]:
            if self.job(name).get("status", {}).get("conditions"):
                del self.objects["Job", name]
        self._collect()

    def end_deletions(self) -> None:
        """Pods that are being deleted end, within their grace; what their end brings about comes later."""
        for pod in [pod for pod in self.pods() if "deletionTimestamp" in pod["metadata"]]:
            self.objects.pop(("Pod", pod["metadata"]["name"]), None)
            self._collect()
        if self.driver is None and self.application is not None and self.application.get("status"):
            self.app_state("FAILED", "driver pod not found")

    def play(self) -> bool:
        """One step of everybody but the operator, as it goes when nothing fails; False: nothing was left to do."""
        self.note_attempts()
        found, driver = self.application, self.driver
        if any("deletionTimestamp" in pod["metadata"] for pod in self.pods()):
            self.end_deletions()
        elif found is not None and not found.get("status"):
            self.submit()
        elif driver is not None and driver["status"]["phase"] == "Pending":
            self.run()
        elif driver is not None and driver["status"]["phase"] == "Running" and self._is_unheard():
            self.report()
        elif (job := self._idle_job()) is not None:
            name = job["metadata"]["name"]
            self.run_job(name, **({"class": "Held", "ts": "7", "until": api.time_text(self.now + TTL)}))
        else:
            return False
        self.note_attempts()
        return True

    def _idle_job(self) -> Manifest | None:
        jobs = (found for (kind, _), found in self.objects.items() if kind == "Job")
        return next((found for found in jobs if "status" not in found), None)

    def _is_unheard(self) -> bool:
        if ("Changefeed", NAME) not in self.objects or self.driver is None:
            return False
        if self.condition("WithinLag").get("reason") == "NoDriver":
            return True
        entries = self.changefeed["metadata"].get("managedFields", [{"time": ""}])
        return bool(entries[0]["time"] < self.driver["metadata"]["creationTimestamp"])

    def note_attempts(self) -> None:
        """How many attempts have pods that live, at most."""
        alive = {
            (pod["metadata"]["labels"][api.ATTEMPT_LABEL])
            for pod in self.pods()
            if pod["status"]["phase"] in ("Pending", "Running") and api.ATTEMPT_LABEL in pod["metadata"]["labels"]
        }
        self.most_attempts_alive = max(self.most_attempts_alive, len(alive))

    def settle(self, rounds: int = 60) -> None:
        """The operator and everybody else, in turn, until nothing moves any more."""
        for _ in range(rounds):
            for _ in range(self.passes):
                decision = self.one_pass()
            moved = self.play()
            if not decision.actions and not moved:
                if decision.requeue_after is None or not self._is_waiting():
                    return
                self.now += decision.requeue_after
        raise AssertionError(f"not settled: {decision}")

    def _is_waiting(self) -> bool:
        """Whether time alone leads on from here: a back-off. A driver that runs waits for nothing."""
        return ("Changefeed", NAME) in self.objects and self.condition("Ready").get("status") != "True"

    def shape(self) -> Iterator[tuple[str, str]]:
        """What exists, told alike for equal ends: attempts and what the API server adds are left out."""
        for (kind, name), found in sorted(self.objects.items()):
            prefix = f"{api.child_name(NAME)}-"
            yield kind, "executor" if kind == "Pod" and name.startswith(prefix) and "exec" in name else name
            if kind == "Changefeed":
                status = found["status"]
                shown = {each["type"]: (each["status"], each["reason"]) for each in status["conditions"]}
                yield kind, f"{status['state']} {shown} {status.get('attemptPhase')} {status.get('attemptOutcome')}"


def _running(container: str, now: float) -> Manifest:
    state = {"name": container, "ready": True, "state": {"running": {"startedAt": api.time_text(now)}}}
    return {"phase": "Running", "containerStatuses": [state]}


def _broken(action: Action, world: World) -> list[str]:
    """Which rules about attempts an action breaks."""
    attempt, phase = str(world.status.get("attempt", 0)), world.status.get("attemptPhase")
    driver = world.driver
    lives = driver is not None and driver["status"]["phase"] == "Running"
    match action:
        case Create(manifest) if manifest["kind"] == "SparkApplication":
            claimed = manifest["metadata"]["labels"][api.ATTEMPT_LABEL] == attempt and phase == "Claimed"
            clean = not [pod for pod in world.pods() if api.ROLE_LABEL in pod["metadata"]["labels"]]
            return ([] if claimed else ["created before it was claimed"]) + ([] if clean else ["created beside pods"])
        case DeleteObject("SparkApplication", _, _, _) if lives:
            return ["an application deleted under its driver"]
        case DeleteObject("Pod", name, _, _) if driver is not None and lives:
            deleted = world.objects.get(("Pod", name), driver)["metadata"]
            of_driver = deleted["labels"].get(api.ATTEMPT_LABEL) == driver["metadata"]["labels"][api.ATTEMPT_LABEL]
            if of_driver and name != driver["metadata"]["name"]:
                return ["an executor deleted under its driver"]
            late = "deletionTimestamp" in driver["metadata"] or "deletionTimestamp" in world.changefeed["metadata"]
            if of_driver and not late and deleted["labels"][api.ATTEMPT_LABEL] == attempt and phase != "Ended":
                return ["a driver stopped before its end was noted"]
    return []
