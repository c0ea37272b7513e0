"""`changefeed tail`: prints changes as they arrive in a storage sink, one JSON object per line."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from changefeed.cli.arguments import Tables, selects
from changefeed.cli.output import write_error
from changefeed.model import tso

if TYPE_CHECKING:
    from changefeed.tail.changes import TailedChange

_POLL_S = 1.0
_OPS = {"I": "insert", "U": "update", "D": "delete"}


def tail(
    uri: str,
    /,
    *,
    from_ts: int | None = None,
    table: Tables = None,
    follow: bool = True,
) -> None:
    """Print changes as they reach a storage sink, in commit-ts order and never above the checkpoint.

    Each line has commitTs (as text: it does not fit a double), time, op, schema, table and data, which holds each
    column's value as written in the file, or null. The line of a DDL has ddl instead of op and data. This needs only
    the sink's folder, neither the changefeed nor its upstream. Files must include the commit ts
    (csv.includeCommitTs, canalJson.enableTidbExtension).

    Parameters
    ----------
    uri
        The sink, as in spec.sink.storage.uri. Credentials come from the environment.
    from_ts
        Print changes above this ts; 0: all. Default: new changes only, or all with --no-follow.
    follow
        Keep printing until Ctrl-C instead of stopping at the current checkpoint.
    """
    from changefeed.objectstore.open import open_store
    from changefeed.reading.known import known_of
    from changefeed.tail.changes import TailedChanges

    chosen = selects(table)
    store = open_store(uri, "URI")
    known = known_of(store)
    if known.unknown:
        write_error("Assumed", f"{known.unknown} The files are read by TiCDC's default format.", "", as_json=False)
    changes = TailedChanges(store, known.format_of, from_ts if follow else from_ts or 0, chosen)
    try:
        _print(changes.round())
        while follow and not threading.Event().wait(_POLL_S):
            _print(changes.round())
    except KeyboardInterrupt:
        return
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print(changes: Iterator[TailedChange]) -> None:
    for change in changes:
        sys.stdout.write(json.dumps(_line(change), ensure_ascii=False) + "\n")
    sys.stdout.flush()


def _line(change: TailedChange) -> dict[str, Any]:
    line: dict[str, Any] = {"commitTs": str(change.commit_ts)}
    line["time"] = f"{tso.to_datetime(change.commit_ts):%Y-%m-%dT%H:%M:%S.%fZ}"
    if change.row is None:
        return line | {"ddl": change.query, "schema": change.schema, "table": change.table}
    data = {name: _text(value) for name, value in change.row.values.items()}
    return line | {"op": _OPS[change.row.op], "schema": change.schema, "table": change.table, "data": data}


def _text(value: str | bytes | None) -> str | None:
    """Text that is not UTF-8 has each wrong byte as U+FFFD."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
