"""Which columns are dropped, renamed and masked (docs/columns.md)."""

from __future__ import annotations

from typing import Annotated

from pydantic import model_validator

from changefeed.spec.field.fields import Flag, many, text, whole
from changefeed.spec.field.kind import rule, wrong
from changefeed.spec.field.section import SecretRef, Section, ruled
from changefeed.spec.filter.filters import ColumnRule, Rule

_NAME = r"(?:[^{}/\r\n]|\{column\})+"
_NAME_ALLOWED = "a name of up to 64 characters without /, in which {column} stands for the upstream's"
_ONE = "exactly one of drop, rename, hash, truncate, setNull and constant"
_SAID = ", ".join([
    *(f"has(self.{name})" for name in ("rename", "hash", "truncate", "constant")),
    *(f"has(self.{name}) && self.{name}" for name in ("drop", "setNull")),
])  # fmt: skip


class HashSpec(Section):
    secret_ref: SecretRef
    """
    Key of the Secret: key, of 16 to 4096 bytes, by which values are hashed; `openssl rand -hex 32` makes one. What is
    written keeps the hash of the key of its time.
    """


class ColumnAction(Section):
    """What becomes of some columns of the tables that `match` selects."""

    model_config = ruled(rule(f"[{_SAID}].filter(said, said).size() == 1", _ONE))

    match: Annotated[tuple[Rule, ...], many(1, 16, "1 to 16 table-filter rules")]
    """Tables this applies to, by their names upstream, in the syntax of `filter.rules`."""
    columns: Annotated[tuple[ColumnRule, ...], many(1, 64, "1 to 64 column rules")]
    """Columns' names upstream, with wildcards; `!` excludes; the last matching rule wins."""
    drop: Flag = False
    """Leave the columns out. A key can't be."""
    rename: Annotated[str, text(_NAME, _NAME_ALLOWED, 64)] | None = None
    """Write them under another name, such as `mail` or `{column}_hash`."""
    hash: HashSpec | None = None
    """Write HMAC-SHA256 of each value as 64 hex digits; NULL stays NULL. Also for keys."""
    truncate: Annotated[int, whole(0, 4096)] | None = None
    """Write so many characters of each text (bytes of binary columns) from its beginning; NULL stays NULL."""
    set_null: Flag = False
    """Write NULL."""
    constant: Annotated[str, text(r"[^\r\n]*", "a text of up to 256 characters, on one line", 256)] | None = None
    """Write this text or whole number into each row, of text and integer columns."""

    @model_validator(mode="after")
    def _does_one_thing(self) -> ColumnAction:
        given = (self.rename, self.hash, self.truncate, self.constant)
        if sum(each is not None for each in given) + self.drop + self.set_null != 1:
            raise wrong(_ONE)
        return self
