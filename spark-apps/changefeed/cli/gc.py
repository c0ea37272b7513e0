"""`changefeed gc`: lists or closes what deleted changefeeds left behind."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from changefeed.cli.arguments import AsJson, Pd
from changefeed.cli.cluster.description import table
from changefeed.cli.output import write_json, write_text
from changefeed.errors import Conflict, InvalidSpec
from changefeed.model import tso

if TYPE_CHECKING:
    from changefeed.objectstore import Location
    from changefeed.owner.closing.holds import Found, Stray
    from changefeed.owner.closing.left_overs import StateFolder
    from changefeed.upstream.contract import Access, Hold

_HEAD = ["STATE FOLDER", "IS", "CHECKPOINT", "EVENTS", "HELD UNTIL"]
_HOLD_HEAD = ["HOLD WITHOUT A LOG HERE", "FROM", "UNTIL", "UPSTREAM"]
_MIB = 1 << 20


def gc(
    *,
    state: str,
    close: Annotated[list[str] | None, Parameter(negative="")] = None,
    release: Annotated[list[str] | None, Parameter(negative="")] = None,
    pd: Pd | None = None,
    file: Annotated[Path | None, Parameter(name=["--file", "-f"])] = None,
    secrets_dir: Path | None = None,
    secret: str | None = None,
    as_json: AsJson = False,
) -> None:
    """List what changefeeds have left behind under a state URI, and close those that you name.

    Without --close and --release nothing is changed. A folder whose driver is alive is never touched. A paused
    changefeed looks like a deleted one, so check `changefeed get --all-namespaces` first.

    Parameters
    ----------
    state
        The state URI of the operator or of a resource, such as s3://cdc-state.
    close
        A folder as listed, or a leading part of it: "shop" or "shop/orders". Closes its log, and removes its hold on
        the upstream's history and its stored events. May be repeated.
    release
        A hold without a log, in full as listed. Removes it, unless somebody renews or reads it within 70 s. It may be
        of a paused changefeed whose state is elsewhere, which would lose its history. May be repeated.
    pd
        PD of a cluster whose holds to list, too. Those that the logs name are always asked.
    file
        A Changefeed whose upstream's holds to list, too.
    secrets_dir
        Folder of Secrets: DIR/<secretRef.name>/<key>. Required where spec.upstream.tls is set.
    secret
        The Secret in --secrets-dir for the state URI. Without it, credentials come from the environment.
    """
    import asyncio

    from changefeed.objectstore import Location
    from changefeed.objectstore.open import canonical
    from changefeed.owner.closing.holds import held
    from changefeed.owner.closing.left_overs import find

    if secret is not None and secrets_dir is None:
        raise InvalidSpec("--secret", f"{secret}; allowed: together with --secrets-dir DIR")
    if close and release:
        raise InvalidSpec("--release", "given together with --close; allowed: one of the two")
    location = Location(canonical(state, "--state"), secrets_dir / secret if secrets_dir and secret else None)
    now_ms = int(time.time() * 1000)
    found = asyncio.run(held(find(location, now_ms), _more(pd, file, secrets_dir), secrets_dir))
    if close:
        _close(location, found, close, secrets_dir, now_ms, as_json)
    elif release:
        _release(found, release, as_json)
    else:
        _list(found, as_json)


def _more(pd: list[str] | None, file: Path | None, secrets_dir: Path | None) -> list[Access]:
    from changefeed.cli.config_file import read
    from changefeed.upstream import choice
    from changefeed.upstream.tikv.access import TikvAccess

    return [
        *([TikvAccess(tuple(pd))] if pd else []),
        *([choice.access_of(read(file), secrets_dir)] if file is not None else []),
    ]


def _close(
    location: Location, found: Found, close: list[str], secrets_dir: Path | None, now_ms: int, as_json: bool
) -> None:
    import asyncio

    from changefeed.owner.closing.left_overs import close_left_over

    named = [each for each in found.folders if any(_is_below(each.folder, part) for part in close)]
    driven = [each.folder for each in named if each.is_driven]
    if driven and len(driven) == len(named):
        raise Conflict(
            f"{', '.join(driven)}: a live driver runs it.", "Delete its Changefeed or stop the driver first."
        )
    to_close = [each.folder for each in named if each.may_be_closed]
    if not to_close:
        raise InvalidSpec(
            "--close", f"{', '.join(close)}: no such left-over below {location.uri}", "See changefeed gc --state."
        )
    answers = []
    for folder in to_close:
        word = asyncio.run(close_left_over(location, folder, secrets_dir, now_ms))
        answers.append({"folder": folder, "closed": True, "note": word})
        if not as_json:
            write_text(f"{folder} is closed{f'; {word}' if word else ''}")
    if as_json:
        write_json({"closed": answers, **({"driven": driven} if driven else {})})
    elif driven:
        write_text(f"Left alone, because a live driver runs it: {', '.join(driven)}")


def _release(found: Found, names: list[str], as_json: bool) -> None:
    import asyncio

    from changefeed.owner.closing.holds import WATCH_S, release

    strays = [each for each in found.strays if each.hold.name in names]
    if missing := sorted(set(names) - {each.hold.name for each in strays}):
        why = "; ".join(f"{pd}: {problem}" for pd, problem in found.problems.items())
        raise InvalidSpec(
            "--release",
            f"{', '.join(missing)}: no such hold without a log{f' ({why})' if why else ''}",
            "See changefeed gc --state; a hold that has a log goes with --close FOLDER.",
        )
    if not as_json:
        write_text(f"Watching for {WATCH_S:g} s whether anybody renews it.")
    asyncio.run(release(strays))
    if as_json:
        write_json({"released": sorted(names)})
    else:
        write_text(f"Released: {', '.join(sorted(names))}")


def _is_below(folder: str, part: str) -> bool:
    return f"{folder}/".startswith(f"{part.strip('/')}/")


def _list(found: Found, as_json: bool) -> None:
    if as_json:
        write_json(
            {
                "folders": [_json(each) for each in found.folders],
                "holds": [_stray_json(each) for each in found.strays],
                "problems": found.problems,
            }
        )
        return
    rows = [
        [each.folder, _word(each), _moment(each.checkpoint_ts), f"{each.event_bytes / _MIB:.1f} MiB", _held(each)]
        for each in found.folders
    ]
    for line in table([_HEAD, *rows]):
        write_text(line)
    left = sum(each.is_left_over for each in found.folders)
    write_text(f"{left} of {len(found.folders)} are left over, or paused. changefeed gc --close FOLDER ends one.")
    for pd, problem in found.problems.items():
        write_text(f"The holds at {pd} are not known: {problem}")
    if found.strays:
        holds = [
            [each.hold.name, _moment(each.hold.ts), _until(each.hold), each.upstream.address] for each in found.strays
        ]
        for line in ["", *table([_HOLD_HEAD, *holds])]:
            write_text(line)
        write_text(
            "Each is of a changefeed that has never run, or of one whose state is elsewhere. If nobody needs it: "
            "changefeed gc --release HOLD."
        )


def _word(each: StateFolder) -> str:
    if each.is_driven:
        return "driven"
    if each.is_closed:
        rest = [what for what, left in (("events", each.event_bytes), ("a hold", each.hold)) if left]
        return f"closed, with {' and '.join(rest)}" if rest else "closed"
    if each.problem:
        return f"unreadable: {each.problem}"
    return "finished" if each.is_finished else "left over or paused"


def _held(each: StateFolder) -> str:
    return "not known" if each.hold_problem else _until(each.hold) if each.hold else ""


def _until(hold: Hold) -> str:
    return "for ever" if hold.until_ms is None else _moment(tso.compose(hold.until_ms))


def _moment(ts: int) -> str:
    return f"{tso.to_datetime(ts):%Y-%m-%d %H:%M:%S} UTC" if ts else ""


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
        "hold": _hold_json(each.hold) if each.hold else None,
        "hold_problem": each.hold_problem,
        "problem": each.problem,
    }


def _stray_json(each: Stray) -> dict[str, Any]:
    return {"name": each.hold.name, **_hold_json(each.hold), "pd": each.upstream.address.split(", ")}


def _hold_json(hold: Hold) -> dict[str, Any]:
    return {"ts": str(hold.ts), "until_ms": hold.until_ms}
