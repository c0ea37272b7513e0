"""The Changefeeds of one API server, as the kubeconfig's context reaches it.

The library `kubernetes` is imported here only, and only when a verb needs a cluster: a laptop does without.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from changefeed.errors import ChangefeedError, Conflict, InvalidSpec, NeedsHuman, NotFound, Unavailable
from changefeed.spec.names import GROUP, KIND, PLURAL, VERSION

FIELD_MANAGER = "changefeed-cli"
_CONTAINER = "spark-kubernetes-driver"
_NONCES = 1 << 31
_MERGE_PATCH = "application/merge-patch+json"
_LONGEST_WATCH_S = 60
_REQUEST_S = 60

Resource = dict[str, Any]


@dataclass
class Cluster:
    """What the verbs ask of a cluster. Every method raises ChangefeedError: NotFound, Unavailable, NeedsHuman ..."""

    namespace: str
    _client: Any  # kubernetes.client.ApiClient

    @classmethod
    def connect(cls, context: str | None, namespace: str | None) -> Cluster:
        """Reads the kubeconfig; asks the API server nothing yet.

        Raises NeedsHuman without the library, InvalidSpec for a context that is not there.
        """
        config = _library().config
        file = os.environ.get("KUBECONFIG") or None  # None: the library's own default
        logging.getLogger("urllib3").setLevel(logging.ERROR)  # it tells of every try; we tell of the failure
        try:
            known, current = config.list_kube_config_contexts(file)
            client = config.new_client_from_config(file, context)
        except config.ConfigException as e:
            raise InvalidSpec("--context", f"the kubeconfig can't be used: {e}", "See kubectl config view.") from e
        chosen = next((found for found in known if found["name"] == context), current)
        return cls(namespace or chosen["context"].get("namespace") or "default", client)

    def changefeeds(self, everywhere: bool) -> list[Resource]:
        """Those of the namespace, or of all, by namespace and name."""
        with self._asking("Changefeeds"):
            if everywhere:
                found = self._custom().list_cluster_custom_object(GROUP, VERSION, PLURAL, _request_timeout=_REQUEST_S)
            else:
                found = self._custom().list_namespaced_custom_object(
                    GROUP, VERSION, self.namespace, PLURAL, _request_timeout=_REQUEST_S
                )
        return sorted(found["items"], key=lambda item: (item["metadata"]["namespace"], item["metadata"]["name"]))

    def get(self, name: str) -> Resource:
        with self._asking(self._shown(name)):
            found: Resource = self._custom().get_namespaced_custom_object(
                GROUP, VERSION, self.namespace, PLURAL, name, _request_timeout=_REQUEST_S
            )
        return found

    def set_paused(self, name: str, paused: bool) -> Resource:
        """Changes nothing but `spec.paused`. Gives the resource as it is now."""
        return self._patch_spec(self.namespace, name, {"paused": paused})

    def restart(self, resource: Resource) -> Resource:
        """Changes nothing but `spec.restartNonce`. Gives the resource as it is now."""
        metadata = resource["metadata"]
        nonce = (resource["spec"].get("restartNonce", 0) + 1) % _NONCES
        return self._patch_spec(metadata["namespace"], metadata["name"], {"restartNonce": nonce})

    def _patch_spec(self, namespace: str, name: str, spec: dict[str, Any]) -> Resource:
        with self._asking(f"Changefeed {namespace}/{name}"):
            changed: Resource = self._custom().patch_namespaced_custom_object(
                GROUP,
                VERSION,
                namespace,
                PLURAL,
                name,
                {"spec": spec},
                field_manager=FIELD_MANAGER,
                field_validation="Strict",
                _content_type=_MERGE_PATCH,
                _request_timeout=_REQUEST_S,
            )
        return changed

    def wait(self, name: str, is_done: Callable[[Resource], bool], seconds: float) -> Resource:
        """The resource, as soon as `is_done` says so.

        Raises Unavailable after `seconds`, NotFound when it is deleted; `is_done` may raise, too.
        """
        deadline = time.monotonic() + seconds
        while True:
            resource = self.get(name)
            if is_done(resource):
                return resource
            left = deadline - time.monotonic()
            if left <= 0:
                break
            for changed in self._changes(resource, min(left, _LONGEST_WATCH_S)):
                if is_done(changed):
                    return changed
        raise Unavailable(
            f"{self._shown(name)} is not there after {seconds:g} s.", f"See changefeed describe {name}; or wait longer."
        )

    def events(self, name: str) -> list[Resource]:
        """What Kubernetes' events say about it, the newest last: type, reason, message, count, last (a time)."""
        selector = f"involvedObject.kind={KIND},involvedObject.name={name}"
        with self._asking("Events"):
            found = self._core().list_namespaced_event(
                self.namespace, field_selector=selector, _request_timeout=_REQUEST_S
            )
        return sorted(map(_event, found.items), key=lambda event: str(event["last"]))

    def last_log(self, name: str) -> tuple[str, str]:
        """The last attempt that failed, and the end of its log. Raises NotFound when none has."""
        config_map = f"changefeed-{name}-last-log"
        with self._asking(f"The log of an attempt of {self._shown(name)} that failed"):
            found = self._core().read_namespaced_config_map(config_map, self.namespace, _request_timeout=_REQUEST_S)
        return found.data["attempt"], found.data["log"]

    def log(self, name: str, tail: int | None, follow: bool) -> Iterator[bytes]:
        """The driver's log, as it comes."""
        pod = f"changefeed-{name}-driver"
        options = {"container": _CONTAINER, "follow": follow, "tail_lines": tail}
        with self._asking(f"The driver's pod {self.namespace}/{pod}"):
            answer = self._core().read_namespaced_pod_log(
                pod,
                self.namespace,
                **{option: value for option, value in options.items() if value is not None},
                _preload_content=False,
            )
            yield from answer.stream()

    def _changes(self, resource: Resource, seconds: float) -> Iterator[Resource]:
        """The resource each time that it changes, for so long."""
        name, since = resource["metadata"]["name"], resource["metadata"]["resourceVersion"]
        with self._asking(self._shown(name)):
            for event in (
                _library()
                .watch.Watch()
                .stream(
                    self._custom().list_namespaced_custom_object,
                    GROUP,
                    VERSION,
                    self.namespace,
                    PLURAL,
                    field_selector=f"metadata.name={name}",
                    resource_version=since,
                    timeout_seconds=max(1, round(seconds)),
                )
            ):
                if event["type"] == "DELETED":
                    raise NotFound(f"{self._shown(name)} was deleted.")
                yield event["object"]

    def _custom(self) -> Any:
        return _library().client.CustomObjectsApi(self._client)

    def _core(self) -> Any:
        return _library().client.CoreV1Api(self._client)

    def _shown(self, name: str) -> str:
        return f"Changefeed {self.namespace}/{name}"

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except ApiException as e:
            raise _refusal(what, e.status, _message(e.body) or str(e.reason)) from e
        except HTTPError as e:
            raise Unavailable(
                f"The API server at {self._client.configuration.host} does not answer ({type(e).__name__}).",
                "See kubectl cluster-info, or choose another --context.",
            ) from e


def _library() -> Any:
    """Raises NeedsHuman when it is not there."""
    try:
        import kubernetes
        import kubernetes.watch
    except ImportError:
        raise NeedsHuman(
            "This verb talks to Kubernetes, and the library `kubernetes` is not installed.",
            "Install the extra: pip install 'changefeed-operator[operator]'.",
        ) from None
    return kubernetes


def _event(event: Any) -> Resource:
    series = event.series
    last = (series and series.last_observed_time) or event.last_timestamp or event.event_time
    return {
        "type": event.type,
        "reason": event.reason,
        "message": event.message,
        "count": (series and series.count) or event.count or 1,
        "last": last or event.metadata.creation_timestamp,
    }


def _refusal(what: str, status: int | None, message: str) -> ChangefeedError:
    if status == 404 and "page not found" in message:
        return NeedsHuman("This cluster has no Changefeeds.", "Install the CRD: crds/changefeeds.yaml, or the chart.")
    if status == 404:
        return NotFound(f"{what}: there is none.", "See changefeed get --all-namespaces.")
    if status in (401, 403):
        return NeedsHuman(f"{what}: {message}", "Ask for the right, or choose another --context.")
    if status == 409:
        return Conflict(f"{what}: {message}", "Try again.")
    if status in (400, 422):
        return InvalidSpec(what, message, "Fix it.")
    return Unavailable(f"{what}: the API server says {status}: {message}", "Try again.")


def _message(body: object) -> str:
    """Of a Kubernetes Status, or of whatever else stands in an answer."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")
    try:
        status = json.loads(text)
    except ValueError:
        return text.strip()
    return str(status.get("message", "")) if isinstance(status, dict) else text
