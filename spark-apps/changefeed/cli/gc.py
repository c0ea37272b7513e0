"""`changefeed gc`: lists or closes what deleted changefeeds left behind."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from changefeed.cli.arguments import AsJson
from changefeed.cli.cluster.description import table
from changefeed.cli.output import write_json, write_text
from changefeed.errors import InvalidSpec
from changefeed.model import tso

if TYPE_CHECKING:
    from changefeed.owner.closing.left_overs import StateFolder

_HEAD = ["STATE FOLDER", "IS", "CHECKPOINT", "EVENTS"]
_MIB = 1 << 20


def gc(
    *,
    state: str,
    close: Annotated[list[str] | None, Parameter(negative="")] = None,
    secrets_dir: Path | None = None,
    secret: str | None = None,
    as_json: AsJson = False,
) -> None:
    """List what changefeeds have left behind under a state URI, and close those that you name.

    Without --close nothing is changed. A folder whose driver is alive is never touched. A paused changefeed looks like
    a deleted one, so check `changefeed get --all-namespaces` first.

    Parameters
    ----------
    state
        The state URI of the operator or of a resource, such as s3://cdc-state.
    close
        A folder as listed, or a leading part of it: "shop" or "shop/orders". Closes its log, and removes its hold on
        the upstream's history and its stored events. May be repeated.
    secrets_dir
        Folder of Secrets: DIR/<secretRef.name>/<key>.
    secret
        The Secret in --secrets-dir for the state URI. Without it, credentials come from the environment.
    """
    import asyncio

    from changefeed.objectstore import Place
    from changefeed.objectstore.open import canonical
    from changefeed.owner.closing.left_overs import close_left_over, find

    if secret is not None and secrets_dir is None:
        raise InvalidSpec("--secret", f"{secret}; allowed: together with --secrets-dir DIR")
    place = Place(canonical(state, "--state"), secrets_dir / secret if secrets_dir and secret else None)
    now_ms = int(time.time() * 1000)
    found = find(place, now_ms)
    if not close:
        _list(found, as_json)
        return
    named = [each for each in found if each.is_left_over and any(_is_below(each.folder, part) for part in close)]
    if not named:
        raise InvalidSpec(
            "--close", f"{', '.join(close)}: no such left-over below {state}", "See changefeed gc --state."
        )
    answers = []
    for each in named:
        word = asyncio.run(close_left_over(place, each.folder, secrets_dir, now_ms))
        answers.append({"folder": each.folder, "closed": True, "note": word})
        if not as_json:
            write_text(f"{each.folder} is closed{f'; {word}' if word else ''}")
    if as_json:
        write_json({"closed": answers})


def _is_below(folder: str, part: str) -> bool:
    return f"{folder}/".startswith(f"{part.strip('/')}/")


def _list(found: list[StateFolder], as_json: bool) -> None:
    if as_json:
        write_json({"folders": [_json(each) for each in found]})
        return
    rows = [[each.folder, _word(each), _moment(each), f"{each.event_bytes / _MIB:.1f} MiB"] for each in found]
    for line in table([_HEAD, *rows]):
        write_text(line)
    left = sum(each.is_left_over for each in found)
    write_text(f"{left} of {len(found)} are left over, or paused. changefeed gc --close FOLDER ends one.")


def _word(each: StateFolder) -> str:
    if each.is_driven:
        return "driven"
    if each.is_closed:
        return "closed, with events" if each.event_bytes else "closed"
    if each.problem:
        return f"unreadable: {each.problem}"
    return "finished" if each.is_finished else "left over or paused"


def _moment(each: StateFolder) -> str:
    return f"{tso.to_datetime(each.checkpoint_ts):%Y-%m-%d %H:%M:%S} UTC" if each.checkpoint_ts else ""


def _json(each: StateFolder) -> dict[str, Any]:
    return {
        "folder": each.folder,
        "driven": each.is_driven,
        "closed": each.is_closed,
        "finished": each.is_finished,
        "left_over": each.is_left_over,
        "checkpoint_ts": str(each.checkpoint_ts),
        "event_bytes": each.event_bytes,
        "silent_ms": each.silent_ms,
        "problem": each.problem,
    }
