"""What `decide` does over time, told in testdata/*.txt (tests/datadriven.py). Commands:

spark Kubeflow|Apache     whose Spark operator the cluster has; kubeflow's until it is said
create [paused] [FIELD=VALUE ...]
edit PATH VALUE (YAML; `-` takes the field away)          delete
reconcile                 passes of the operator until one changes nothing
die N                     one pass, of which N actions are done
submit | run | gone       the Spark operator makes the driver pod | it runs, with executors | deleted pods end
report [TYPE=STATUS/REASON MESSAGE]
exit CODE [CLASS] [reason=R] [after=SECONDS] [newest=ATTEMPT]
annotate KEY VALUE        (`-` takes it away)
restore ATTEMPT           the status is as it was in an old backup, at that attempt
pending REASON [MESSAGE]  the driver pod can't start
app STATE [MESSAGE|@FILE] what the SparkApplication says; FILE: in testdata/recorded
kubelet POD REASON MESSAGE  an event about a pod
log FILE                  what the driver has logged, in testdata/recorded
oom POD                   an executor is killed for its memory, and Spark deletes it
refused [WHY]             the API server refused the last pass, or refuses nothing any more
unreachable POD           the controller of lost nodes says that the pod is not ready
lose KIND NAME [WHY]      somebody deletes it, with its grace; WHY: Kubernetes, which says so
vanish KIND NAME          it is gone at once
stray ROLE ATTEMPT        a pod of another attempt turns up
job VERB done [WORD=VALUE ...] | pending MESSAGE | fails CLASS MESSAGE | late
expire                    Jobs that are over are taken away
namespace                 it is being deleted
wait SECONDS
show                      what exists
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datadriven
import pytest
import yaml
from changefeed_operator import api
from changefeed_operator.actions import (
    Action,
    Apply,
    Create,
    DeleteObject,
    EmitEvent,
    KeepLog,
    PatchStatus,
    SetFinalizer,
)
from changefeed_operator.spark_operator.choice import KNOWN
from operator_world import World

STORIES = sorted((Path(__file__).parent / "testdata").glob("*.txt"))


def _recorded(file: str) -> str:
    return (Path(__file__).parent / "testdata" / "recorded" / file).read_text()


class Story:
    def __init__(self) -> None:
        self.world = World()

    def run(self, command: str) -> str:
        name, _, rest = command.partition(" ")
        method = getattr(self, "do_" + name)
        said: str | None = method(rest)
        return said or ""

    def do_spark(self, name: str) -> None:
        (spark,) = [each for each in KNOWN if each.name == name]
        self.world.settings = replace(self.world.settings, spark=spark)

    def do_create(self, how: str) -> None:
        words = how.split()
        fields: dict[str, Any] = {"paused": True} if "paused" in words else {}
        self.world.create(**fields, **dict(word.split("=") for word in words if "=" in word))

    def do_edit(self, rest: str) -> None:
        path, _, value = rest.partition(" ")
        self.world.edit(path, None if value == "-" else yaml.safe_load(value))

    def do_delete(self, _: str) -> None:
        self.world.delete()

    def do_reconcile(self, _: str) -> str:
        done = self.world.reconcile()
        decision = self.world.one_pass()
        wait = decision.requeue_after
        lines = [told([*done, *decision.actions]), "" if wait is None else f"again in {wait:.0f} s"]
        return "\n".join(line for line in lines if line)

    def do_die(self, actions: str) -> str:
        decision = self.world.one_pass(int(actions))
        return told(decision.actions[: int(actions)])

    def do_submit(self, _: str) -> None:
        self.world.submit()

    def do_run(self, _: str) -> None:
        self.world.run()

    def do_gone(self, _: str) -> None:
        while any("deletionTimestamp" in pod["metadata"] for pod in self.world.pods()):
            self.world.end_deletions()

    def do_report(self, rest: str) -> None:
        kind, _, said = rest.partition("=")
        if not said:
            return self.world.report()
        answer, _, message = said.partition(" ")
        status, _, reason = answer.partition("/")
        return self.world.report((kind, status, reason, message))

    def do_exit(self, rest: str) -> None:
        code, *words = rest.split()
        options = dict(word.split("=") for word in words if "=" in word)
        said = next((word for word in words if "=" not in word), "")
        self.world.exit_driver(
            int(code),
            said,
            options.get("reason", "Error"),
            after=float(options.get("after", "300")),
            newest=options.get("newest", ""),
        )

    def do_annotate(self, rest: str) -> None:
        key, _, value = rest.partition(" ")
        self.world.annotate(key, None if value == "-" else value)

    def do_restore(self, attempt: str) -> None:
        self.world.status.update(attempt=int(attempt), attemptPhase="Ended", attemptOutcome="Stopped")

    def do_pending(self, rest: str) -> None:
        reason, _, message = rest.partition(" ")
        assert self.world.driver is not None
        status = self.world.driver["status"]
        if reason == "Unschedulable":
            status["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": reason, "message": message}]
        else:
            status["containerStatuses"][0]["state"] = {"waiting": {"reason": reason, "message": message}}

    def do_app(self, rest: str) -> None:
        state, _, message = rest.partition(" ")
        self.world.app_state(state, _recorded(message[1:]) if message.startswith("@") else message)

    def do_kubelet(self, rest: str) -> None:
        self.world.kubelet_says(*rest.split(" ", 2))

    def do_log(self, file: str) -> None:
        self.world.driver_log = _recorded(file)

    def do_oom(self, pod: str) -> None:
        self.world.end_executor(pod, 137, "OOMKilled")

    def do_refused(self, why: str) -> None:
        self.world.refused = why

    def do_unreachable(self, pod: str) -> None:
        status = self.world.objects["Pod", pod]["status"]
        status["conditions"] = [*status.get("conditions", []), {"type": "Ready", "status": "False"}]

    def do_lose(self, rest: str) -> None:
        kind, name, *words = rest.split()
        found = self.world.objects[kind, name]
        if words:
            found["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", "message": " ".join(words)}]
        self.world.act(DeleteObject(kind, name, found["metadata"]["uid"]))

    def do_vanish(self, rest: str) -> None:
        kind, name = rest.split()
        self.world.act(DeleteObject(kind, name, self.world.objects[kind, name]["metadata"]["uid"], 0))

    def do_stray(self, rest: str) -> None:
        self.world.stray(*rest.split())

    def do_job(self, rest: str) -> None:
        name, how, *words = rest.split(maxsplit=2)
        name = f"changefeed-orders-{name}"
        if how == "done":
            self.world.run_job(name, **dict(word.split("=") for word in " ".join(words).split()))
        elif how == "pending":
            self.world.pend_job(name, " ".join(words))
        elif how == "fails":
            cause, _, message = " ".join(words).partition(" ")
            self.world.run_job(name, 1, **{"class": cause, "message": message})
        else:
            assert how == "late"
            self.world.end_job(name, "Failed", "DeadlineExceeded")

    def do_expire(self, _: str) -> None:
        self.world.expire_jobs()

    def do_namespace(self, _: str) -> None:
        self.world.namespace_terminating = True

    def do_wait(self, seconds: str) -> None:
        self.world.now += float(seconds)

    def do_show(self, _: str) -> str:
        return "\n".join(f"{kind} {name}" for kind, name in sorted(self.world.objects))


def told(actions: Iterable[Action]) -> str:
    return "\n".join(_line(action) for action in actions)


def _line(action: Action) -> str:
    match action:
        case Apply(manifest):
            return f"apply {manifest['kind']} {manifest['metadata']['name']}"
        case Create(manifest):
            attempt = manifest["metadata"]["labels"].get(api.ATTEMPT_LABEL)
            return f"create {manifest['kind']} {manifest['metadata']['name']}" + (f" #{attempt}" if attempt else "")
        case DeleteObject(kind, name, _, grace_s):
            return f"delete {kind} {name}" + ("" if grace_s is None else f" grace {grace_s} s")
        case KeepLog(manifest):
            return f"keep {len(manifest['data']['log'])} characters of log #{manifest['data']['attempt']}"
        case PatchStatus(status, _):
            return _status_line(status)
        case SetFinalizer(finalizers, _):
            return f"finalizers [{' '.join(finalizers)}]"
        case EmitEvent(reason, message):
            return f"event {action.type} {reason}: {message}"


def _status_line(status: Any) -> str:
    said = {each["type"]: each for each in status["conditions"] if each["reason"] != "NoDriver"}
    held = said.pop("HistoryHeld")
    kstatus = said.values()
    answers = " ".join(f"{'' if each['status'] == 'True' else '!'}{each['type']}" for each in kstatus)
    history = "" if held["status"] == "True" else f" [history: {held['reason']}]"
    reason = status["conditions"][0]["reason"]
    attempt = f"#{status['attempt']} {status['attemptPhase']} {status.get('attemptOutcome', '')}".strip()
    failures = status["restarts"].get("failures", {})
    counted = f" failures {dict(failures)}" if failures else ""
    return f"status {status['state']} {reason} [{answers}] {attempt}{counted}{history}: {status['message']}"


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_story(story: Path, rewrite: bool) -> None:
    datadriven.play(story, datadriven.each(Story().run), rewrite)
