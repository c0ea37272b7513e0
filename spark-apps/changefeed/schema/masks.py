"""What a column has in place of the upstream's values, as a definition holds it (docs/columns.md). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

HASH_CHARACTERS = 64


@dataclass(frozen=True)
class Mask:
    """`secret`: of the name of which the key is, of a hash. `length`: in characters, or bytes of what is no text.

    `value`: the constant, as text.
    """

    kind: Literal["hash", "truncate", "null", "constant"]
    secret: str = ""
    length: int = 0
    value: str = ""

    @property
    def keeps_apart(self) -> bool:
        """Whether different values stay different."""
        return self.kind == "hash"

    def __str__(self) -> str:
        match self.kind:
            case "hash":
                return f"hashed by Secret {self.secret}"
            case "truncate":
                return f"truncated to {self.length}"
            case "null":
                return "set to NULL"
            case "constant":
                return f"the constant {self.value!r}"

    def to_json(self) -> dict[str, Any]:
        """The members that are not their defaults; the Secret by its name."""
        return {name: value for name, value in vars(self).items() if value}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        return cls(**stored)
