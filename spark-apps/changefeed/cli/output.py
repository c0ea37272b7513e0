"""Prints results and errors: as text, or as one JSON object for scripts."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from changefeed.errors import ChangefeedError
from changefeed.model import tso


def write_json(answer: dict[str, Any]) -> None:
    """One object on one line of standard output."""
    sys.stdout.write(json.dumps(answer, ensure_ascii=False) + "\n")


def write_text(text: str) -> None:
    """A line for a person on standard output; not folded, so that it can be copied."""
    Console(file=sys.stdout).print(Text(text), soft_wrap=True)


def write_warning(text: str) -> None:
    """A line for a person on standard error, where it is in no answer's way."""
    Console(file=sys.stderr).print(Text(f"warning: {text}"), soft_wrap=True)


def write_error(name: str, message: str, next_step: str, as_json: bool, **more: Any) -> None:
    """Return what failed, with which value, and what to do next: one screen, never a traceback.

    JSON goes to standard output, where the answer would stand; text goes to standard error.
    """
    if as_json:
        write_json({"error": {"class": name, "message": message, "next": next_step, **more}})
        return
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        console.print(Text(f"error: {message}" + (f"\nnext: {next_step}" if next_step else "")), soft_wrap=True)
        return
    body = Text(message)
    if next_step:
        body.append("\n\nNext: ", style="bold").append(next_step)
    console.print(Panel(body, title=name, title_align="left", border_style="red", expand=False))


def write_failure(error: ChangefeedError, as_json: bool) -> None:
    """A ChangefeedError, with every problem of an invalid resource."""
    problems = getattr(error, "problems", None)
    more = {"problems": [problem.as_json() for problem in problems]} if problems else {}
    write_error(type(error).__name__, error.message, error.next_step, as_json, **more)


def time_of(ts: int) -> str:
    """The time of a ts for a person, to the millisecond, in UTC."""
    return tso.to_datetime(ts).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", " UTC")
