"""How the commands speak: one JSON line for programs, one line of text and an exit code for people."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

BAD_INPUT = 2
UNAVAILABLE = 69

Amount = Annotated[float, Parameter(validator=Number(gte=0))]


class CommandFailed(Exception):
    """A message of one line for the person at the terminal, and the exit code."""

    def __init__(self, message: str, exit_code: int = BAD_INPUT) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
