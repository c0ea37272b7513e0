"""Where a changefeed's state is, and how its hold at PD is named (docs/design/layouts.md, State folder,
Secrets)."""

from __future__ import annotations

import os
import re
from pathlib import Path

from changefeed.objectstore import Location
from changefeed.objectstore.digest import Digest
from changefeed.objectstore.open import below
from changefeed.spec.field.secret import store_secret
from changefeed.spec.model import Changefeed
from changefeed.upstream.contract import HistoryLease, Upstream

_IDS = "_id"
_HOLD_OF_ID = re.compile(rf"(changefeed-{_IDS}-.+)-[0-9a-f]{{8}}")
_HOLD = re.compile(r"changefeed-[a-z0-9][^-]*-.+-.+")  # as against changefeed-spark-<hex>, changefeed-verify-<hex>
_SLOT = re.compile(r"changefeed_[a-z0-9_]+_[0-9a-f]{16}")  # PostgreSQL's, of a changefeed that names none
STATE_FIELD = "spec.state.uri"


def state_location(changefeed: Changefeed, secrets_dir: Path | None = None) -> Location:
    """`<state.uri>/<namespace>/<name>/<uid>`; without state.uri, a folder of this user on this machine.

    With state.id, `<state.uri>/_id/<state.id>`: no namespace has a `_` in its name.
    """
    metadata, state = changefeed.metadata, changefeed.spec.state
    folders = (_IDS, state.id) if state.id else (metadata.namespace, metadata.name, metadata.uid)
    if state.uri:
        return Location(
            below(state.uri, *folders, field=STATE_FIELD), store_secret(state.uri, state.credentials, secrets_dir)
        )
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Location((Path(home).absolute() / "changefeed").joinpath(*folders[:2]).as_uri())


def service_id(changefeed: Changefeed) -> str:
    """Names the changefeed's hold at PD.

    The uid keeps it from touching that of a namesake before it. A state id means the same only at the same URI, so
    that is part of the name.
    """
    metadata = changefeed.metadata
    if not changefeed.spec.state.id:
        return f"changefeed-{metadata.namespace}-{metadata.name}-{metadata.uid}"
    location = Digest(state_location(changefeed).uri.encode()).hexdigest()[:8]
    return f"changefeed-{_IDS}-{changefeed.spec.state.id}-{location}"


def lease_of(changefeed: Changefeed, upstream: Upstream) -> HistoryLease:
    """The changefeed's lease on the upstream's history."""
    return upstream.history_lease(service_id(changefeed), int(changefeed.spec.upstream.safepoint_ttl))


def hold_stem(name: str) -> str:
    """Return what tells a changefeed's hold at PD from others below one state URI. "": it is no changefeed's.

    The URI of a state id is left out: it may be written in several ways.
    """
    if match := _HOLD_OF_ID.fullmatch(name):
        return match[1]
    return name if _HOLD.fullmatch(name) or _SLOT.fullmatch(name) else ""


def folder_stem(folder: str) -> str:
    """The same, of the hold of the changefeed whose state is in `folder`, a path below a state URI."""
    *_, namespace, name, last = ["", "", *folder.split("/")]
    return f"changefeed-{_IDS}-{last}" if name == _IDS else f"changefeed-{namespace}-{name}-{last}"
