"""Which spec a changefeed should run: its current one if valid, else the last valid one.

The last valid spec is in a ConfigMap, as drivers read it. It is trusted only if its digest matches the one in status:
permission to edit ConfigMaps must not decide what runs. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from changefeed.spec.field.kind import LIVE, SINCE
from changefeed.spec.field.quantity import format_size
from changefeed.spec.live import at, marked, settings_of, without
from changefeed.spec.model import Changefeed
from changefeed.spec.parse import digest, effective, from_effective, given
from changefeed.spec.problem import InvalidResource

from changefeed_operator import api
from changefeed_operator.observe import Observed
from changefeed_operator.privileges import privilege_problem
from changefeed_operator.settings import Defaults, Settings
from changefeed_operator.template import template_problem

CONFIG_KEY = "changefeed.yaml"
#: Spark's driver and executors refuse a heap below 450 MiB, and Python needs room besides.
LEAST_MEMORY = 768 << 20

#: Characters that JSON allows, but that YAML rejects or takes for a line break. (JSON's own escapes don't help: YAML
#: reads a surrogate pair as two characters.)
_NOT_PLAIN = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


#: What earlier versions left out of a spec's hash, oldest first.
_LEFT_OUT_BEFORE = (frozenset[str](), frozenset({"lagThreshold"}))


@dataclass(frozen=True)
class Target:
    """A valid spec: `resource` has all defaults applied, including the operator's.

    Fields that make no difference to a driver (`paused`, `deletionPolicy`) have their defaults. `defaulted`: fields set
    by the operator's settings, as "executor.memory".
    """

    resource: Changefeed
    hash: str
    defaulted: tuple[str, ...] = ()

    @cached_property
    def config(self) -> dict[str, Any]:
        return effective(self.resource)

    @cached_property
    def config_text(self) -> str:
        """The file that drivers read: JSON, which is YAML."""
        document = given(self.resource)
        if self.defaulted:
            document["metadata"]["annotations"] = {api.DEFAULTED: ",".join(self.defaulted)}
        return _NOT_PLAIN.sub(_escaped, json.dumps(document, indent=2, ensure_ascii=False))

    @cached_property
    def config_digest(self) -> str:
        """Part of the ConfigMap's name; drivers get it too, and refuse a file that does not match."""
        return digest(self.config_text.encode())

    @property
    def config_map_name(self) -> str:
        return api.config_map_name(self.resource.metadata.name, self.config_digest)

    @property
    def settings(self) -> dict[str, str]:
        """The settings that a running driver applies live."""
        return settings_of(self.resource)

    @property
    def state_uri(self) -> str:
        return self.resource.spec.state.uri or ""

    @property
    def sink(self) -> str:
        """The kind of sink."""
        return next(iter(self.config["spec"]["sink"]), "")

    @property
    def drain_s(self) -> int:
        """The driver's grace period in seconds: its drain, and some time to exit."""
        return int(self.resource.spec.drain_timeout) + 30

    @property
    def secrets(self) -> tuple[str, ...]:
        """Names of the Secrets that the spec refers to, sorted."""
        spec = {name: value for name, value in self.config["spec"].items() if name != "spark"}
        return tuple(sorted(set(_secret_names(spec))))


@dataclass(frozen=True)
class Wanted:
    """What a changefeed's spec asks for.

    `target`: what should run, None if there is no valid spec. `problem`: why the current spec is invalid, or "".
    """

    target: Target | None
    paused: bool
    problem: str = ""


def wanted(observed: Observed, settings: Settings) -> Wanted:
    """Return what the live Changefeed asks for, as far as it is valid."""
    live = observed.changefeed or {}
    paused = api.mapping_at(live, "spec").get("paused") is True
    fixed_state = api.text_at(live, "status", "stateUri")
    spec, defaulted = _with_defaults(live.get("spec"), settings.defaults)
    try:
        resource = from_effective(
            {
                "apiVersion": api.API_VERSION,
                "kind": "Changefeed",
                "metadata": {"name": observed.name, "namespace": observed.namespace, "uid": api.uid_of(live)},
                "spec": spec,
            }
        )
    except InvalidResource as e:
        problem = "; ".join(problem.line for problem in e.problems)
        return _refused(observed, paused, _with_origin(problem, defaulted))
    state_uri = resource.spec.state.uri or fixed_state or settings.state_uri
    target = _target(resource, state_uri, api.text_at(live, "status", "effectiveSpecHash"), defaulted)
    if target.config_digest == api.text_at(live, "status", "configDigest"):
        return Wanted(target, paused)
    problem = (
        _cannot_run(target, settings)
        or _changed(target, last_valid(observed), fixed_state)
        or unknown_to_image(target, api.mapping_at(live, "status"))
    )
    return _refused(observed, paused, _with_origin(problem, defaulted)) if problem else Wanted(target, paused)


def _refused(observed: Observed, paused: bool, problem: str) -> Wanted:
    last, accepted = last_valid(observed), api.text_at(observed.changefeed, "status", "configDigest")
    if last is None and accepted:
        name = api.config_map_name(observed.name, accepted)
        problem = f"{problem}; the last valid spec can't be started either: ConfigMap {name} is missing or was replaced"
    return Wanted(last, paused, problem)


def last_valid(observed: Observed) -> Target | None:
    """The last accepted spec; None if its ConfigMap is missing or no longer what was accepted."""
    known = observed.changefeed or {}
    accepted = api.text_at(known, "status", "configDigest")
    found = observed.child(api.CONFIG_MAP, api.config_map_name(observed.name, accepted)) or {}
    text = api.text_at(found, "data", CONFIG_KEY)
    if accepted and digest(text.encode(errors="replace")) != accepted:
        return None
    try:
        document = json.loads(text)
        resource = from_effective(document if isinstance(document, dict) else {})
    except (ValueError, RecursionError, InvalidResource):
        return None
    runs = api.text_at(known, "status", "effectiveSpecHash")
    defaulted = api.text_at(document, "metadata", "annotations", api.DEFAULTED)
    target = _target(resource, resource.spec.state.uri or "", runs, tuple(filter(None, defaulted.split(","))))
    # Earlier versions wrote no digest: their ConfigMap must match what the newest attempt runs.
    is_accepted = bool(accepted) or target.hash == runs
    return target if is_accepted and resource.metadata.uid == api.uid_of(known) else None


def _with_defaults(spec: Any, defaults: Defaults) -> tuple[Any, tuple[str, ...]]:
    """The spec with the operator's default resources filled in, and which fields they are."""
    spark = spec.get("spark", {}) if isinstance(spec, Mapping) else None
    if not defaults or not isinstance(spark, Mapping):
        return spec, ()
    full, defaulted = dict(spark), []
    for role, resources in defaults.items():
        named = spark.get(role, {})
        if isinstance(named, Mapping):
            missing = {name: value for name, value in resources.items() if name not in named}
            full[role] = {**named, **missing}
            defaulted += [f"{role}.{name}" for name in missing]
    return {**spec, "spark": full}, tuple(defaulted)


def _with_origin(problem: str, defaulted: tuple[str, ...]) -> str:
    """Mentions the operator's defaults if they may have caused the problem."""
    if not defaulted or "spec.spark" not in problem:
        return problem
    return f"{problem} (set by the operator's defaults: {', '.join(f'spec.spark.{path}' for path in defaulted)})"


def _target(resource: Changefeed, state_uri: str, runs: str = "", defaulted: tuple[str, ...] = ()) -> Target:
    spec = resource.spec
    state = spec.state.model_copy(update={"uri": state_uri or None})
    same = {"paused": False, "deletion_policy": "Close"}
    full = resource.model_copy(update={"spec": spec.model_copy(update={"state": state, **same})})
    return Target(full, spec_hash(full, runs, defaulted), defaulted)


def spec_hash(resource: Changefeed, runs: str = "", defaulted: tuple[str, ...] = ()) -> str:
    """Differs for specs that need different drivers. `runs`: the hash of the newest attempt.

    Defaults are left out, so that neither an operator upgrade that adds fields nor a change of its settings
    (`defaulted`) restarts anything; so are the fields that a running driver applies live.
    """
    spec = resource.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    for role, _, name in (path.partition(".") for path in defaulted):
        spark = spec.get("spark", {})
        spark.get(role, {}).pop(name, None)
        for section, empty in ((spark, role), (spec, "spark")):
            if section.get(empty) == {}:
                del section[empty]
    before = (api.digest(without(spec, left_out)) for left_out in _LEFT_OUT_BEFORE)
    return next((known for known in before if known == runs), "") or api.digest(without(spec, frozenset(marked(LIVE))))


def _cannot_run(target: Target, settings: Settings) -> str:
    spec = target.resource.spec
    if not target.state_uri:
        return "spec.state.uri: missing, and the operator has no default; allowed: a URI such as s3://bucket/folder"
    for role, pod in (("driver", spec.spark.driver), ("executor", spec.spark.executor)):
        if pod.memory < LEAST_MEMORY:
            least = format_size(LEAST_MEMORY)
            return f"spec.spark.{role}.memory: {format_size(pod.memory)}; allowed in a cluster: {least} or more"
        problem = template_problem(pod.template)
        if not problem and not settings.allow_privileged_templates:
            problem = privilege_problem(pod.template)
        if problem:
            return f"spec.spark.{role}.template{problem}"
    return ""


def unknown_to_image(target: Target, status: api.Json, since: Mapping[str, str] | None = None) -> str:
    """A field that the pinned image does not support, judged by the version its driver reported; "" for none.

    `since`: by path, the version that introduced the field.
    """
    image, version = target.resource.spec.spark.image, api.text_at(status, "version")
    if not image or not version or image != api.text_at(status, "image"):
        return ""
    spec = given(target.resource)["spec"]
    for path, first in (marked(SINCE) if since is None else since).items():
        if at(spec, path) is not None and _numbers(version) < _numbers(first):
            return f"spec.{path}: requires version {first} or newer; spec.spark.image, {image}, is version {version}"
    return ""


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d{1,9}", version)][:3]


def _changed(target: Target, last: Target | None, fixed_state: str) -> str:
    """An immutable field that was changed; the API server already rejects this where it can tell."""
    if fixed_state and target.state_uri != fixed_state:
        return _immutable("spec.state.uri", target.state_uri, fixed_state)
    if last is None:
        return ""
    for field, new, old in zip(_FIXED, _fixed(target), _fixed(last), strict=True):
        if old != new and not (field == "spec.upstream.clusterId" and old is None):
            return _immutable(field.replace("*", target.sink), new, old)
    stayed, stays = last.resource.spec.upstream.stays, target.resource.spec.upstream.stays
    for field in stayed | stays:
        if stays.get(field) != stayed.get(field):
            return _immutable(field, stays.get(field), stayed.get(field))
    names = last.resource.spec.sink.names
    for field, new in target.resource.spec.sink.names.items():
        if new != names[field]:
            return _immutable(field, new, names[field])
    return ""


_FIXED = ("spec.state.uri", "spec.state.id", "spec.startTs", "spec.upstream.clusterId", "spec.sink", "spec.sink.*.uri")


def _fixed(target: Target) -> tuple[object, ...]:
    spec = target.resource.spec
    sink = target.config["spec"]["sink"].get(target.sink)
    uri = sink.get("uri") if isinstance(sink, Mapping) else None
    return (target.state_uri, spec.state.id, spec.start_ts, spec.upstream.cluster_id, target.sink, uri)


def _immutable(field: str, new: object, old: object) -> str:
    was, now = ("unset" if value is None else value for value in (old, new))
    return f"{field}: {now}; allowed: {was}, the value at creation; to change it, create another Changefeed"


def _secret_names(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, member in value.items():
            if name == "secretRef":
                yield api.text_at(member, "name")
            else:
                yield from _secret_names(member)
    elif isinstance(value, list):
        for member in value:
            yield from _secret_names(member)
