"""The resource's shape, taken from its model: one nested schema with every field's description, default and rules.

The CRD and the reference are made from it, so that neither can say anything else than what the code does.
"""

from __future__ import annotations

from typing import Any

from changefeed.spec.field.section import Section


def shape(section: type[Section]) -> dict[str, Any]:
    """OpenAPI's words and our own (`kind`), without references; a default stands as the resource would write it."""
    # A default is shown as it is written out again: "64Mi", not the number that the code uses.
    schema = section.model_json_schema(by_alias=True, mode="serialization")
    return _plain(schema, schema.get("$defs", {}))


def _plain(schema: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
    """`schema` with what it refers to in it, and without "or null": an optional field is left out."""
    words = dict(schema)
    if "$ref" in words:
        target = named[words.pop("$ref").rpartition("/")[2]]
        return _plain({**target, **words}, named)
    choices = [choice for choice in words.get("anyOf", []) if choice != {"type": "null"}]
    if len(choices) == 1:
        del words["anyOf"]
        return _plain({**choices[0], **words}, named)
    for word in ("title", "$defs"):
        words.pop(word, None)
    if not isinstance(words.get("additionalProperties"), dict):  # whether unknown members are refused: not OpenAPI's
        words.pop("additionalProperties", None)
    if words.get("default", 0) is None:
        del words["default"]
    if "items" in words:
        words["items"] = _plain(words["items"], named)
    fields = words.pop("properties", {})
    if fields:
        words["properties"] = {name: _plain(field, named) for name, field in fields.items()}
    return words
