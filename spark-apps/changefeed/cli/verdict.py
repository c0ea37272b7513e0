"""What `changefeed verify` found, for a person."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_READ = ("rows", "transactions", "tables", "files")
_BROKEN = ("missing", "duplicate", "unexpected", "out_of_order")


def write_verdict(result: Mapping[str, Any]) -> None:
    """A table of what was read and what was found, then the verdict."""
    console = Console(file=sys.stdout)
    table = Table(show_header=False, title="verify", title_justify="left", title_style="bold")
    table.add_column()
    table.add_column(justify="right")
    for name in _READ:
        table.add_row(name, f"{result[name]:,}")
    table.add_section()
    for name in _BROKEN:
        if name in result:
            count = result[name]
            table.add_row(name.replace("_", " "), f"{count:,}", style="red" if count else "green")
    if result.get("conserved"):
        table.add_row("conserved", Text(str(result["conserved"])))
    console.print(table)
    if result["ok"]:
        console.print("Every promise holds up to the checkpoint.", style="green")
    else:
        console.print(Text(f"A promise is broken: {result['first_problem']}", style="red"), soft_wrap=True)
