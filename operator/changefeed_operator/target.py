"""Which spec a changefeed should run: the one it has, when that can run, else the last one that could.

The last valid one stands in the changefeed's ConfigMap: the resource with all defaults, as drivers read it. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from changefeed.spec.model import Changefeed
from changefeed.spec.parse import effective, from_effective
from changefeed.spec.problem import InvalidResource
from changefeed.spec.quantity import format_size

from changefeed_operator import api
from changefeed_operator.api import Json
from changefeed_operator.observe import Observed
from changefeed_operator.settings import Settings
from changefeed_operator.template import template_problem

CONFIG_KEY = "changefeed.yaml"
#: Spark's driver and executors refuse a heap below 450 MiB, and Python needs room beside it.
LEAST_MEMORY = 768 << 20

#: What YAML takes for a line break, or not at all, where JSON allows it. (JSON's own escapes are no help: YAML reads a
#: pair of surrogates as two characters.)
_NOT_PLAIN = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


@dataclass(frozen=True)
class Target:
    """A spec that can run: `resource` has all defaults, the operator's included, and is never paused."""

    resource: Changefeed
    hash: str

    @cached_property
    def config(self) -> dict[str, Any]:
        return effective(self.resource)

    @cached_property
    def config_text(self) -> str:
        """The file that drivers read: JSON, which is YAML, and is read and written on every pass."""
        return _NOT_PLAIN.sub(_escaped, json.dumps(self.config, indent=2, ensure_ascii=False))

    @property
    def state_uri(self) -> str:
        return self.resource.spec.state.uri or ""

    @property
    def sink(self) -> str:
        """The kind of sink."""
        return next(iter(self.config["spec"]["sink"]), "")

    @property
    def drain_s(self) -> int:
        """Seconds that a driver is given to end: its drain, and some to leave."""
        return int(self.resource.spec.drain_timeout) + 30

    @property
    def secrets(self) -> tuple[str, ...]:
        """Names of the Secrets that the spec refers to, sorted."""
        spec = {name: value for name, value in self.config["spec"].items() if name != "spark"}
        return tuple(sorted(set(_secret_names(spec))))


@dataclass(frozen=True)
class Wanted:
    """`target`: what should run, None when nothing valid is known. `problem`: why the present spec can't, or ""."""

    target: Target | None
    paused: bool
    problem: str = ""


def wanted(observed: Observed, settings: Settings) -> Wanted:
    """What the live Changefeed asks for, as far as it can be given."""
    live = observed.changefeed or {}
    paused = api.mapping_at(live, "spec").get("paused") is True
    fixed_state = api.text_at(live, "status", "stateUri")
    try:
        resource = from_effective(
            {
                "apiVersion": api.API_VERSION,
                "kind": "Changefeed",
                "metadata": {"name": observed.name, "namespace": observed.namespace, "uid": api.uid_of(live)},
                "spec": live.get("spec"),
            }
        )
    except InvalidResource as e:
        return Wanted(last_valid(observed), paused, "; ".join(problem.line for problem in e.problems))
    target = _target(resource, resource.spec.state.uri or fixed_state or settings.state_uri)
    if target.config_text == _config_text(observed):
        return Wanted(target, paused)
    last = last_valid(observed)
    problem = _cannot_run(target) or _changed(target, last, fixed_state)
    return Wanted(last, paused, problem) if problem else Wanted(target, paused)


def last_valid(observed: Observed) -> Target | None:
    """What the ConfigMap of this very Changefeed holds."""
    try:
        document = json.loads(_config_text(observed))
        resource = from_effective(document if isinstance(document, dict) else {})
    except (ValueError, RecursionError, InvalidResource):
        return None
    known = observed.changefeed or observed.deleted
    is_ours = known is None or resource.metadata.uid == api.uid_of(known)
    return _target(resource, resource.spec.state.uri or "") if is_ours else None


def _config_text(observed: Observed) -> str:
    config_map = observed.child(api.CONFIG_MAP, api.child_name(observed.name)) or {}
    return api.text_at(config_map, "data", CONFIG_KEY)


def as_target(changefeed: Json, state_uri: str) -> Target | None:
    """What a Changefeed that is gone ran; None when its spec can't be read."""
    metadata = {name: api.text_at(changefeed, "metadata", name) for name in ("name", "namespace", "uid")}
    document = {"apiVersion": api.API_VERSION, "kind": "Changefeed", "metadata": metadata}
    try:
        resource = from_effective({**document, "spec": changefeed.get("spec")})
    except InvalidResource:
        return None
    return _target(resource, state_uri or resource.spec.state.uri or "")


def _target(resource: Changefeed, state_uri: str) -> Target:
    spec = resource.spec
    state = spec.state.model_copy(update={"uri": state_uri or None})
    full = resource.model_copy(update={"spec": spec.model_copy(update={"state": state, "paused": False})})
    return Target(full, spec_hash(full))


def spec_hash(resource: Changefeed) -> str:
    """Tells specs apart that need different drivers.

    Defaults are left out, so that a new version of the operator with more fields restarts nothing.
    """
    return api.digest(resource.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True))


def _cannot_run(target: Target) -> str:
    spec = target.resource.spec
    if not target.state_uri:
        return "spec.state.uri: missing, and the operator has no default; allowed: such as s3://bucket/folder"
    for role, pod in (("driver", spec.spark.driver), ("executor", spec.spark.executor)):
        if pod.memory < LEAST_MEMORY:
            least = format_size(LEAST_MEMORY)
            return f"spec.spark.{role}.memory: {format_size(pod.memory)}; allowed in a cluster: {least} or more"
        if problem := template_problem(pod.template):
            return f"spec.spark.{role}.template{problem}"
    return ""


def _changed(target: Target, last: Target | None, fixed_state: str) -> str:
    """What must not change and did; the API server refuses it already, when it can see it."""
    if fixed_state and target.state_uri != fixed_state:
        return _immutable("spec.state.uri", target.state_uri, fixed_state)
    if last is None:
        return ""
    for field, new, old in zip(_FIXED, _fixed(target), _fixed(last), strict=True):
        if old != new and not (field == "spec.upstream.clusterId" and old is None):
            return _immutable(field.replace("*", target.sink), new, old)
    return ""


_FIXED = ("spec.state.uri", "spec.startTs", "spec.upstream.clusterId", "spec.sink", "spec.sink.*.uri")


def _fixed(target: Target) -> tuple[object, ...]:
    spec = target.resource.spec
    sink = target.config["spec"]["sink"].get(target.sink)
    uri = sink.get("uri") if isinstance(sink, Mapping) else None
    return (target.state_uri, spec.start_ts, spec.upstream.cluster_id, target.sink, uri)


def _immutable(field: str, new: object, old: object) -> str:
    was, now = ("unset" if value is None else value for value in (old, new))
    return f"{field}: {now}; allowed: {was}, as it was created; for another one create another Changefeed"


def _secret_names(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, member in value.items():
            if name == "secretRef":
                yield api.text_at(member, "name")
            else:
                yield from _secret_names(member)
