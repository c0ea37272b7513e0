"""What is wrong with a resource: every problem at once, each with its field, its value and what is allowed there.

Must never hold a secret: values are shown only where a person may have written nothing secret.
"""

from __future__ import annotations

from dataclasses import dataclass

from changefeed.errors import InvalidSpec


@dataclass(frozen=True)
class Problem:
    """One thing to mend: `line` is how a person reads it."""

    field: str  # "spec.sink.storage.fileSize", or "line 7, column 3" of the YAML
    line: str
    value: str | None = None  # as JSON; None: there is none, or it could be a secret
    allowed: str = ""

    def as_json(self) -> dict[str, str | None]:
        return {"field": self.field, "value": self.value, "allowed": self.allowed, "message": self.line}


class InvalidResource(InvalidSpec):
    """The resource has problems, all of them in `problems`."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        first = problems[0]
        super().__init__(first.field, first.line, "Fix it, then run `changefeed validate -f FILE` again.")
        self.problems = problems
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        self.message = "\n".join([f"The resource has {count}:", *(f"- {p.line}" for p in problems)])
        self.args = (self.message,)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.problems,))
