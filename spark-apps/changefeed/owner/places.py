"""Where a changefeed keeps its state (INTERFACES.md, State, sink ownership, secrets)."""

from __future__ import annotations

import os
from pathlib import Path

from changefeed.objectstore.open import local_path
from changefeed.spec.model import Changefeed

LOG = "log"


def state_uri(changefeed: Changefeed) -> str:
    """`<state.uri>/<namespace>/<name>/<uid>`; without state.uri, a folder of this user on this machine."""
    metadata = changefeed.metadata
    if uri := changefeed.spec.state.uri:
        root = local_path(uri, "spec.state.uri")
        return (root / metadata.namespace / metadata.name / metadata.uid).as_uri()
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return (Path(home).absolute() / "changefeed" / metadata.namespace / metadata.name).as_uri()


def sink_uri(changefeed: Changefeed) -> str:
    """The sink's root, absolute."""
    return local_path(changefeed.storage.uri, "spec.sink.storage.uri").as_uri()
