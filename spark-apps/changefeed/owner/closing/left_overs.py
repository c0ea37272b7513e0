"""Finds what changefeeds left behind below a state URI, by their logs, and closes them one at a time.

A paused changefeed looks like one whose resource is gone; the caller must know which it is. One whose driver is alive
is never touched.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from changefeed.errors import ChangefeedError, Conflict, NeedsHuman, Refused, Transient, Unavailable
from changefeed.eventstore.files import EVENTS
from changefeed.log.log import LOG, Log
from changefeed.log.state import State
from changefeed.objectstore import Location
from changefeed.objectstore.open import below, open_store
from changefeed.owner import locations
from changefeed.owner.alive import Alive
from changefeed.owner.closing.undriven import close
from changefeed.spec.model import Changefeed
from changefeed.spec.parse import from_effective
from changefeed.spec.problem import InvalidResource
from changefeed.upstream.contract import Hold

#: A driver says that it is alive every 5 s. So much longer ago, in ms, it isn't, whatever this machine's clock is off.
SILENT_MS = 300_000

_LOG = f"/{LOG}/"
_EVENTS = f"/{EVENTS}/"


@dataclass(frozen=True)
class StateFolder:
    """One changefeed's state. `folder`: below the state URI. `silent_ms`: since its driver was last alive; None: it
    never was, has ended, or does not say so on such a store."""

    folder: str
    is_driven: bool
    is_closed: bool
    is_finished: bool
    checkpoint_ts: int
    event_bytes: int
    silent_ms: int | None
    problem: str = ""  # why nothing more is known
    changefeed: Changefeed | None = None  # as its last driver ran it; None: not known, or the folder is a copy
    cluster_id: int = 0
    hold: Hold | None = None  # on the upstream's history; see holds.held
    hold_problem: str = ""  # why that is not known

    @property
    def is_left_over(self) -> bool:
        """Something of it remains that nobody uses now."""
        return not self.is_driven and (not self.is_closed or self.event_bytes > 0 or self.hold is not None)

    @property
    def may_be_closed(self) -> bool:
        """So may what is closed already, as long as it may still hold history."""
        return self.is_left_over or (not self.is_driven and bool(self.hold_problem))


def find(state: Location, now_ms: int) -> list[StateFolder]:
    """Every changefeed's folder below `state`, sorted. `now_ms`: since 1970. Raises Unavailable, NeedsHuman."""
    listed = open_store(state.uri, "--state", state.secret).list()
    events: dict[str, int] = {}
    folders: set[str] = set()
    for path, size in listed:
        if _LOG in path:
            folders.add(path.split(_LOG)[0])
        elif _EVENTS in path:
            folder = path.split(_EVENTS)[0]
            events[folder] = events.get(folder, 0) + size
    return [_look(state, folder, events.get(folder, 0), now_ms) for folder in sorted(folders)]


async def close_left_over(state: Location, folder: str, secrets_dir: Path | None, now_ms: int) -> str:
    """End the log of one, delete its stored events and its hold; a word about what could not be done, or "".

    May be repeated. Raises Conflict when its driver is alive, NeedsHuman when its log does not tell whose it is,
    InvalidSpec and Refused as `undriven.close`: all of them before anything is changed.
    """
    found = await asyncio.to_thread(_look, state, folder, 0, now_ms)
    if found.is_driven:
        raise Conflict(f"{folder} has a live driver.", "Delete its Changefeed or stop the driver first.")
    location = _location(state, folder)
    recorded = await asyncio.to_thread(lambda: Log(open_store(location.uri, "--state", location.secret)).read())
    try:
        await close(_changefeed(recorded, location, secrets_dir), secrets_dir, location)
    except (Unavailable, Transient, NeedsHuman) as error:
        if isinstance(error, Refused) or not await asyncio.to_thread(_is_closed, location):
            raise
        return f"its hold on the upstream's history is not removed: {error.message}"
    return ""


def _look(state: Location, folder: str, event_bytes: int, now_ms: int) -> StateFolder:
    location = _location(state, folder)
    store = open_store(location.uri, "--state", location.secret)
    seen_ms = Alive(store).last_refresh_ms()
    silent_ms = None if seen_ms is None else max(0, now_ms - seen_ms)
    try:
        store.hold()
        store.release()
        is_locked = False
    except Conflict:
        is_locked = True
    try:
        recorded, problem = Log(store).read(), ""
    except NeedsHuman as error:
        recorded, problem = State(), error.message
    changefeed = None
    with suppress(NeedsHuman):
        changefeed = _changefeed(recorded, location, None)
    return StateFolder(
        folder=folder,
        is_driven=is_locked or (silent_ms is not None and silent_ms < SILENT_MS),
        is_closed=recorded.closed,
        is_finished=recorded.finished,
        checkpoint_ts=recorded.checkpoint_ts,
        event_bytes=event_bytes,
        silent_ms=silent_ms,
        problem=problem,
        changefeed=changefeed,
        cluster_id=recorded.cluster_id,
    )


def _location(state: Location, folder: str) -> Location:
    return Location(below(state.uri, *folder.split("/"), field="--state"), state.secret)


def _changefeed(recorded: State, location: Location, secrets_dir: Path | None) -> Changefeed:
    """As its last driver ran it."""
    try:
        changefeed = from_effective(recorded.epoch.config)
    except InvalidResource as error:
        raise NeedsHuman(
            f"The log of {location.uri} does not identify its changefeed: {error.message}",
            "Use the version that wrote it. If the changefeed never ran, delete the folder.",
        ) from error
    try:
        own = locations.state_location(changefeed, secrets_dir).uri
    except ChangefeedError:
        own = ""
    if own != location.uri:
        raise NeedsHuman(
            f"The log of {location.uri} is of a changefeed that keeps its state at {own or 'another URI'}.",
            "It is a copy: closing it would end the original. Delete the folder if it is not needed.",
        )
    return changefeed


def _is_closed(location: Location) -> bool:
    return Log(open_store(location.uri, "--state", location.secret)).read().closed
