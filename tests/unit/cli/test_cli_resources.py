"""The verbs about a cluster, against an API server that is a few lines of this file but speaks HTTP."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from changefeed.cli.cluster import kube
from changefeed.cli.main import main

CHANGEFEEDS = "/apis/changefeed.dev/v1alpha1/namespaces/shop/changefeeds"


def _changefeed(name: str, paused: bool = False, **status: Any) -> dict[str, Any]:
    reason = "Paused" if paused else "Running"
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": reason,
        "message": "It runs.",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    return {
        "apiVersion": "changefeed.dev/v1alpha1",
        "kind": "Changefeed",
        "metadata": {
            "name": name,
            "namespace": "shop",
            "generation": 1,
            "resourceVersion": "5",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "managedFields": [{}],
        },
        "spec": {
            "paused": paused,
            "upstream": {"pdAddresses": ["http://pd:2379"]},
            "filter": {"rules": ["shop.*"]},
            "sink": {"storage": {"uri": "s3://lake/orders", "protocol": "csv"}},
        },
        "status": {"observedGeneration": 1, "state": "Normal", "sink": "storage", "conditions": [ready], **status},
    }


@dataclass
class ApiServer:
    """Holds changefeeds; `asked`: every request. `steps`: what a resource becomes, one step each time it is read; None:
    it is deleted."""

    changefeeds: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: list[tuple[str, str, dict[str, list[str]], str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any] | None] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    logs: dict[str, bytes] = field(default_factory=dict)
    refuse: tuple[int, str] | None = None

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, bytes]:
        if self.refuse:
            return self.refuse[0], json.dumps({"message": self.refuse[1]}).encode()
        if path in (CHANGEFEEDS, "/apis/changefeed.dev/v1alpha1/changefeeds"):
            return 200, json.dumps({"items": list(self.changefeeds.values())}).encode()
        if path == "/api/v1/namespaces/shop/events":
            return 200, json.dumps({"kind": "EventList", "items": self.events}).encode()
        if path.startswith("/api/v1/namespaces/shop/pods/"):
            pod = path.split("/")[6]
            return (200, self.logs[pod]) if pod in self.logs else (404, b'{"message": "pods not found"}')
        name = path.removeprefix(f"{CHANGEFEEDS}/")
        if self.steps and method == "GET":
            step = self.steps.pop(0)
            self.changefeeds = {**self.changefeeds, name: step} if step else {}
        found = self.changefeeds.get(name)
        if found is None:
            return 404, b'{"message": "changefeeds.changefeed.dev not found"}'
        if method == "PATCH":
            found["spec"] |= body["spec"]
            found["metadata"]["generation"] += 1
        return 200, json.dumps(found).encode()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """Runs, and is what the current context of the kubeconfig names."""
    monkeypatch.setattr(kube, "POLL_S", 0.01)
    fake = ApiServer()

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            url = urlsplit(self.path)
            query = parse_qs(url.query)
            fake.asked.append((self.command, url.path, query, self.headers.get("Content-Type", ""), body))
            status, content = fake.answer(self.command, url.path, query, body)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PATCH = _do

        def log_message(self, *_: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
    thread.start()
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(_kubeconfig(listening.server_port))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    yield fake
    listening.shutdown()
    listening.server_close()
    thread.join()


def _kubeconfig(port: int) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [
                {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "shop"}},
                {"name": "bare", "context": {"cluster": "c", "user": "u"}},
            ],
            "current-context": "here",
        }
    )


def test_get_shows_a_line_for_each(server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.changefeeds = {
        "orders": _changefeed("orders", checkpointTime="2026-01-01T00:00:00Z"),
        "audit": _changefeed("audit", paused=True),
    }
    del server.changefeeds["audit"]["status"]
    assert main(["get"]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "STATE", "READY", "CHECKPOINT", "SINK", "AGE", "REASON"]
    assert first.split()[0] == "audit"
    assert second.split()[:3] == ["orders", "Normal", "True"]
    assert second.split()[4] == "storage"
    assert second.split()[3].endswith("d")
    assert main(["get", "-A"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["shop", "audit"]


def test_get_as_json_is_for_scripts(server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.changefeeds = {"orders": _changefeed("orders", checkpointTs="449", lagSeconds=2)}
    assert main(["get", "orders", "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["changefeeds"]
    assert (shown["name"], shown["state"], shown["checkpointTs"], shown["lagSeconds"]) == ("orders", "Normal", "449", 2)
    assert (shown["reason"], shown["rows"]) == ("Running", None)


@pytest.mark.parametrize(("state", "behind"), [("Normal", ", 2s behind"), ("Stopped", "")])
def test_a_lag_is_told_of_who_runs(
    server: ApiServer, capsys: pytest.CaptureFixture[str], state: str, behind: str
) -> None:
    server.changefeeds = {"orders": _changefeed("orders", state=state, checkpointTs="449", lagSeconds=2)}
    assert main(["describe", "orders"]) == 0
    assert f"  Checkpoint  449 (? ago{behind})\n" in capsys.readouterr().out


def test_get_says_that_there_are_none(server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["get"]) == 0
    assert capsys.readouterr().out == "No Changefeeds in namespace shop.\n"


def test_describe_tells_all(server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    error = {
        "class": "SinkUnavailable",
        "message": "s3://lake does not answer.",
        "nextRetryTime": "2026-01-01T00:01:00Z",
    }
    hold = {"ts": "449", "until": "2026-01-02T00:00:00Z", "lastError": {"message": "PD does not answer."}}
    server.changefeeds = {
        "orders": _changefeed(
            "orders",
            message="It runs.",
            checkpointTs="449",
            attempt=4,
            epoch=7,
            image="changefeed-spark:0.1",
            version="0.1.0",
            lastError=error,
            clusterId="73",
            hold=hold,
            lastDdl={"ts": "448", "statement": "DROP TABLE `a`"},
        )
    }
    server.events = [
        {
            "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
            "involvedObject": {},
            "type": "Warning",
            "reason": "SinkUnavailable",
            "message": "No answer.",
            "count": 3,
            "lastTimestamp": "2026-01-01T00:00:00Z",
        }
    ]
    assert main(["describe", "orders"]) == 0
    out = capsys.readouterr().out
    for words in (
        "shop/orders: Normal",
        "Upstream    http://pd:2379, cluster 73",
        "Sink        storage s3://lake/orders (csv)",
        "Checkpoint  449",
        "Last DDL    448 (? ago) DROP TABLE `a`",
        "History     after 449, until 2026-01-02T00:00:00Z; PD does not answer.",
        "Driver      attempt 4, epoch 7",
        "Image       changefeed-spark:0.1, version 0.1.0",
        "s3://lake does not answer.",
        "The next attempt starts at 2026-01-01T00:01:00Z.",
        "x3",
    ):
        assert words in out, words
    assert main(["describe", "orders", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert "managedFields" not in answer["changefeed"]["metadata"]
    assert answer["events"][0]["count"] == 3


@pytest.mark.parametrize(
    ("bound", "said"),
    [
        ({"mostBytes": 0, "goneAt": ""}, "12.5 MiB of WAL (reserved)\n"),
        (
            {"mostBytes": 1 << 30, "goneAt": "2026-01-02T00:00:00Z"},
            "12.5 MiB of WAL of 1,024 MiB at most (reserved), lost at 2026-01-02T00:00:00Z as things go\n",
        ),
    ],
)
def test_describe_tells_what_a_slot_keeps(
    server: ApiServer, capsys: pytest.CaptureFixture[str], bound: dict[str, object], said: str
) -> None:
    hold = {"ts": "449", "until": "2026-01-02T00:00:00Z", "keptBytes": 25 << 19, "walStatus": "reserved", **bound}
    server.changefeeds = {"orders": _changefeed("orders", hold=hold)}
    assert main(["describe", "orders"]) == 0
    assert f"History     after 449, in a slot that keeps {said}" in capsys.readouterr().out


def test_pause_patches_one_field_in_its_own_name(server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.changefeeds = {"orders": _changefeed("orders")}
    assert main(["pause", "orders"]) == 0
    assert capsys.readouterr().out == "Changefeed shop/orders is pausing.\n"
    method, path, query, content_type, body = server.asked[-1]
    assert (method, path, body) == ("PATCH", f"{CHANGEFEEDS}/orders", {"spec": {"paused": True}})
    assert content_type == "application/merge-patch+json"
    assert (query["fieldManager"], query["fieldValidation"]) == (["changefeed-cli"], ["Strict"])
    assert main(["resume", "orders"]) == 0
    assert server.asked[-1][4] == {"spec": {"paused": False}}


def test_pause_waits_for_the_condition_of_its_own_generation(
    server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.changefeeds = {"orders": _changefeed("orders", checkpointTs="449")}
    # The old generation's answer, one that still runs, then the one that counts.
    stale, running, done = (_changefeed("orders", paused=paused) for paused in (True, False, True))
    for resource, observed in ((stale, 1), (running, 2), (done, 2)):
        resource["metadata"] |= {"generation": 2, "resourceVersion": "6"}
        resource["status"] |= {"observedGeneration": observed, "checkpointTs": str(observed)}
    server.steps = [stale, running, done]
    assert main(["pause", "orders", "--wait", "--timeout", "5s"]) == 0
    assert capsys.readouterr().out == "Changefeed shop/orders is paused at checkpoint 2.\n"
    assert server.steps == []


def test_waiting_ends_at_the_deadline(server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.changefeeds = {"orders": _changefeed("orders")}
    assert main(["pause", "orders", "--wait", "--timeout", "0ms"]) == 69
    assert "is not there after 0 s" in capsys.readouterr().err


def test_waiting_ends_when_it_is_deleted(server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.changefeeds = {"orders": _changefeed("orders")}
    server.steps = [_changefeed("orders"), None]
    assert main(["pause", "orders", "--wait", "--timeout", "5s"]) == 1
    assert "Changefeed shop/orders: there is none." in capsys.readouterr().err


def test_resume_does_not_wait_for_what_needs_a_person(server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    stalled = _changefeed("orders", paused=True, observedGeneration=2)
    stalled["status"]["conditions"] = [
        {"type": "Stalled", "status": "True", "reason": "InvalidSpec", "message": "Mend spec.filter."}
    ]
    server.changefeeds = {"orders": stalled}
    assert main(["resume", "orders", "--wait", "--timeout", "5s"]) == 1
    assert "Mend spec.filter." in capsys.readouterr().err


def test_logs_are_the_drivers(server: ApiServer, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    server.logs = {"changefeed-orders-driver": b"one\ntwo\n"}
    assert main(["logs", "orders", "--tail", "2", "-f"]) == 0
    assert capfdbinary.readouterr().out == b"one\ntwo\n"
    query = server.asked[-1][2]
    assert (query["container"], query["tailLines"], query["follow"]) == (["spark-kubernetes-driver"], ["2"], ["true"])
    assert main(["logs", "audit"]) == 1


@pytest.mark.parametrize(
    ("refuse", "code", "said"),
    [
        (None, 1, "Changefeed shop/nothing: there is none."),
        ((404, "404 page not found"), 1, "This cluster has no Changefeeds."),
        ((403, "user has no right"), 1, "user has no right"),
        ((422, "spec.paused: it is wrong"), 2, "it is wrong"),
        ((409, "changed meanwhile"), 1, "changed meanwhile"),
    ],
)
def test_a_refusal_says_what_to_do(
    server: ApiServer, capsys: pytest.CaptureFixture[str], refuse: tuple[int, str] | None, code: int, said: str
) -> None:
    server.refuse = refuse
    assert main(["pause", "nothing"]) == code
    err = capsys.readouterr().err
    assert said in err
    assert "next: " in err


def test_the_namespace_is_the_arguments_or_the_contexts(server: ApiServer) -> None:
    assert main(["get", "-n", "other", "x"]) == 1
    assert "/namespaces/other/" in server.asked[-1][1]
    assert main(["get", "--context", "bare", "x"]) == 1
    assert "/namespaces/default/" in server.asked[-1][1]


def test_a_context_that_is_not_there(server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["get", "--context", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_restart_counts_one_up(server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.changefeeds = {name: _changefeed(name) for name in ("orders", "items")}
    server.changefeeds["items"]["spec"]["restartNonce"] = (1 << 31) - 1
    assert main(["restart", "orders", "-n", "shop"]) == 0
    assert capsys.readouterr().out == "Changefeed shop/orders restarts.\n"
    assert server.changefeeds["orders"]["spec"]["restartNonce"] == 1
    assert main(["restart", "--all", "--all-namespaces", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)["changefeeds"]] == ["items", "orders"]
    assert [server.changefeeds[name]["spec"]["restartNonce"] for name in ("orders", "items")] == [2, 0]
    patches = [body for method, _, _, _, body in server.asked if method == "PATCH"]
    assert patches[0] == {"spec": {"restartNonce": 1}}


@pytest.mark.parametrize("arguments", [[], ["orders", "--all"], ["orders", "-A"]])
def test_restart_wants_one_or_all(arguments: list[str], server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["restart", *arguments]) == 2
    assert "allowed: NAME, or --all" in capsys.readouterr().err
    assert not server.asked


def test_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(_kubeconfig(1))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    assert main(["get", "--json"]) == 69
    assert json.loads(capsys.readouterr().out)["error"]["class"] == "Unavailable"


def test_without_the_library_the_verbs_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "changefeed.kube.connection", raising=False)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    assert main(["get"]) == 1
    assert "pip install 'changefeed-operator[operator]'" in capsys.readouterr().err


def test_a_timeout_in_words(server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pause", "orders", "--wait", "--timeout", "soon"]) == 2
    assert "'soon'; allowed: a duration" in capsys.readouterr().err
    assert server.asked == [], "nothing is changed before all arguments are right"
