"""docs/reference/configuration.md, made from the model: every field of the resource, and what it may hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from changefeed.spec.field.kind import ALLOWED, FIXED, LIVE, SINCE, TYPE
from changefeed.spec.field.shape import shape
from changefeed.spec.live import marked
from changefeed.spec.model import NAME_ALLOWED, Spec
from changefeed.spec.names import API_VERSION, KIND
from changefeed.spec.status import ChangefeedStatus

_HEAD = f"""# The {KIND}

Generated from the model in `spark-apps/changefeed/spec` by `make generate`; don't edit.

`kubectl apply -f` and, on a laptop, `changefeed run -f` take the same file (`{API_VERSION}`).
`changefeed validate -f FILE` checks it without a cluster; the API server rejects the same mistakes in the same words.
See [examples/](../../examples).

- A name has {NAME_ALLOWED}.
- A ts is always a quoted string: as a JSON number it would lose its last digits.
- A duration has units, such as `500ms`, `5s`, `1m30s` or `24h`. So does a size: `64Mi`, `20Gi`.
- Credentials are never written here, only the names of Secrets. `secretRef` lists the keys a Secret must have.
- Fields that can't be changed are marked. Any other edit makes the changefeed drain and resume from its checkpoint,
  unless the field is listed in the next section.
"""
_LIVE = """## Edits without a restart

These fields are applied while the driver runs: no pod is restarted. The driver reads the accepted values in the answer
to its next report, within ten seconds, and writes what it runs with to `status.appliedSettings`.

| Field | Applied by |
|---|---|
"""
_STATUS = """## status

Written by the operator and the driver. It is only a copy: the changefeed's log is the source of truth.
"""


def configuration_reference() -> str:
    """The page, Markdown."""
    spec = "\n\n".join(_section("spec", shape(Spec)))
    live = _LIVE + "\n".join(f"| `spec.{path}` | {by} |" for path, by in marked(LIVE).items()) + "\n"
    return "\n".join([_HEAD, live, spec, "", _STATUS, *_status_table(), ""])


_Row = tuple[str, dict[str, Any], str]


def _section(path: str, schema: dict[str, Any]) -> Iterator[str]:
    """The table of a mapping's fields, then those of the mappings in it."""
    rows = list(_rows("", schema))
    lines = [f"## {path}", "", "| Field | Type | Default | Meaning |", "|---|---|---|---|"]
    for name, field, default in rows:
        lines.append(f"| `{name}` | {_type(field)} | {default} | {_cell(_meaning(field))} |")
    yield "\n".join(lines)
    for name, field, _ in rows:
        if "properties" in field:
            yield from _section(f"{path}.{name}", field)
        elif "properties" in field.get("items", {}):
            yield from _section(f"{path}.{name}[]", field["items"])


def _rows(prefix: str, schema: dict[str, Any], said: str = "", needed: bool = True) -> Iterator[_Row]:
    """Path, schema and default of each field; a mapping of one field is shown as that field."""
    for name, field in schema.get("properties", {}).items():
        required = needed and name in schema.get("required", [])
        described = {**field, "description": f"{said} {field.get('description', '')}"}
        if len(field.get("properties", {})) == 1:
            yield from _rows(f"{prefix}{name}.", field, described["description"], required)
        else:
            yield f"{prefix}{name}", described, "**required**" if required else _default(field)


def _type(field: dict[str, Any]) -> str:
    if field.get("type") == "array":
        return f"list of {_type(field['items'])}"
    words = {"object": "mapping", "string": "text", "integer": "number", "boolean": "true/false"}
    return str(field.get(TYPE) or words[field["type"]])


def _default(field: dict[str, Any]) -> str:
    if "default" not in field or isinstance(field["default"], dict):
        return ""
    return f"`{_cell(json.dumps(field['default'], ensure_ascii=False))}`"


def _meaning(field: dict[str, Any]) -> str:
    """Return what it means, what is allowed, and whether it can be changed."""
    parts = [" ".join(field.get("description", "").split())]
    parts += [f"Allowed: {allowed}." for allowed in _allowed(field)]
    if FIXED in field:
        parts.append(f"**Can't be changed {field[FIXED]}.**")
    if LIVE in field:
        parts.append("*An edit takes no restart.*")
    if SINCE in field:
        parts.append(f"*Since version {field[SINCE]}.*")
    return " ".join(part for part in parts if part)


def _allowed(field: dict[str, Any]) -> Iterator[str]:
    if "enum" in field:
        yield ", ".join(f"`{word}`" for word in field["enum"])
    elif field.get("type") != "boolean":
        yield from [field[ALLOWED]] if ALLOWED in field else []
    if ALLOWED in field.get("items", {}):
        yield f"each {field['items'][ALLOWED]}"


def _status_table() -> Iterator[str]:
    yield "| Field | Type | Meaning |"
    yield "|---|---|---|"
    for name, field in shape(ChangefeedStatus)["properties"].items():
        yield f"| `{name}` | {_type(field)} | {_cell(' '.join(field['description'].split()))} |"
        for inner, part in field.get("properties", {}).items():
            yield f"| `{name}.{inner}` | {_type(part)} | {_cell(part['description'])} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
