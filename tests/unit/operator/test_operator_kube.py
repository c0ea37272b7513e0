"""The client against a server that misbehaves: each way of failing is told apart, and no write goes out unasked."""

from __future__ import annotations

import ssl
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from changefeed.errors import AlreadyExists, ChangefeedError, Conflict, NeedsHuman, NotFound, Transient
from changefeed.kube import client as kube_module
from changefeed.kube.client import Kube
from changefeed.kube.connection import Connection, Plugin, from_kubeconfig, in_pod
from changefeed.kube.kind import path_of
from changefeed_operator import api
from operator_api_server import ApiServer, refusal

FEED = {
    "apiVersion": "changefeed.dev/v1alpha1",
    "kind": "Changefeed",
    "metadata": {"namespace": "shop", "name": "orders"},
}
PATH = "/apis/changefeed.dev/v1alpha1/namespaces/shop/changefeeds/orders"
PODS = "/api/v1/namespaces/shop/pods"
MANAGER = "changefeed-operator"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    started = ApiServer()
    await started.start()
    yield started
    await started.stop()


@pytest.fixture
async def kube(server: ApiServer) -> AsyncIterator[Kube]:
    made = Kube(Connection(server.url), MANAGER)
    yield made
    await made.close()


def test_paths_of_core_and_named_groups() -> None:
    assert path_of(api.POD, "shop", "a b") == "/api/v1/namespaces/shop/pods/a%20b"
    assert path_of(api.CHANGEFEED, "shop", "orders", "status") == f"{PATH}/status"
    assert path_of(api.JOB) == "/apis/batch/v1/jobs"


async def test_get_gives_none_for_what_is_not_there(server: ApiServer, kube: Kube) -> None:
    assert await kube.get(api.CHANGEFEED, "shop", "orders") is None
    server.objects[PATH] = FEED
    assert await kube.get(api.CHANGEFEED, "shop", "orders") == FEED


async def test_list_fills_in_the_kind_that_items_lack(server: ApiServer, kube: Kube) -> None:
    server.objects[PODS] = {"items": [{"metadata": {"name": "p"}}]}
    found = await kube.list(api.POD, "shop", "changefeed.dev/name=orders", limit=5)
    assert found == [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}]
    assert server.asked[0].query == {"labelSelector": "changefeed.dev/name=orders", "limit": "5"}


async def test_whether_a_kind_is_served_is_what_discovery_says(server: ApiServer, kube: Kube) -> None:
    assert not await kube.serves(api.JOB)
    server.objects["/apis/batch/v1"] = {"resources": [{"name": "cronjobs"}]}
    assert not await kube.serves(api.JOB)
    assert await kube.serves(api.CRON_JOB)
    server.fail("GET", "/apis/batch/v1", refusal(503))
    with pytest.raises(Transient):
        await kube.serves(api.CRON_JOB)


async def test_apply_is_forced_server_side_apply_of_the_operator(server: ApiServer, kube: Kube) -> None:
    assert await kube.apply(api.CHANGEFEED, FEED, "status") == FEED
    asked = server.asked[0]
    assert (asked.method, asked.path, asked.body) == ("PATCH", f"{PATH}/status", FEED)
    assert asked.headers["Content-Type"] == "application/apply-patch+yaml"
    assert asked.query == {"fieldManager": "changefeed-operator", "force": "true", "fieldValidation": "Strict"}


async def test_delete_names_the_very_object_and_one_that_is_gone_is_no_error(server: ApiServer, kube: Kube) -> None:
    server.objects[f"{PODS}/p"] = {}
    await kube.delete(api.POD, "shop", "p", "uid-1", grace_s=0)
    await kube.delete(api.POD, "shop", "p", "uid-1")
    first, second = server.asked
    assert first.body["preconditions"] == second.body["preconditions"] == {"uid": "uid-1"}
    assert first.body["gracePeriodSeconds"] == 0
    assert "gracePeriodSeconds" not in second.body


@pytest.mark.parametrize(
    ("answer", "error", "retry_after"),
    [
        (refusal(409, "Conflict"), Conflict, None),
        (refusal(409, "AlreadyExists"), AlreadyExists, None),
        (refusal(404, "NotFound"), NotFound, None),
        (refusal(429, "TooManyRequests", Retry_After="7"), Transient, 7.0),
        (refusal(429, "TooManyRequests"), Transient, 0.0),
        (refusal(500, "InternalError"), Transient, 0.0),
        (web.Response(status=502, text="<html>bad gateway</html>"), Transient, 0.0),
        (refusal(503, "ServiceUnavailable", Retry_After="Wed, 21 Oct 2026 07:28:00 GMT"), Transient, 0.0),
        (refusal(504, "Timeout"), Transient, 0.0),
        (refusal(401, "Unauthorized"), Transient, 0.0),
        (refusal(403, "Forbidden", "pods is forbidden"), NeedsHuman, None),
        (refusal(422, "Invalid"), NeedsHuman, None),
        (refusal(400, "BadRequest"), NeedsHuman, None),
    ],
    ids=lambda value: f"{value.status}" if isinstance(value, web.Response) else "",
)
async def test_each_answer_is_the_error_that_says_what_to_do(
    server: ApiServer, kube: Kube, answer: web.Response, error: type[ChangefeedError], retry_after: float | None
) -> None:
    server.fail("PATCH", PATH, answer)
    with pytest.raises(ChangefeedError) as caught:
        await kube.apply(api.CHANGEFEED, FEED)
    assert type(caught.value) is error
    assert getattr(caught.value, "retry_after", None) == retry_after
    assert f"PATCH {PATH}: {answer.status}" in str(caught.value)


async def test_no_answer_is_transient(server: ApiServer, kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    async def dropped(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"kind": ')
        assert request.transport is not None
        request.transport.close()
        return response

    for fault in (dropped, cut, web.Response(text="{not json")):
        server.fail("PATCH", PATH, fault)
        with pytest.raises(Transient, match="no response from the API server"):
            await kube.apply(api.CHANGEFEED, FEED)
    await server.stop()
    with pytest.raises(Transient, match="no response from the API server"):
        await kube.apply(api.CHANGEFEED, FEED)


async def test_a_server_that_hangs_is_given_up(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        return web.Response()

    monkeypatch.setattr(kube_module, "REQUEST_TIMEOUT", 0.05)
    kube = Kube(Connection(server.url), MANAGER)
    server.fail("GET", PATH, hang)
    with pytest.raises(Transient):
        await kube.get(api.CHANGEFEED, "shop", "orders")
    await kube.close()


async def test_nothing_is_written_without_the_lease_but_reads_go_on(server: ApiServer) -> None:
    kube = Kube(Connection(server.url), MANAGER, may_write=lambda: False)
    for write in (
        kube.apply(api.CHANGEFEED, FEED),
        kube.create(api.CHANGEFEED, FEED),
        kube.replace(api.CHANGEFEED, FEED),
        kube.delete(api.CHANGEFEED, "shop", "orders", "uid"),
    ):
        with pytest.raises(Conflict, match="another operator leads"):
            await write
    assert server.asked == []
    assert await kube.get(api.CHANGEFEED, "shop", "orders") is None
    await kube.close()


async def test_every_answer_is_counted(server: ApiServer) -> None:
    counted: list[tuple[str, int]] = []
    kube = Kube(Connection(server.url), MANAGER, count=lambda method, status: counted.append((method, status)))
    await kube.get(api.CHANGEFEED, "shop", "orders")
    await kube.apply(api.CHANGEFEED, FEED)
    await server.stop()
    with pytest.raises(Transient):
        await kube.apply(api.CHANGEFEED, FEED)
    assert counted == [("GET", 404), ("PATCH", 200), ("PATCH", 0)]
    await kube.close()


async def test_a_rotated_token_is_read_again(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("changefeed.kube.connection.TOKEN_AGE", 0.0)
    token = tmp_path / "token"
    token.write_text("first\n")
    kube = Kube(Connection(server.url, token_file=str(token)), MANAGER)
    await kube.get(api.POD, "shop", "p")
    token.write_text("second\n")
    await kube.get(api.POD, "shop", "p")
    token.unlink()  # kubelet swaps it; the last one stays good for the moment
    await kube.get(api.POD, "shop", "p")
    sent = [asked.headers["Authorization"] for asked in server.asked]
    assert sent == ["Bearer first", "Bearer second", "Bearer second"]
    await kube.close()


def test_in_a_pod_the_service_account_is_used(tmp_path: Path) -> None:
    for name, content in (("token", "secret-token"), ("namespace", "ops\n"), ("ca.crt", "")):
        (tmp_path / name).write_text(content)
    where = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    connection = in_pod(where, tmp_path)
    assert (connection.server, connection.namespace) == ("https://[fd00::1]:6443", "ops")
    assert connection.token_file == str(tmp_path / "token")
    assert "secret-token" not in repr(connection)


def test_out_of_a_pod_somebody_must_name_a_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(NeedsHuman, match="--kubeconfig"):
        in_pod({}, tmp_path)


def _kubeconfig(path: Path, user: dict[str, object], cluster: dict[str, object] | None = None) -> str:
    content = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "shop"}}],
        "clusters": [{"name": "c", "cluster": cluster or {"server": "http://127.0.0.1:1/"}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(content))
    return str(path)


def test_a_kubeconfig_is_read_with_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "me.crt").write_text("certificate")
    user: dict[str, object] = {"client-certificate": "me.crt", "client-key-data": "a2V5", "tokenFile": "token"}
    connection = from_kubeconfig(_kubeconfig(tmp_path / "config", user))
    assert connection.server == "http://127.0.0.1:1"
    assert (connection.certificate, connection.key, connection.namespace) == (b"certificate", b"key", "shop")
    assert connection.token_file == str(tmp_path / "token")


def test_several_kubeconfigs_are_one_and_the_first_wins(tmp_path: Path) -> None:
    first = _kubeconfig(tmp_path / "first", {"token": "one"})
    second = _kubeconfig(tmp_path / "second", {"token": "two"})
    third = tmp_path / "third"
    third.write_text(yaml.safe_dump({"current-context": "gone"}))
    assert from_kubeconfig(f"{first}:{second}:{third}").token == "one"


@pytest.mark.parametrize("user", [{"tokem": "secret"}, {"exec": {"args": ["secret"]}}, "secret"])
def test_a_wrong_kubeconfig_is_named_without_what_it_says(tmp_path: Path, user: Any) -> None:
    config = _kubeconfig(tmp_path / "config", user, {"server": "http://127.0.0.1:1"})
    content = yaml.safe_load(Path(config).read_text())
    del content["clusters"][0]["name"]
    content["clusters"][0]["token"] = "secret"
    (tmp_path / "nameless").write_text(yaml.safe_dump(content))
    for paths in (f"{config}:{tmp_path / 'nameless'}", str(tmp_path / "nameless")):
        with pytest.raises(NeedsHuman) as caught:
            from_kubeconfig(paths)
        assert str(tmp_path) in str(caught.value)
        shown = "".join(traceback.format_exception(caught.value))
        assert "secret" not in shown


def test_a_kubeconfig_that_cannot_serve_says_so(tmp_path: Path) -> None:
    with pytest.raises(NeedsHuman, match="can't be read"):
        from_kubeconfig(str(tmp_path / "missing"))
    with pytest.raises(NeedsHuman, match="auth-provider"):
        from_kubeconfig(_kubeconfig(tmp_path / "config", {"auth-provider": {"name": "gcp"}}))
    (tmp_path / "list").write_text("[]")
    with pytest.raises(NeedsHuman, match="not a kubeconfig"):
        from_kubeconfig(str(tmp_path / "list"))
    (tmp_path / "empty").write_text("current-context: gone")
    with pytest.raises(NeedsHuman, match="gone"):
        from_kubeconfig(str(tmp_path / "empty"))


def test_a_context_is_chosen_by_its_name(tmp_path: Path) -> None:
    config = yaml.safe_load(Path(_kubeconfig(tmp_path / "config", {})).read_text())
    config["contexts"].append({"name": "there", "context": {"cluster": "c", "namespace": "bank"}})
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    assert from_kubeconfig(str(tmp_path / "config"), "there").namespace == "bank"
    with pytest.raises(NeedsHuman, match="'nowhere'"):
        from_kubeconfig(str(tmp_path / "config"), "nowhere")


_EXEC = "client.authentication.k8s.io/v1"
_LOGIN = """#!/bin/sh
echo "$REALM" >> "$0.asked"
echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status":'
echo '{"token": "'"$1-$(wc -l < "$0.asked")"'", "expirationTimestamp": "%s"}}'
"""


@pytest.mark.parametrize(
    ("until", "tokens"),
    [("2000-01-01T00:00:00Z", ["me-1", "me-2"]), ("2999-01-01T00:00:00Z", ["me-1", "me-1"])],
)
async def test_a_plugin_logs_in_again_when_its_token_has_run_out(
    server: ApiServer, tmp_path: Path, until: str, tokens: list[str]
) -> None:
    login = tmp_path / "login"
    login.write_text(_LOGIN % until)
    login.chmod(0o755)
    user: dict[str, object] = {
        "exec": {
            "apiVersion": _EXEC,
            "command": "./login",
            "args": ["me"],
            "env": [{"name": "REALM", "value": "r"}],
        }
    }
    config = _kubeconfig(tmp_path / "config", user, {"server": server.url})
    async with Kube(from_kubeconfig(config), MANAGER) as kube:
        for _ in tokens:
            await kube.get(api.POD, "shop", "p")
    assert [asked.headers["Authorization"] for asked in server.asked] == [f"Bearer {token}" for token in tokens]
    assert (tmp_path / "login.asked").read_text().split() == ["r"] * len(set(tokens))


def test_a_plugin_that_gives_nothing_is_named_and_its_words_are_not(tmp_path: Path) -> None:
    for command in (["/nowhere/login"], ["sh", "-c", "echo secret; exit 1"], ["echo", "secret"]):
        with pytest.raises(NeedsHuman, match=f"login plugin {command[0]} returned no credential") as caught:
            Plugin(
                {"apiVersion": "client.authentication.k8s.io/v1", "command": command[0], "args": command[1:]}
            ).credential()
        assert "secret" not in "".join(traceback.format_exception(caught.value))


async def test_a_log_comes_piece_by_piece_and_a_refusal_of_it_is_told(server: ApiServer, kube: Kube) -> None:
    server.fail("GET", f"{PODS}/p/log", web.Response(text="one\ntwo\n"), refusal(404, "NotFound"))
    assert b"".join([part async for part in kube.stream_log("shop", "p", "main", 2, True)]) == b"one\ntwo\n"
    assert server.asked[0].query == {"container": "main", "tailLines": "2", "follow": "true"}
    with pytest.raises(NotFound):
        await anext(kube.stream_log("shop", "p", "main"))


async def test_a_server_is_checked_by_its_ca_unless_told_not_to(tmp_path: Path) -> None:
    with pytest.raises(NeedsHuman, match="certificates"):
        Connection("https://127.0.0.1:1", ca_data="no PEM").tls()
    checked = Connection("https://127.0.0.1:1").tls()
    assert isinstance(checked, ssl.SSLContext)
    assert checked.verify_mode is ssl.CERT_REQUIRED
    unchecked = Connection("https://127.0.0.1:1", verify=False).tls()
    assert isinstance(unchecked, ssl.SSLContext)
    assert unchecked.verify_mode is ssl.CERT_NONE
