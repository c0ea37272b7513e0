"""Whether somebody has taken a table back to a version from before our last commit: RESTORE keeps `txn` actions."""

from __future__ import annotations

from typing import Any

from deltalake import DeltaTable

from changefeed.sink.delta.marks import LOG

_FIRST = 1  # commits that are read at once; twice as many each time none is ours


def gone_back(table: DeltaTable, log: str) -> int | None:
    """The version of the changefeed's last commit, if what the table shows does not come after it.

    Nothing is known of versions whose log files have expired.
    """
    limit = _FIRST
    while True:
        said = table.history(limit)
        ours = next((each for each in said if each.get(LOG) == log), None)
        if ours is not None:
            return None if _comes_after(ours["version"], said) else int(ours["version"])
        if len(said) < limit:
            return None
        limit *= 2


def _comes_after(last: int, said: list[dict[str, Any]]) -> bool:
    restored = {each["version"]: _target(each) for each in said if each.get("operation") == "RESTORE"}
    shown = max(each["version"] for each in said)
    while shown > last:
        shown = restored.get(shown, shown - 1)
    return bool(shown == last)


def _target(restore: dict[str, Any]) -> int:
    """The version that it went back to; -1: it says a moment instead."""
    version: Any = (restore.get("operationParameters") or {}).get("version")
    return int(version) if str(version).isdecimal() else -1
