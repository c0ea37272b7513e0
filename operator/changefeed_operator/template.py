"""Merges a user's pod template with ours: theirs wins unless the pod could not work that way.

A template is JSON that the API server has not validated: it may contain anything. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: The merge keys of lists; lists without one are concatenated.
KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "ports": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "tolerations": "key",
}
_MERGED = ("containers", "initContainers")
_REPLACED = ("command", "args", "drop", "add")
_MAPPINGS = ("metadata", "metadata.labels", "metadata.annotations", "spec", "spec.securityContext", "spec.nodeSelector")
_LISTS = ("containers", "initContainers", "volumes", "tolerations", "imagePullSecrets")
_CONTAINER_LISTS = ("env", "envFrom", "volumeMounts", "ports")


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` merged into `under`: mappings recursively, containers by name; other keyed entries are replaced."""
    merged = dict(under)
    for name, value in over.items():
        below = merged.get(name)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[name] = merge(below, value)
        elif isinstance(value, list) and isinstance(below, list) and name not in _REPLACED:
            merged[name] = _merge_lists(below, value, name)
        elif value is not None:
            merged[name] = value
    return merged


def _merge_lists(under: list[Any], over: list[Any], name: str) -> list[Any]:
    key = KEYS.get(name)
    positions = {item.get(key): position for position, item in enumerate(under)} if key else {}
    merged = list(under)
    for item in over:
        position = positions.get(item.get(key)) if key else None
        if position is not None:
            merged[position] = merge(merged[position], item) if name in _MERGED else item
        elif item not in merged:
            merged.append(item)
    return merged


def template_problem(template: Mapping[str, Any]) -> str:
    """What is wrong with the structure of a user's pod template, starting with the path (".spec: ..."); "" if fine."""
    for path in _MAPPINGS:
        value = _at(template, path)
        if value is not None and not isinstance(value, Mapping):
            return f".{path}: allowed: a mapping"
    spec = template.get("spec") or {}
    for name in _LISTS:
        if problem := _list_problem(spec, name, f".spec.{name}"):
            return problem
    for kind in ("containers", "initContainers"):
        for container in spec.get(kind) or ():
            for name in _CONTAINER_LISTS:
                if problem := _list_problem(container, name, f".spec.{kind}[{container['name']}].{name}"):
                    return problem
    return ""


def _list_problem(section: Mapping[str, Any], name: str, path: str) -> str:
    items = section.get(name)
    if items is None:
        return ""
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        return f"{path}: allowed: a list of mappings"
    key = KEYS.get(name)
    if key and not all(isinstance(item.get(key), str) for item in items):
        return f"{path}: allowed: a list whose members have a {key}"
    return ""


def _at(template: Mapping[str, Any], path: str) -> object:
    value: object = template
    for part in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value
