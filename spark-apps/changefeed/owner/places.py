"""Where a changefeed keeps its state, and where its sink is (INTERFACES.md, State, sink ownership, secrets)."""

from __future__ import annotations

import os
from pathlib import Path

from changefeed.objectstore import Place
from changefeed.objectstore.open import below, canonical, is_s3
from changefeed.spec.model import Changefeed
from changefeed.spec.section import Credentials

LOG = "log"
STATE_FIELD = "spec.state.uri"
SINK_FIELD = "spec.sink.storage.uri"


def state_place(changefeed: Changefeed, secrets_dir: Path | None = None) -> Place:
    """`<state.uri>/<namespace>/<name>/<uid>`; without state.uri, a folder of this user on this machine."""
    metadata, state = changefeed.metadata, changefeed.spec.state
    if state.uri:
        uri = below(state.uri, metadata.namespace, metadata.name, metadata.uid, field=STATE_FIELD)
        return Place(uri, _secret(state.uri, state.credentials, secrets_dir))
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Place((Path(home).absolute() / "changefeed" / metadata.namespace / metadata.name).as_uri())


def sink_place(changefeed: Changefeed, secrets_dir: Path | None = None) -> Place:
    """The sink's root, absolute."""
    storage = changefeed.storage
    return Place(canonical(storage.uri, SINK_FIELD), _secret(storage.uri, storage.credentials, secrets_dir))


def _secret(uri: str, credentials: Credentials | None, secrets_dir: Path | None) -> Path | None:
    """Without files, the environment's own credentials are used."""
    if not is_s3(uri) or credentials is None or secrets_dir is None:
        return None
    return secrets_dir.absolute() / credentials.secret_ref.name
