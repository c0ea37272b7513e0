"""Text to Changefeed, with every problem at once; and the effective config that goes into the log.

Never lets a library's own exception or wording out: a person reads what comes from here.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Hashable, Mapping
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from changefeed.spec.field.kind import WRONG, WRONG_SECRET
from changefeed.spec.model import Changefeed
from changefeed.spec.names import API_VERSION, KIND
from changefeed.spec.problem import InvalidResource, Problem

_SECRET_SECTIONS = {"credentials", "tls", "schemaRegistryCredentials", "schemaRegistryTls", "hash"}
_WIDEST_VALUE = 80


def parse(text: str) -> Changefeed:
    """The resource in a YAML (or JSON) text of one document.

    Raises InvalidResource with all problems.
    """
    document = _load(text)
    if not isinstance(document, dict):
        raise _one("", f"the file holds {_kind_of(document)}; allowed: one Changefeed, a YAML mapping")
    for field, allowed in (("apiVersion", API_VERSION), ("kind", KIND)):
        if document.get(field) != allowed:
            value = _show(document[field]) if field in document else None
            line = f"{field}: {value or 'missing'}; allowed: {allowed}"
            raise InvalidResource((Problem(field, line, value, allowed),))
    return _validate(document)


def effective(changefeed: Changefeed) -> dict[str, Any]:
    """The resource as JSON with every default filled in: equal resources give equal texts (rule 10).

    Names are the resource's, durations and sizes have units, ts are strings; what is unset is left out.
    """
    config: dict[str, Any] = changefeed.model_dump(mode="json", by_alias=True, exclude_none=True)
    return config


def given(changefeed: Changefeed) -> dict[str, Any]:
    """The resource as JSON without what equals a default: `parse` of it gives the resource again.

    A new version of the operator with more fields gives the same, and an older driver reads it.
    """
    dumped = changefeed.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
    return {"apiVersion": API_VERSION, "kind": KIND, **dumped}


def digest(config: bytes) -> str:
    """Return what the operator calls a config file by: 32 hex digits of its SHA-256."""
    return hashlib.sha256(config).hexdigest()[:32]


def from_effective(config: Mapping[str, Any]) -> Changefeed:
    """The reverse of `effective`.

    Raises InvalidResource, when the record was written by a version with other fields.
    """
    return _validate(dict(config))


def _validate(document: dict[str, Any]) -> Changefeed:
    try:
        return Changefeed.model_validate(document)
    except ValidationError as e:
        raise InvalidResource(tuple(_problem(error) for error in e.errors(include_url=False))) from None


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes takes it: a name twice, or a name that is no text, is an error."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    loader.flatten_mapping(node)
    seen = set()
    for key_node, _ in node.value:
        name = loader.construct_object(key_node)
        where = key_node.start_mark
        if not isinstance(name, str):
            raise yaml.MarkedYAMLError(problem=f'write the name "{key_node.value}" in quotes', problem_mark=where)
        if name in seen:
            raise yaml.MarkedYAMLError(problem=f"{name} appears a second time", problem_mark=where)
        seen.add(name)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def _load(text: str) -> Any:
    try:
        documents = [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the file"
        context = f" {e.context}" if e.context else ""
        raise _one(where, f"{where}: not YAML{context}: {e.problem}") from None
    except yaml.YAMLError as e:
        raise _one("", f"not YAML: {str(e).splitlines()[0]}") from None
    if len(documents) != 1:
        what = f"{len(documents)} documents" if documents else "nothing"
        raise _one("", f"the file holds {what}; allowed: one Changefeed")
    return documents[0]


def _one(field: str, line: str) -> InvalidResource:
    return InvalidResource((Problem(field, line),))


def _problem(error: ErrorDetails) -> Problem:
    location, kind = error["loc"], error["type"]
    field = _path(location)
    if kind == "extra_forbidden":
        return Problem(field, f"unknown field {field}; {_nearest(location)}")
    if kind == "missing":
        return Problem(field, f"{field}: missing")
    allowed = _allowed(error)
    if kind == WRONG_SECRET or _SECRET_SECTIONS & {str(part) for part in location}:
        return Problem(field, f"{field}: allowed: {allowed}", None, allowed)
    value = _show(error["input"])
    return Problem(field, f"{field}: {value}; allowed: {allowed}", value, allowed)


def _allowed(error: ErrorDetails) -> str:
    if error["type"] in (WRONG, WRONG_SECRET):
        return error["msg"]
    return "a list" if error["type"] == "tuple_type" else "a mapping"


def _path(location: tuple[str | int, ...]) -> str:
    """("spec", "filter", "rules", 1) -> "spec.filter.rules[1]"."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location]
    return "".join(parts).removeprefix(".")


def _show(value: object) -> str:
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    shown = json.dumps(value, ensure_ascii=False, default=str)
    return shown if len(shown) <= _WIDEST_VALUE else shown[: _WIDEST_VALUE - 3] + "..."


def _kind_of(document: object) -> str:
    return "a list" if isinstance(document, list) else f"only {_show(document)}"


def _nearest(location: tuple[str | int, ...]) -> str:
    *section, name = location
    known = _fields(section)
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"allowed: {', '.join(known)}"


def _fields(section: list[str | int]) -> list[str]:
    """The names that the mapping at `section` may have."""
    model: type[BaseModel] = Changefeed
    for part in section:
        if isinstance(part, int):
            continue
        model = next(
            candidate
            for field in model.model_fields.values()
            if field.alias == part
            for candidate in (field.annotation, *get_args(field.annotation))
            if isinstance(candidate, type) and issubclass(candidate, BaseModel)
        )
    return [field.alias or name for name, field in model.model_fields.items()]
