"""Finds the holds that upstreams keep for changefeeds, with and without a log, and removes those without one.

A hold without a log below one state URI may be of a changefeed that keeps its state elsewhere: so nothing is removed
that was not named in full, nor anything that somebody renews.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from changefeed.errors import ChangefeedError, Conflict
from changefeed.owner import locations
from changefeed.owner.closing.left_overs import StateFolder
from changefeed.upstream import choice
from changefeed.upstream.contract import RENEW_S, Access, Hold

_PD_DEADLINE_S = 3.0
#: Who drives a changefeed has renewed its hold by then.
WATCH_S = RENEW_S + 10.0
LOOK_S = 5.0
#: By which a renewed hold expires later, at least; what is less is rounding.
_RENEWED_MS = 3_000


@dataclass(frozen=True)
class Stray:
    """A changefeed's hold at `upstream`, without a log."""

    hold: Hold
    upstream: Access


@dataclass(frozen=True)
class Found:
    """`folders`: with their holds. `problems`: why nothing is known of an upstream's holds, by its address."""

    folders: list[StateFolder]
    strays: list[Stray]
    problems: dict[str, str]


async def held(folders: Sequence[StateFolder], more: Iterable[Access], secrets_dir: Path | None) -> Found:
    """Ask each folder's upstream, and those of `more`, once each. Raises nothing: an upstream may be gone."""
    upstreams: dict[str, Access | str] = {each.folder: _upstream(each, secrets_dir) for each in folders}
    asked = list({each for each in (*upstreams.values(), *more) if not isinstance(each, str)})
    answers = dict(zip(asked, await asyncio.gather(*map(_ask, asked)), strict=True))
    known = {locations.folder_stem(each.folder) for each in folders}
    known |= {
        upstream.listed_hold(locations.service_id(each.changefeed))
        for each in folders
        if each.changefeed is not None and not isinstance(upstream := upstreams[each.folder], str)
    }
    strays = {
        (hold.name, upstream.address): Stray(hold, upstream)
        for upstream, answer in answers.items()
        if not isinstance(answer, str)
        for hold in answer
        if (stem := locations.hold_stem(hold.name)) and stem not in known
    }
    problems = {upstream.address: answer for upstream, answer in answers.items() if isinstance(answer, str)}
    seen = []
    for each in folders:
        upstream = upstreams[each.folder]
        answer = answers[upstream] if not isinstance(upstream, str) else upstream
        seen.append(_with_hold(each, upstream, answer))
        if each.changefeed is not None and isinstance(upstream, str):
            problems[each.changefeed.spec.upstream.address] = upstream
    return Found(seen, [strays[key] for key in sorted(strays)], problems)


async def release(strays: Sequence[Stray]) -> None:
    """Watch whether anybody renews one of them, then remove them. Raises Conflict, Transient, Unavailable, Refused."""
    for upstream in {each.upstream for each in strays}:
        here = [each.hold for each in strays if each.upstream == upstream]
        connected = await upstream.connect()
        try:
            for _ in range(int(WATCH_S / LOOK_S)):
                await asyncio.sleep(LOOK_S)
                now = {hold.name: hold for hold in await connected.holds()}
                for hold in here:
                    if hold.name in now and _is_used(hold, now[hold.name]):
                        raise Conflict(
                            f"{hold.name} is in use: a changefeed with its state elsewhere needs it.",
                            "Nothing was removed. Find the changefeed by this name: namespace, name, uid.",
                        )
            for hold in here:
                await connected.release(hold.name)
        finally:
            await connected.close()


def _is_used(before: Hold, now: Hold) -> bool:
    """Tell whether it is read, or was renewed."""
    later = (now.until_ms or 0) - (before.until_ms or 0) >= _RENEWED_MS
    return now.is_read or later or now.ts != before.ts


def _upstream(folder: StateFolder, secrets_dir: Path | None) -> Access | str:
    """The text: why there is none to ask."""
    if folder.changefeed is None:
        return ""
    try:
        return choice.access_of(folder.changefeed, secrets_dir).of_cluster(folder.cluster_id)
    except ChangefeedError as error:
        return error.message


async def _ask(upstream: Access) -> list[Hold] | str:
    try:
        connected = await upstream.connect(_PD_DEADLINE_S)
        try:
            return await connected.holds()
        finally:
            await connected.close()
    except ChangefeedError as error:
        return error.message


def _with_hold(folder: StateFolder, upstream: Access | str, answer: list[Hold] | str) -> StateFolder:
    if isinstance(upstream, str) or isinstance(answer, str):
        return replace(folder, hold_problem=str(answer))
    assert folder.changefeed is not None, "it has named whom to ask"
    name = upstream.listed_hold(locations.service_id(folder.changefeed))
    return replace(folder, hold=next((hold for hold in answer if hold.name == name), None))
