"""Every state of some objects, as a watch tells it: what was true for a moment only can be asked for later."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

from cluster_api import Api

Object = dict[str, Any]
_OK, _GONE = 200, 410  # of HTTP
_PAUSE_S = 0.2


class History:
    """`with History(api, path) as history`: of all objects of the list at `path`, those that are there included."""

    def __init__(self, api: Api, path: str) -> None:
        self._api = api
        self._path = path
        self._states: dict[tuple[str, str], list[Object]] = {}
        self._latest: dict[tuple[str, str], Object] = {}
        self._from: dict[str, str] = {}
        self._ended = threading.Event()
        self._news = threading.Condition()  # its lock can be taken again by a `condition` that asks us
        self._thread = threading.Thread(target=self._read, name=f"history of {path}", daemon=True)

    def __enter__(self) -> Self:
        self._connect()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._connection.close()

    def latest(self, namespace: str, name: str) -> Object | None:
        """None: it is gone, or never was."""
        with self._news:
            return self._latest.get((namespace, name))

    def all_latest(self, namespace: str) -> dict[str, Object]:
        """By name."""
        with self._news:
            return {name: state for (place, name), state in self._latest.items() if place == namespace}

    def of(self, namespace: str, name: str) -> list[Object]:
        """The states of one object, the oldest first."""
        with self._news:
            return list(self._states.get((namespace, name), ()))

    def wait_for(self, condition: Callable[[], Any], what: str, deadline_s: float) -> Any:
        """The first truthy value of `condition`, asked again with all news; TimeoutError at the deadline."""
        with self._news:
            value = self._news.wait_for(condition, deadline_s)
        if not value:
            raise TimeoutError(f"not within {deadline_s:g} s: {what}")
        return value

    def _connect(self) -> None:
        # Without a timeout: nothing may happen for long.
        self._connection = http.client.HTTPSConnection(urlsplit(self._api.server).netloc, context=self._api.tls)
        query = urlencode({"watch": "true", "allowWatchBookmarks": "true", **self._from})
        self._connection.request("GET", f"{self._path}?{query}", headers=self._api.headers)
        self._socket = self._connection.sock

    def _read(self) -> None:
        """The API server ends a watch when it likes, as when a CRD changes: it goes on where it was."""
        while not self._ended.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):
                answer = self._connection.getresponse()
                if answer.status == _GONE:
                    self._begin_anew()
                elif answer.status != _OK:
                    self._ended.wait(_PAUSE_S)  # a CRD that changed is not served for a moment
                else:
                    # After its shutdown a TLS socket gives bytes that nobody has decrypted.
                    while (line := answer.readline()) and not self._ended.is_set():
                        self._note(json.loads(line))
            self._connection.close()
            if not self._ended.is_set():
                self._connect()

    def _begin_anew(self) -> None:
        """As the API server does for a CRD that changed: from what is there now."""
        self._from = {}
        with self._news:
            self._latest.clear()

    def _note(self, event: dict[str, Any]) -> None:
        state = event["object"]
        if event["type"] == "ERROR" and state["code"] == _GONE:
            self._begin_anew()
            return
        if event["type"] == "ERROR":
            raise RuntimeError(f"the watch of {self._path} has lost events: {state}")
        self._from = {"resourceVersion": state["metadata"]["resourceVersion"]}
        with self._news:
            if event["type"] == "DELETED":
                self._latest.pop(_key(state), None)
            elif event["type"] != "BOOKMARK":
                self._latest[_key(state)] = state
                self._states.setdefault(_key(state), []).append(state)
            self._news.notify_all()


def _key(state: Object) -> tuple[str, str]:
    return state["metadata"]["namespace"], state["metadata"]["name"]
