"""Fields of a sink that stay as they were when it was created: what has been written depends on them."""

from __future__ import annotations

from pydantic.config import JsonDict

from changefeed.spec.field.kind import RULES, FieldKind, rule

ELSEWHERE = "to write elsewhere, create another Changefeed"


def stays(what: str) -> FieldKind:
    return FieldKind(None, {RULES: [rule("self == oldSelf", f"the {what} that it was created with; {ELSEWHERE}")]})


STAYS = stays("uri")


def as_created(field: str, default: str) -> JsonDict:
    """The rule of a section whose optional field stays; `default`: in CEL."""
    now, before = (f"(has({each}.{field}) ? {each}.{field} : {default})" for each in ("self", "oldSelf"))
    return rule(f"{now} == {before}", f"the {field} that it was created with; {ELSEWHERE}")
