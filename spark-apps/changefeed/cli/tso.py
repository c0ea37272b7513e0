"""`changefeed tso`: converts between a ts and a time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from changefeed.cli.arguments import AsJson, Pd, SecretsDir
from changefeed.cli.config_file import read
from changefeed.cli.output import time_of, write_json, write_text
from changefeed.errors import InvalidSpec
from changefeed.model import tso as ts

_MAX_TS = (1 << 64) - 1

tso = App(
    name="tso",
    help="Convert between a ts and a time.",
    help_epilogue="""Examples:
  changefeed tso parse 449000000000000000
  changefeed tso now --pd http://127.0.0.1:2379
  changefeed tso at 2026-01-31T12:00:00Z --json""",
)


@tso.command(help_epilogue="Example:\n  changefeed tso parse 449000000000000000")
def parse(ts_text: Annotated[str, Parameter(name="TS")], *, as_json: AsJson = False) -> None:
    """Show the time of a ts."""
    if not (ts_text.isascii() and ts_text.isdecimal() and int(ts_text) <= _MAX_TS):
        raise InvalidSpec("TS", f"{ts_text!r} is not a ts; allowed: digits, a number below 2^64")
    _write_ts(int(ts_text), as_json)


@tso.command(
    help_epilogue="""Examples:
  changefeed tso now --pd http://127.0.0.1:2379 --json
  changefeed tso now -f orders.yaml --secrets-dir secrets""",
)
def now(
    *,
    pd: Pd | None = None,
    file: Annotated[Path | None, Parameter(name=["--file", "-f"], help="A Changefeed whose upstream to ask.")] = None,
    secrets_dir: SecretsDir = None,
    as_json: AsJson = False,
) -> None:
    """Get a ts from the upstream, later than every commit so far."""
    if (file is None) == (not pd):
        raise InvalidSpec("arguments", "allowed: --pd ADDRESS, or -f FILE", "See changefeed tso now --help.")

    import asyncio

    from changefeed.upstream import choice
    from changefeed.upstream.contract import Access
    from changefeed.upstream.tikv.access import TikvAccess

    upstream: Access = choice.access_of(read(file), secrets_dir) if file is not None else TikvAccess(tuple(pd or ()))

    async def ask() -> int:
        client = await upstream.connect()
        try:
            return await client.now()
        finally:
            await client.close()

    _write_ts(asyncio.run(ask()), as_json)


@tso.command(help_epilogue="Example:\n  changefeed tso at 2026-01-31T12:00:00+01:00")
def at(time: Annotated[str, Parameter(name="TIME")], *, as_json: AsJson = False) -> None:
    """Give the first ts of a time (ISO 8601, with a time zone)."""
    _write_ts(ts.ts_of_time(time, "TIME"), as_json)


def _write_ts(value: int, as_json: bool) -> None:
    if as_json:
        write_json(
            {
                "ts": str(value),
                "time": ts.to_datetime(value).isoformat(timespec="milliseconds"),
                "physical_ms": ts.physical_ms(value),
                "logical": ts.logical(value),
            }
        )
    else:
        write_text(f"{value}  {time_of(value)}, logical {ts.logical(value)}")
