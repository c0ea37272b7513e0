"""The proxy's harm is what it says, no more; whatever else it passes on is the API server's own."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cluster_api import Answer, Api, ApiRefused, Namespace
from cluster_api_proxy import ApiProxy, Request
from cluster_control_plane import ControlPlane
from cluster_processes import wait_until

_USER = "proxied"


@pytest.fixture
def proxied(cluster: ControlPlane, namespace: Namespace, proxy: ApiProxy, tmp_path: Path) -> Namespace:
    """The namespace as a ServiceAccount sees it that may do all there, through the proxy."""
    namespace.api.create(namespace.core("serviceaccounts"), {"metadata": {"name": _USER}})
    group = "rbac.authorization.k8s.io/v1"
    subject = {"kind": "ServiceAccount", "name": _USER, "namespace": namespace.name}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"}
    binding = {"metadata": {"name": _USER}, "roleRef": reference, "subjects": [subject]}
    namespace.api.create(namespace.of(group, "rolebindings"), binding)
    api = Api(cluster.service_account_kubeconfig(namespace.name, _USER, tmp_path / "proxied", proxy.server))
    mine = namespace.as_user(api)
    wait_until(lambda: api.request("GET", mine.core("configmaps")).status == 200, "the right is known")
    return mine


def _config_map(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": data}


def _create(of: Namespace, name: str) -> Answer:
    return of.api.request("POST", of.core("configmaps"), _config_map(name))


def test_requests_are_named_by_what_they_touch() -> None:
    base = "/apis/changefeed.dev/v1alpha1/namespaces/shop/changefeeds"

    assert Request("PATCH", f"{base}/a/status?fieldManager=x").name == "PATCH changefeeds/a/status"
    assert Request("POST", base, {"metadata": {"name": "b"}}).name == "POST changefeeds/b"
    assert Request("DELETE", "/api/v1/namespaces/shop").name == "DELETE namespaces/shop"
    assert Request("GET", f"{base}?watch=true").is_watch
    assert not Request("GET", base).is_write
    assert Request("POST", "/api/v1/namespaces/shop/pods").is_write
    lease = "/apis/coordination.k8s.io/v1/namespaces/shop/leases/x"
    review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    assert not Request("PUT", lease).is_write
    assert not Request("POST", review).is_write


def test_what_it_passes_on_is_the_api_servers_own(namespace: Namespace, proxied: Namespace, proxy: ApiProxy) -> None:
    large = "x" * 600_000
    proxied.api.create(proxied.core("configmaps"), _config_map("large", of=large))

    assert proxied.api.get(proxied.core("configmaps", "large")) == namespace.api.get(
        namespace.core("configmaps", "large")
    )
    assert proxied.api.request("GET", proxied.core("configmaps", "none")).status == 404
    assert proxied.api.request("DELETE", proxied.core("configmaps", "large")).status == 200
    assert [(write.name, write.status) for write in proxy.writes] == [
        ("POST configmaps/large", 201),
        ("DELETE configmaps/large", 200),
    ]


def test_one_connection_serves_many_requests(proxied: Namespace) -> None:
    connection = http.client.HTTPSConnection(*_address(proxied.api), context=proxied.api.tls)
    sockets = set()
    for number in range(3):
        connection.request("GET", proxied.core("configmaps"), headers=proxied.api.headers)
        answer = connection.getresponse()
        assert answer.status == 200, number
        assert json.loads(answer.read())["kind"] == "ConfigMapList"
        sockets.add(id(connection.sock))
    assert None not in sockets
    assert len(sockets) == 1
    connection.close()


@pytest.mark.parametrize("before_answer", [True, False], ids=["before-the-answer", "after-the-answer"])
def test_it_kills_at_the_write_that_it_was_told(
    namespace: Namespace, proxied: Namespace, proxy: ApiProxy, before_answer: bool
) -> None:
    killed: list[str] = []

    def kill() -> None:
        killed.extend(found["metadata"]["name"] for found in namespace.api.items(namespace.core("configmaps")))

    proxy.kill_at(2, kill, before_answer)

    assert _create(proxied, "first").status == 201
    assert not killed
    assert proxy.kill_is_due
    if before_answer:
        with pytest.raises(ConnectionError):
            _create(proxied, "second")
    else:
        assert _create(proxied, "second").status == 201
    wait_until(lambda: not proxy.kill_is_due and killed, "it was killed")
    assert {"first", "second"} <= set(killed), "the API server had done the write"
    assert _create(proxied, "third").status == 201
    assert "third" not in killed


@pytest.mark.parametrize("status", [409, 429, 500])
def test_it_refuses_for_a_while(namespace: Namespace, proxied: Namespace, proxy: ApiProxy, status: int) -> None:
    with proxy.refusing(status):
        with pytest.raises(ApiRefused, match="refused by the test") as refused:
            proxied.api.create(proxied.core("configmaps"), _config_map("a"))
        assert refused.value.status == status
        assert proxied.api.request("GET", proxied.core("configmaps")).status == 200

    assert namespace.api.find(namespace.core("configmaps", "a")) is None, "it did not reach the API server"
    assert _create(proxied, "a").status == 201
    assert [write.status for write in proxy.writes] == [status, 201]


def test_it_refuses_only_what_matches(proxied: Namespace, proxy: ApiProxy) -> None:
    with proxy.refusing(410, lambda request: request.is_watch):
        assert proxied.api.request("GET", proxied.core("configmaps"), watch="true").status == 410
        assert _create(proxied, "a").status == 201


def test_frozen_nothing_passes_and_then_everything(namespace: Namespace, proxied: Namespace, proxy: ApiProxy) -> None:
    with ThreadPoolExecutor() as pool:
        with proxy.frozen():
            waiting: Future[Answer] = pool.submit(_create, proxied, "a")
            wait_until(lambda: proxy.writes, "the write has come in")
            assert namespace.api.find(namespace.core("configmaps", "a")) is None
            assert not waiting.done()

        assert waiting.result(30).status == 201


def test_a_watch_streams_is_frozen_and_is_cut(namespace: Namespace, proxied: Namespace, proxy: ApiProxy) -> None:
    with _watching(namespace) as direct, _watching(proxied) as seen:
        wait_until(lambda: proxy.open_watches == 1, "the watch is open")
        _create(namespace, "a")
        wait_until(lambda: "a" in seen, "the event has come")

        with proxy.frozen():
            _create(namespace, "b")
            wait_until(lambda: "b" in direct, "the event has come, where there is no proxy")
            assert "b" not in seen
        wait_until(lambda: "b" in seen, "what was held back has come")

        assert proxy.drop_watches() == 1
        wait_until(lambda: "ended" in seen, "the watch has been cut")
        assert "ended" not in direct
    wait_until(lambda: proxy.open_watches == 0, "the proxy has let go of it")


def test_a_watch_that_its_client_leaves_is_left(proxied: Namespace, proxy: ApiProxy) -> None:
    with _watching(proxied):
        wait_until(lambda: proxy.open_watches == 1, "the watch is open")

    wait_until(lambda: proxy.open_watches == 0, "the proxy has noticed, without an event")


@contextlib.contextmanager
def _watching(of: Namespace) -> Iterator[list[str]]:
    """The names of ConfigMaps as their events come in; "ended" when the connection breaks."""
    seen: list[str] = []
    connection = http.client.HTTPSConnection(*_address(of.api), context=of.api.tls, timeout=60)
    connection.request("GET", of.core("configmaps") + "?watch=true", headers=of.api.headers)
    opened = connection.sock

    def read() -> None:
        try:
            answer = connection.getresponse()
            while line := answer.readline():
                seen.append(json.loads(line)["object"]["metadata"]["name"])
        except (OSError, http.client.HTTPException):
            pass
        seen.append("ended")

    thread = threading.Thread(target=read, name="watch")
    thread.start()
    try:
        yield seen
    finally:
        with contextlib.suppress(OSError):
            opened.shutdown(socket.SHUT_RDWR)
        thread.join(60)
        connection.close()


def _address(api: Api) -> tuple[str, int]:
    host, _, port = api.server.removeprefix("https://").partition(":")
    return host, int(port)
