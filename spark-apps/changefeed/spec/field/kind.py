"""A kind of value: how it is checked here, and what the API server is told to check, from one declaration.

Both say what is allowed in the same words. A check raises `wrong`, so that one report can name the field, the value
and what would be right.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.config import JsonDict
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

#: The types of the errors that our checks raise; their message is what is allowed.
WRONG: Final = "wrong"
WRONG_SECRET: Final = "wrong_secret"  # the value may hold a secret and must not be shown

RULES: Final = "x-kubernetes-validations"
#: What the schema says beside OpenAPI's words; the CRD's descriptions and the reference are made from it.
TYPE: Final = "x-changefeed-type"  # in a person's words
ALLOWED: Final = "x-changefeed-allowed"  # finishes the sentence "Allowed: ..."
FIXED: Final = "x-changefeed-fixed"  # "once set": from when on the value can't be changed
LIVE: Final = "x-changefeed-live"  # who applies an edit of it while the driver runs, which is not restarted
SINCE: Final = "x-changefeed-since"  # the first version of the data plane that reads the field


def wrong(allowed: str, kind: Literal["wrong", "wrong_secret"] = WRONG) -> PydanticCustomError:
    """Return what a check raises: `allowed` finishes the sentence "allowed: ..."."""
    return PydanticCustomError(kind, "{allowed}", {"allowed": allowed})


def rule(cel: str, allowed: str) -> JsonDict:
    """A rule of the API server, in CEL; its message is the one that our own check gives."""
    return {"rule": cel, "message": f"allowed: {allowed}"}


def cel_text(text: str) -> str:
    """A CEL literal."""
    return json.dumps(text)


def cel_at(root: str, path: str) -> str:
    """CEL: the text at `path` below `root`, or ''."""
    names = path.split(".")
    sections = [".".join([root, *names[: depth + 1]]) for depth in range(len(names))]
    return f"({' && '.join(f'has({section})' for section in sections)} ? {sections[-1]} : '')"


class FieldKind:
    """Annotates a field. `schema` is laid over that of the field's type; None takes a word of it away."""

    def __init__(self, check: Callable[[object], object] | None, schema: Mapping[str, Any]) -> None:
        self.check = check
        self.schema = schema

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        inner = handler(source)
        return core_schema.no_info_before_validator_function(self.check, inner) if self.check else inner

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        inner = handler(core)
        rules = [*inner.get(RULES, []), *self.schema.get(RULES, [])]
        words = {**inner, **self.schema, RULES: rules or None}
        return {word: value for word, value in words.items() if value is not None}


def fixed(once: str) -> FieldKind:
    """Marks a field that can't be changed then; the rule that holds it stands with its section."""
    return FieldKind(None, {FIXED: once})


def live(by: Literal["the driver", "the operator"]) -> FieldKind:
    """Marks a field whose edits take no restart (spec/live.py)."""
    return FieldKind(None, {LIVE: by})


def since(version: str) -> FieldKind:
    """Marks a field that images before `version`, as 0.2.0, refuse to read."""
    return FieldKind(None, {SINCE: version})
