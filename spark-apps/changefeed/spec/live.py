"""Settings that a running driver takes over without a restart: which they are, how they are told, how they are read.

The operator tells those of the spec that it has accepted last, in the resource's status; the model's marks say which
fields they are. They are told by their path below `spec`, so that each side passes over those that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from changefeed.spec.field.kind import LIVE
from changefeed.spec.field.shape import shape
from changefeed.spec.model import Changefeed, Spec
from changefeed.spec.parse import effective, from_effective


@cache
def marked(mark: str) -> Mapping[str, str]:
    """Path below `spec`, as "upstream.safepointTtl", of each field with that mark, and what the mark says."""
    return dict(_marked(mark, shape(Spec)))


def _marked(mark: str, schema: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, field in schema.get("properties", {}).items():
        if mark in field:
            yield prefix + name, field[mark]
        yield from _marked(mark, field, f"{prefix}{name}.")


def settings_of(changefeed: Changefeed) -> dict[str, str]:
    """The settings of a resource, by path, defaults included: {"lagThreshold": "1m", ...}."""
    spec = effective(changefeed)["spec"]
    return {path: str(at(spec, path)) for path, by in marked(LIVE).items() if by == "the driver"}


def with_settings(changefeed: Changefeed, settings: Mapping[str, object]) -> Changefeed:
    """The resource with these instead of its own; those that this version does not know are passed over.

    Raises InvalidResource.
    """
    config = effective(changefeed)
    for path in settings_of(changefeed).keys() & settings.keys():
        *above, last = path.split(".")
        section = config["spec"]
        for name in above:
            section = section[name]
        section[last] = settings[path]
    return from_effective(config)


def at(spec: Mapping[str, Any], path: str) -> object:
    """The value at a path below `spec`; None when there is none."""
    value: object = spec
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def without(spec: Mapping[str, Any], paths: frozenset[str], prefix: str = "") -> dict[str, Any]:
    """`spec` without the fields at these paths."""
    return {
        name: without(value, paths, f"{prefix}{name}.") if isinstance(value, Mapping) else value
        for name, value in spec.items()
        if prefix + name not in paths
    }
